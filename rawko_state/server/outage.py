"""Storage that cannot be reached for a while: said once when it begins, and once when it is over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from rawko_state.errors import OutcomeUnknown, RawkoError, StorageAway


class Outage:
    def __init__(self, kind: str, warn: Callable[[str], None]) -> None:
        self._kind, self._warn = kind, warn
        self.is_on = False
        self._in_trouble = asyncio.Event()

    def met(self, error: RawkoError) -> None:
        """A request failed because of the storage. An outage may be over before the next check looks, so it is said now."""
        self._in_trouble.set()
        cause = error.__cause__ if isinstance(error, OutcomeUnknown) else error
        if isinstance(cause, StorageAway):
            self.began(error)

    def began(self, error: RawkoError) -> None:
        if not self.is_on:
            self.is_on = True
            self._warn(f"{error}; requests get 503 until it is back")

    def ended(self) -> None:
        if self.is_on:
            self.is_on = False
            self._warn(f"{self._kind} tasks can be reached again")

    async def trouble(self, seconds: float) -> None:
        """Returns when a request fails because of the storage, or after ``seconds``."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._in_trouble.wait(), seconds)

    def forget(self) -> None:
        """What failed until now is not waited for again."""
        self._in_trouble.clear()
