"""Trash, retention, redaction and verification of a server's tasks."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rawko_state.backends.http import Http
from rawko_state.errors import TaskNotFound
from rawko_state.format.values import write_time
from rawko_state.model.names import parse_name
from rawko_state.store import InTrash, Kept, TaskFilter, TaskSummary
from rawko_state.store.wire import from_wire


class RemoteKeeping(ABC):
    """A part of RemoteStore."""

    http: Http

    @abstractmethod
    def history(self, wanted: TaskFilter) -> list[TaskSummary]: ...

    @abstractmethod
    def cursors(self) -> dict[str, str]: ...

    def _get(self, *parts: object, **query: Any) -> Any:
        return self.http.ask("GET", self.http.path(*parts, **query))

    def _post(self, *parts: object, data: Any) -> Any:
        return self.http.ask("POST", self.http.path(*parts), data=data)

    def kept(self, task_id: str | None = None) -> list[Kept]:
        return [from_wire(Kept, each) for each in self._get("kept", id=task_id)["tasks"]]

    def freed(self, task_ids: Sequence[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for start in range(0, len(task_ids), 5_000):
            found |= self._post("kept", "freed", data={"ids": list(task_ids[start : start + 5_000])})["freed"]
        return found

    def discard(
        self,
        tasks: Iterable[tuple[Kept, str]],
        *,
        by: str | None = None,
        proceed: Callable[[], bool] = lambda: True,
        patience: float = 60.0,
    ) -> Iterator[str]:
        everything = list(tasks)
        for start in range(0, len(everything), 500):
            if not proceed():
                return
            some = [
                {"id": task.id, "file": task.file, "size": task.size, "mtime_ns": task.mtime_ns, "rule": rule}
                for task, rule in everything[start : start + 500]
            ]
            yield from self._post("trash", data={"tasks": some})["discarded"]

    def delete(self, prefix: str, *, by: str | None = None) -> str:
        return str(self.http.ask("DELETE", self.http.path("tasks", prefix))["task"])

    def trash(self) -> list[InTrash]:
        return [from_wire(InTrash, each) for each in self._get("trash")["trash"]]

    def restore(self, prefix: str | None = None) -> list[str]:
        return list(self._post("trash", "restore", data={"id": prefix} if prefix else {})["restored"])

    def empty_trash(
        self, before: datetime | None = None, *, patience: float = 60.0, proceed: Callable[[], bool] = lambda: True
    ) -> list[InTrash]:
        data = {} if before is None else {"before": write_time(before)}
        return [from_wire(InTrash, each) for each in self._post("trash", "empty", data=data)["deleted"]]

    def pack(self, task: Kept) -> bool:
        return bool(self._post("tasks", task.id, "pack", data={})["packed"])

    def redact(self, prefix: str, *, dry_run: bool = False, by: str | None = None) -> _Redacted:
        found = self._post("tasks", prefix, "redact", data={"dry_run": dry_run})
        return _Redacted(found["task"], found["rules"], found["changed"])

    def verify(self, prefix: str | None = None, *, repair: bool = False) -> Iterator[Any]:
        for task_id in [prefix] if prefix is not None else self._in_order():
            with contextlib.suppress(TaskNotFound):
                yield _Verdict(self._get("tasks", task_id, "verify", repair=repair or None))

    def _in_order(self) -> list[str]:
        """All tasks, by the names of their files; then those of which history does not know."""
        known = [summary.id for summary in sorted(self._all(), key=lambda summary: summary.file)]
        return [*known, *sorted(self.cursors().keys() - set(known))]

    def _all(self) -> list[TaskSummary]:
        return self.history(TaskFilter(limit=None))


class _Redacted:
    def __init__(self, task: str, rules: Mapping[str, int], changed: int) -> None:
        self.task, self.rules, self.changed = task, rules, changed


class _Verdict:
    """What the server found in one chain."""

    def __init__(self, found: dict[str, Any]) -> None:
        name = parse_name(found["file"])
        assert name is not None
        self.name = name
        self.unsealed: bool = found["unsealed"]
        self.records: int = found["records"]
        self.turns: int = found["turns"]
        self.torn: int = found["torn"]
        self.faults: list[str] = found["faults"]
        self.repaired: list[str] = found["repaired"]
        self.can_repair: bool = found["can_repair"]
