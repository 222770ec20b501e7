"""What desks at a distance share: a state that was last heard of, and a lease that runs out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from rawko_state.backends.desk import Point
from rawko_state.backends.expiring import ExpiringLease
from rawko_state.journal.reader import TaskReader
from rawko_state.model.entries import Entry
from rawko_state.model.state import TaskState


class Far(Protocol):
    """A store that is elsewhere."""

    root: Path

    def reader(self, prefix: str) -> TaskReader: ...


class FarDesk:
    """A part of PgDesk and RemoteDesk."""

    id: str
    _far: Far
    _lease: ExpiringLease | None
    _state: TaskState
    _seal: str
    _end: int

    @property
    def root(self) -> Path:
        return self._far.root

    @property
    def state(self) -> TaskState:
        return self._state

    @property
    def seal(self) -> str:
        return self._seal

    @property
    def is_leased(self) -> bool:
        return self._lease is not None

    def point(self) -> Point:
        return Point(self._end, self._seal, self._state.status)

    def since(self, end: int, seal: str) -> Iterator[Entry]:
        with self._far.reader(self.id) as reader:
            for record in reader.scan((end, seal) if end else None):
                for block in record.blocks if record.counts else ():
                    yield block.entry(reader.fetch, head_only=True)

    def let_go(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def tend(self) -> None:
        """Nothing: what is to be done then is done where the tasks are."""

    def close(self) -> None:
        self.let_go()
