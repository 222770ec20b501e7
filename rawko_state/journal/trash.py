"""The trash: tasks removed from a project, with their blobs, until they are restored or expire.

A task is moved with one rename, so even if its mover dies, it is complete either in its place or in the trash. What was moved,
when and why is written to ``trash/log.jsonl`` first. A line whose file is not there is ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from rawko_state.errors import RawkoError, StorageError, TaskNotFound
from rawko_state.format.values import read_time, write_time
from rawko_state.journal import disk
from rawko_state.journal.archive import drop_leftover
from rawko_state.journal.layout import Layout, TaskName, parse_name
from rawko_state.journal.locks import append_lock, gate, holder_of
from rawko_state.late import late
from rawko_state.model.frozen import Frozen

LOG: Final = "log.jsonl"
BY_HAND: Final = "deleted"
"""The rule for tasks deleted by a person."""
ERASED: Final = "erased"
_UNKNOWN: Final = "unknown"
_PATIENCE: Final = 0.2
_NAME = late(r"(.+\.task(?:\.gz)?)(?:\.([0-9]{1,6}))?")
_BLOB = late(r"[0-9a-f]{64}")


class Leaving(Frozen):
    """A task to be removed: its file, the reason, and the blobs it refers to."""

    name: TaskName
    rule: str
    stat: tuple[int, int]
    """Size and mtime when that was decided."""
    blobs: tuple[str, ...] = ()


class Discarded(Frozen):
    """A task in the trash."""

    name: TaskName
    path: Path
    at: datetime
    rule: str
    size: int
    blobs: tuple[str, ...]


@contextlib.contextmanager
def locked(layout: Layout, timeout: float = 60.0) -> Iterator[None]:
    """Only one process at a time may change the trash."""
    layout.make()
    disk.make_folder(layout.trash)
    with gate(layout.trash / "lock", timeout=timeout):
        yield


def throw(layout: Layout, leaving: Sequence[Leaving], by: str | None = None) -> list[Leaving]:
    """Moves tasks to the trash, and returns those that were moved. A task stays if it has changed, is being run, or was restored
    since. The caller holds the trash lock, as for every change to the trash."""
    now = write_time(datetime.now(timezone.utc).replace(microsecond=0))
    _log(layout, [_line(each, now, by) for each in leaving])
    live, back = _busy(layout), exempt(layout)
    moved = [
        each
        for each in leaving
        if each.name.id not in live and (each.rule == BY_HAND or each.name.id not in back) and _move(layout, each)
    ]
    if moved:
        disk.sync_folder(layout.trash)
        disk.sync_folder(layout.tasks)
    return moved


def _busy(layout: Layout) -> set[str]:
    """Tasks that a process is running, or that have an unfinished turn."""
    names = os.listdir(layout.live)
    held = {layout.live / name for name in names if name.endswith(".lease")}
    running = {path.name.removesuffix(".lease") for path in held if holder_of(path) is not None}
    return running | {name.removesuffix(".draft") for name in names if name.endswith(".draft")}


def _move(layout: Layout, leaving: Leaving) -> bool:
    source = layout.path(leaving.name)
    try:
        descriptor = disk.open_regular(source, write=True)
    except RawkoError:
        return False
    try:
        # Nobody can append while it moves. Later writers find it gone.
        with append_lock(descriptor, source, _PATIENCE):
            mine = os.fstat(descriptor)
            if (mine.st_size, mine.st_mtime_ns) != leaving.stat or mine.st_ino != os.lstat(source).st_ino:
                return False
            drop_leftover(layout, leaving.name)
            disk.rename(source, _free(layout.trash / leaving.name.filename))
    except (FileNotFoundError, StorageError):
        return False
    finally:
        os.close(descriptor)
    return True


def _free(path: Path) -> Path:
    """An unused name in the trash: a task may be deleted more than once."""
    number, target = 1, path
    while os.path.lexists(target):
        number += 1
        target = path.with_name(f"{path.name}.{number}")
    return target


def listed(layout: Layout) -> list[Discarded]:
    """The tasks in the trash, most recent first."""
    logged: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(FileNotFoundError), open(layout.trash / LOG, "rb") as stream:
        for line in stream:
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict):
                    logged[str(entry.get("file"))] = entry
    found = []
    try:
        files = list(os.scandir(layout.trash))
    except FileNotFoundError:
        return []
    for file in files:
        match = _NAME.fullmatch(file.name)
        name = parse_name(match[1]) if match else None
        if match is None or name is None:
            continue
        try:
            stat = file.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        entry = logged.get(match[1], {})
        # Without a log line (someone put the file there), use the time of its last change of any kind.
        at = read_time(str(entry.get("at"))) or datetime.fromtimestamp(stat.st_ctime, timezone.utc)
        named = entry.get("blobs")
        named = named if isinstance(named, list) else []
        blobs = tuple(blob for blob in named if isinstance(blob, str) and _BLOB.fullmatch(blob))
        found.append(Discarded(name, Path(file.path), at, str(entry.get("rule") or _UNKNOWN), stat.st_size, blobs))
    return sorted(found, key=lambda each: (each.at, each.path.name), reverse=True)


def oldest(layout: Layout) -> datetime | None:
    """The time of the first log line. Everything in the trash is newer, unless someone put it there."""
    try:
        with open(layout.trash / LOG, "rb") as stream:
            return read_time(str(json.loads(stream.readline()).get("at")))
    except (OSError, ValueError, AttributeError):
        return None


def find(layout: Layout, prefix: str) -> Discarded:
    """The trashed task whose id is, or uniquely starts with, ``prefix``. Of several with one id, the most recent."""
    found = [each for each in listed(layout) if each.name.id.startswith(prefix)]
    exact = [each for each in found if each.name.id == prefix]
    if exact:
        return exact[0]
    ids = sorted({each.name.id for each in found})
    if len(ids) != 1:
        raise (
            TaskNotFound(prefix, ids[:3])
            if not ids
            else RawkoError(f"{prefix!r} matches several tasks in the trash: {', '.join(ids)}.")
        )
    return found[0]


def restore(layout: Layout, discarded: Sequence[Discarded]) -> list[str]:
    """Restores tasks unchanged, and exempts them from cleanups. Returns their ids. A task whose id is in use stays."""
    layout.make()
    for each in discarded:
        for blob in each.blobs:
            _bring_back(layout, blob)
    _exempt(layout, [each.name.id for each in discarded])
    back = []
    with gate(layout.live / "create.lock"):
        taken = {name.id for name in layout.names()}
        for each in discarded:
            if each.name.id not in taken:
                disk.rename(each.path, layout.path(each.name))
                taken.add(each.name.id)
                back.append(each.name.id)
    disk.sync_folder(layout.tasks)
    disk.sync_folder(layout.trash)
    return back


def exempt(layout: Layout) -> set[str]:
    """Tasks that were restored."""
    try:
        return set(os.listdir(layout.trash / "kept"))
    except OSError:
        return set()


def _exempt(layout: Layout, task_ids: Iterable[str]) -> None:
    folder = layout.trash / "kept"
    disk.make_folder(folder)
    for task_id in task_ids:
        os.close(disk.open_or_create(folder / task_id))
    disk.sync_folder(folder)


def delete(layout: Layout, discarded: Discarded) -> None:
    """Deletes a task permanently. The caller handles its blobs, as it knows what else refers to them."""
    with disk.naming("remove", discarded.path):
        os.unlink(discarded.path)


def put_away(layout: Layout, blobs: Iterable[str]) -> None:
    """Moves blobs that no task refers to any more to the trash."""
    folder = layout.trash / "blobs"
    disk.make_folder(folder)
    for blob in blobs:
        with contextlib.suppress(FileNotFoundError):
            os.rename(layout.blobs / blob, folder / blob)


def strays(layout: Layout, there: Sequence[Discarded]) -> set[str]:
    """Blobs in the trash that none of the tasks ``there`` refers to: a process deleted their task and was killed before deleting
    them. Empty while the log does not say what some task refers to."""
    if any(each.rule == _UNKNOWN for each in there):
        return set()
    with contextlib.suppress(FileNotFoundError):
        found = {name for name in os.listdir(layout.trash / "blobs") if _BLOB.fullmatch(name)}
        return found - {blob for each in there for blob in each.blobs}
    return set()


def delete_blobs(layout: Layout, blobs: Iterable[str]) -> None:
    """Deletes blobs permanently, wherever they are."""
    for blob in blobs:
        for folder in (layout.trash / "blobs", layout.blobs):
            disk.remove_quietly(folder / blob)


def renamed_blobs(layout: Layout, discarded: Discarded, renamed: Mapping[str, str], by: str | None) -> None:
    """Logs which blobs a rewritten task refers to now."""
    blobs = [renamed.get(blob, blob) for blob in discarded.blobs]
    if renamed:
        said = {"file": discarded.name.filename, "at": write_time(discarded.at), "rule": discarded.rule, "blobs": blobs}
        _log(layout, [{**said, "by": by} if by else said])


def _bring_back(layout: Layout, blob: str) -> None:
    source = layout.trash / "blobs" / blob
    if source.exists():
        disk.rename(source, layout.blobs / blob)
        disk.sync_folder(layout.blobs)


def _line(leaving: Leaving, now: str, by: str | None) -> dict[str, Any]:
    said = {"file": leaving.name.filename, "at": now, "rule": leaving.rule, "blobs": list(leaving.blobs)}
    return {**said, "by": by} if by else said


def _log(layout: Layout, lines: Sequence[dict[str, Any]]) -> None:
    path = layout.trash / LOG
    descriptor = disk.open_or_create(path)
    try:
        with append_lock(descriptor, path):
            end = os.fstat(descriptor).st_size
            # A torn line must not swallow the next one.
            torn = end and disk.read_at(descriptor, 1, end - 1) != b"\n"
            data = b"\n" * bool(torn) + b"".join(json.dumps(line).encode() + b"\n" for line in lines)
            disk.write_at(descriptor, data, end, path)
            disk.sync(descriptor, path, "")
    finally:
        os.close(descriptor)


def log_erased(layout: Layout, task_id: str, by: str | None) -> None:
    """Logs that a task was permanently deleted, and by whom: all that is left of it."""
    now = write_time(datetime.now(timezone.utc).replace(microsecond=0))
    _log(layout, [{"task": task_id, "at": now, "rule": ERASED, **({"by": by} if by else {})}])


def trim_log(layout: Layout, there: Sequence[Discarded]) -> None:
    """Removes lines of tasks that are no longer in the trash, once the log is large."""
    path = layout.trash / LOG
    if not path.exists() or path.stat().st_size < 1 << 20:
        return
    kept = {each.name.filename for each in there}
    descriptor = disk.open_or_create(path)
    try:
        with append_lock(descriptor, path):
            lines = disk.read_range(descriptor, 0, os.fstat(descriptor).st_size).splitlines(keepends=True)
            wanted = [line for line in lines if _file_of(line) in kept or f'"{ERASED}"'.encode() in line]
            disk.rename(disk.write_temporary(layout.live, b"".join(wanted)), path)
    finally:
        os.close(descriptor)


def _file_of(line: bytes) -> str | None:
    try:
        return str(json.loads(line).get("file"))
    except (ValueError, AttributeError):
        return None
