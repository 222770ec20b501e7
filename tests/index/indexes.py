"""What the tests of this folder share."""

from __future__ import annotations

import shutil
from pathlib import Path

from rawko_state.backends.files.store import FileStore
from rawko_state.model.entries import FileTouch, Turn
from rawko_state.store import TaskFilter
from tests.support.processes import DRIVERS

DRIVER = str(DRIVERS / "index.py")


ALL = TaskFilter()


class Told(list[str]):
    def __call__(self, message: str) -> None:
        self.append(message)


def turn(content: str = "x", *files: str) -> Turn:
    touched = tuple(FileTouch("write", path) for path in files)
    return Turn(number=1, agent="dev", status="complete", content=content, files=touched)


def rebuilt(root: Path) -> dict[str, list[tuple[object, ...]]]:
    """What a fresh index of the same files holds."""
    other = root / "rebuilt"
    shutil.rmtree(other, ignore_errors=True)
    (other / ".rawko" / "state").mkdir(parents=True)
    shutil.copytree(
        root / ".rawko" / "state" / "tasks", other / ".rawko" / "state" / "tasks", copy_function=shutil.copy2
    )
    fresh = FileStore(other)
    fresh.sync.fresh()
    dump = fresh.sync.index().dump()
    fresh.close()
    shutil.rmtree(other)
    return dump


def ids(store: FileStore, wanted: TaskFilter = ALL) -> list[str]:
    return [summary.id for summary in store.history(wanted)]
