"""The audit log: who did what. Written in the background, in batches, so that requests do not wait for it."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Any, Final

from rawko_state.store.hosting import ServerState

_MOST: Final = 10_000
_Row = tuple[str, str, str | None, str | None, int, str]


class Auditor:
    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._waiting: queue.Queue[_Row | None] = queue.Queue(_MOST)
        self._thread = threading.Thread(target=self._run, daemon=True, name="audit")
        self._thread.start()

    def add(self, who: str, action: str, workspace: str | None, task: str | None, status: int, peer: str) -> None:
        self._waiting.put((who, action, workspace, task, status, peer))

    def flush(self) -> None:
        """Waits until everything added so far is written."""
        self._waiting.join()

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join(5)

    def _run(self) -> None:
        ended = False
        while not ended:
            rows: list[Any] = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while len(rows) < 500:
                    rows.append(self._waiting.get_nowait())
            ended = None in rows
            with contextlib.suppress(Exception):  # if the database is unreachable, so are the tasks
                self._state.audit_all([row for row in rows if row is not None])
            for _ in rows:
                self._waiting.task_done()
        self._state.close()
