"""Modules that are imported when they are first used.

A short command must not load what only other commands need: listing tasks needs no redaction rules and no search engine. The few
modules at such a seam name the other side once, at their head:

    if TYPE_CHECKING:
        from rawko_state.tasks import events
    else:
        events = lazy("rawko_state.tasks.events")
"""

from __future__ import annotations

import importlib
from typing import Any

from rawko_state.errors import StorageError


class _Lazy:
    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, attribute: str) -> Any:
        # Not kept here: tests may replace what the module holds.
        try:
            module = importlib.import_module(self._name)
        except OSError as error:  # no descriptor left, or such
            raise StorageError(f"cannot load {self._name}: {error.strerror}", self._name, error.errno) from error
        return getattr(module, attribute)


def lazy(name: str) -> Any:
    return _Lazy(name)
