"""Errors as ``application/problem+json``: the status of each, and what a client needs to raise the same error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from rawko_state import errors
from rawko_state.errors import RawkoError

MEDIA: Final = "application/problem+json"
STATUS: Final[dict[type[RawkoError], int]] = {
    errors.InvalidValue: 422,
    errors.IllegalMove: 409,
    errors.NoProject: 404,
    errors.TaskNotFound: 404,
    errors.AmbiguousTask: 409,
    errors.TaskBusy: 423,
    errors.Stopped: 409,
    errors.NoAnswer: 409,
    errors.ChainMoved: 412,
    errors.NewerFormat: 409,
    errors.UnsafePath: 409,
    errors.IndexTrouble: 503,
    errors.SearchTrouble: 503,
    errors.StorageError: 503,
    errors.OutcomeUnknown: 503,
}


class Refused(RawkoError):
    """A request rejected before it is tried, because of who sent it, from where, or how."""

    def __init__(self, status: int, title: str, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.title, self.headers = status, title, headers or {}


def status_of(error: RawkoError) -> int:
    if isinstance(error, Refused):
        return error.status
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return 409


def problem(error: RawkoError) -> dict[str, Any]:
    """An RFC 9457 object, with the error's own fields added."""
    title = error.title if isinstance(error, Refused) else type(error).__name__
    found = {"type": f"rawko:{title}", "title": title, "status": status_of(error), "detail": str(error)}
    fields = {name: value for name, value in vars(error).items() if name not in ("status", "title", "headers", "path")}
    if isinstance(error, errors.Stopped):
        fields["became"] = error.status
    return {**found, **({"data": fields} if fields else {})}


def body(error: RawkoError, root: Path | None = None) -> bytes:
    """``root``: the local folder of the tasks, which is removed from the text."""
    found = problem(error)
    if root is not None:
        found["detail"] = found["detail"].replace(f"{root}/", "")
    return json.dumps(found, default=str).encode()
