"""A lock that threads get in the order in which they asked for it, and may enter again. With one of the standard library, records
would stand in any order, and a thread might wait for long."""

from __future__ import annotations

import threading
from collections import deque


class FairLock:
    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._owner: int | None = None
        self._depth = 0
        self._waiting: deque[tuple[int, threading.Lock]] = deque()

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._guard:
            if self._owner in (None, me):
                self._owner, self._depth = me, self._depth + 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append((me, turn))
        try:
            turn.acquire()
        except BaseException:  # interrupted by a signal
            with self._guard:
                if (me, turn) in self._waiting:
                    self._waiting.remove((me, turn))
                else:
                    self._leave()
            raise

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._leave()

    def _leave(self) -> None:
        """Hands it on to the one who has waited longest."""
        self._depth -= 1
        if self._depth == 0 and self._waiting:
            self._owner, turn = self._waiting.popleft()
            self._depth = 1
            turn.release()
        elif self._depth == 0:
            self._owner = None
