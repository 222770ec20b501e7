"""Values that programs compute from a task, kept up to date: a warm read costs one look at the task, not a reading of it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from rawko_state.format.reader import TaskReader
from rawko_state.format.seal import GENESIS, SEAL_LENGTH, read_seal
from rawko_state.model.entries import Entry

_MOST: Final = 256
"""How many values a store keeps."""
Step = Callable[[Any, Entry], Any]


class FoldedTask(Protocol):
    """A task as a fold sees it."""

    def stamp(self) -> Hashable:
        """Changes whenever the task does."""

    def opened(self) -> AbstractContextManager[TaskReader]: ...


class _Fold:
    """One value, and the position up to which the task is in it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stamp: Hashable = None
        self.end, self.seal = 0, GENESIS
        self.value: Any = None


class Folds:
    """The values of one store, those used last. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folds: OrderedDict[Hashable, _Fold] = OrderedDict()

    def value(self, key: Hashable, task: FoldedTask, first: Callable[[], Any], step: Step) -> Any:
        """The value after the task's last record. Reads only the records that were not read before."""
        with self._lock:
            fold = self._folds.setdefault(key, _Fold())
            self._folds.move_to_end(key)
            while len(self._folds) > _MOST:
                self._folds.popitem(last=False)
        with fold.lock:
            stamp = task.stamp()
            if fold.stamp is not None and fold.stamp == stamp:
                return fold.value
            with task.opened() as reader:
                end, seal, value = fold.end, fold.seal, fold.value
                if not end or seal_at(reader, end) != seal:
                    end, seal, value = 0, GENESIS, first()
                fold.end, fold.value = 0, None  # if a step raises, the next call starts over
                for record in reader.scan((end, seal) if end else None):
                    for block in record.blocks if record.counts else ():
                        value = step(value, block.entry(reader.fetch))
                    if record.kind in ("sealed", "torn"):
                        end, seal = record.end, record.seal or GENESIS
            # What follows the last seal is read again each time: it is still being written, or the file is unsealed.
            fold.end, fold.seal, fold.value = end, seal, value
            fold.stamp = stamp
            return value


def seal_at(reader: TaskReader, end: int) -> str | None:
    """The seal of the record that ends here; None if none does."""
    return read_seal(reader.fetch(max(0, end - SEAL_LENGTH), SEAL_LENGTH).strip())
