"""A backend on a plain dictionary, written from docs/howto/write-a-backend.md. It passes the whole conformance suite.

A dictionary is not durable: this is for reading. Replace the five methods with calls of your database or your bucket.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from rawko_state.backend import KeyedStore


class Shelf:
    """The place: a dictionary and its lock. Any number of stores may use it."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()


class DictStore(KeyedStore):
    """Tasks in a dictionary."""

    def __init__(self, shelf: Shelf, *, root: Path | str | None = None) -> None:
        self._shelf = shelf
        super().__init__(root=root)

    def keys(self, prefix: str) -> Mapping[str, Hashable]:
        # The value itself says whether it has changed. A database has a version or an ETag for it.
        return {
            key: (len(data), hash(data)) for key, data in self._shelf.values.copy().items() if key.startswith(prefix)
        }

    def load(self, key: str) -> bytes | None:
        return self._shelf.values.get(key)

    def save(self, key: str, data: bytes) -> None:
        self._shelf.values[key] = data

    def remove(self, key: str) -> None:
        self._shelf.values.pop(key, None)

    def locked(self) -> AbstractContextManager[object]:
        return self._shelf.lock


if __name__ == "__main__":
    shelf = Shelf()
    with DictStore(shelf).start("Say hello") as task, task.turn("greeter") as turn:
        turn.say("Hello.")
    for name, value in shelf.values.items():
        print(f"--- {name}\n{value.decode()}")
