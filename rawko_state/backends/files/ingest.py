"""Taking task files into an index: one file that has grown or changed, or many at once."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rawko_state.errors import RawkoError
from rawko_state.format.reader import TaskReader
from rawko_state.format.seal import SEAL_LENGTH, seal_line
from rawko_state.index.database import Index
from rawko_state.index.projection import Bulk, LocatedRecord, NewRows, Projector, Row, located, merged
from rawko_state.journal.chain import Checkpoint
from rawko_state.journal.journal import Journal
from rawko_state.journal.layout import TaskName
from rawko_state.journal.reader import open_reader
from rawko_state.model.appended import Appended


def checkpoint_of(name: TaskName, row: Row) -> Checkpoint | None:
    """Where the index knows a file up to, for a writer that goes on from there."""
    if row["tail_seal"] is None or row["file_path"] != name.file_path or row["damaged"]:
        return None
    state = Projector(name.id, row["file_path"], row).state
    return Checkpoint(row["indexed_end"], row["tail_seal"], row["tail_offset"], state)


def put(index: Index, projector: Projector, records: Iterable[LocatedRecord], stat: tuple[int, int]) -> None:
    """The rows of some records. Inside a transaction."""
    for record in records:
        rows = projector.take(record)
        projector.row["file_size"], projector.row["file_mtime_ns"] = stat
        index.put(projector, rows)


def new_file(index: Index, name: TaskName, reader: TaskReader) -> Projector:
    """A file that nobody knew."""
    projector = Projector(name.id, name.file_path)
    for record in reader.records():
        put(index, projector, [located(record, reader.fetch)], reader.stat())
    return projector


def appended(
    journal: Journal, index: Index, name: TaskName, done: Appended, stat: tuple[int, int], projector: Projector | None
) -> Projector:
    """What was just appended: from memory, if the index is just where the append began, else from the file."""
    if projector is not None and done.alone and projector.end == done.offset:
        after = (projector.end, projector.row["tail_seal"])
        rows = projector.take(
            LocatedRecord("sealed", done.offset, done.end - done.offset, done.seal, done.parent, 0, done.blocks)
        )
        projector.row["file_size"], projector.row["file_mtime_ns"] = stat
        if index.put(projector, rows, after=after):
            return projector
    return one_file(journal, index, name, grown=True)


def one_file(journal: Journal, index: Index, name: TaskName, *, grown: bool) -> Projector:
    """What has been added to a file, if a writer's mark says that it has ``grown``, else all of it. Inside a transaction, as
    two processes may come to it at once."""
    row = index.row(name.id)
    old: set[str] = set()
    with journal.reader(name) as reader:
        stat = reader.stat()
        if grown and row is not None and row["file_path"] == name.file_path and _still_there(reader, row):
            projector = Projector(name.id, row["file_path"], row)
            scan = reader.scan((row["indexed_end"], row["tail_seal"]))
        else:
            if row is not None and reader.size < row["indexed_end"]:
                old = index.seals(name.id)
            index.forget(name.id)
            projector = Projector(name.id, name.file_path)
            scan = reader.scan()
        # Also when there is no record at all: the row says that the file was looked at as it is now.
        projector.row["file_size"], projector.row["file_mtime_ns"] = stat
        index.put(projector, NewRows())
        for record in scan:
            put(index, projector, [located(record, reader.fetch)], stat)
    if row is not None:
        _note_missing(index, row, projector, was_cut=projector.row["tail_seal"] in old)
    return projector


MISSING: Final = "missing "
"""The key of what a file lacks that it once had, before the task's id. It is told until the file has it again, or is accepted."""


def _note_missing(index: Index, before: Row, now: Projector, *, was_cut: bool) -> None:
    """A file that was cut off, or put in place of a longer one: what the index knew of it is gone from it."""
    task_id, turns = before["id"], before["turns"] - now.row["turns"]
    known = index.meta(MISSING + task_id)
    if known is not None and json.loads(known)["seal"] in index.seals(task_id):
        index.drop_meta(MISSING + task_id)  # it is back
    elif known is None and before["tail_seal"] is not None and (turns > 0 or was_cut):
        index.set_meta(MISSING + task_id, json.dumps({"turns": max(0, turns), "seal": before["tail_seal"]}))


def _still_there(reader: TaskReader, row: Row) -> bool:
    """Whether the file still begins with what was taken in: the last seal stands where it stood."""
    end, seal = row["indexed_end"], row["tail_seal"]
    if seal is None or end > reader.size:
        return False
    return reader.fetch(max(0, end - SEAL_LENGTH), SEAL_LENGTH) == seal_line(seal)


def many_files(
    journal: Journal, index: Index, names: Sequence[TaskName]
) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Reads many files with all cores. Yields, batch by batch, how many there were and which could not be fully read."""
    jobs = [(str(journal.layout.path(name)), name.id, name.file_path) for name in names]
    for batch in projected_files(jobs):
        with index.transaction():
            index.put_new(batch.rows)
        yield batch.files, batch.problems


# Many files at once, with all cores: files in, rows out, in batches

Job = tuple[str, str, str]
"""Path, task id, path as the index says it."""
BATCH: Final = 256
_WORTH_A_POOL: Final = 1_000


@dataclass(slots=True)
class Batch:
    """What some files gave."""

    files: int = 0
    rows: Bulk = field(default_factory=Bulk)
    problems: list[tuple[str, str]] = field(default_factory=list)


def project_file(job: Job, batch: Batch) -> None:
    """All rows of one file. Never raises: a file that cannot be read is a problem, not the end."""
    path, task_id, file_path = job
    batch.files += 1
    batch.rows.ids.append(task_id)
    projector = Projector(task_id, file_path)
    try:
        with open_reader(Path(path)) as reader:
            parts = [projector.take(located(record, reader.fetch)) for record in reader.records()]
            projector.row["file_size"], projector.row["file_mtime_ns"] = reader.stat()
            batch.problems += [(task_id, str(problem)) for problem in reader.problems[:1]]
    except (RawkoError, ValueError, OverflowError, RecursionError) as error:
        batch.problems.append((task_id, str(error)))
        return
    batch.rows.add(projector, merged(parts))


def _project_some(jobs: Sequence[Job]) -> Batch:
    batch = Batch()
    # Everything that is made here is kept until the batch is done: there is nothing to collect, and looking costs a third.
    collecting = gc.isenabled()
    gc.disable()
    try:
        for job in jobs:
            project_file(job, batch)
    finally:
        if collecting:
            gc.enable()
    return batch


def projected_files(jobs: Sequence[Job]) -> Iterator[Batch]:
    """Batches in the order of the jobs. A pool is used when it is worth its start."""
    batches = [jobs[start : start + BATCH] for start in range(0, len(jobs), BATCH)]
    cores = os.cpu_count() or 1
    if len(jobs) < _WORTH_A_POOL or cores < 2:
        for batch in batches:
            yield _project_some(batch)
        return
    import multiprocessing  # a catch-up of a few files needs no pool

    # Forking is quick and safe here (no threads); elsewhere a fresh interpreter is started.
    method = "fork" if sys.platform == "linux" else "spawn"
    with multiprocessing.get_context(method).Pool(cores) as pool:
        yield from pool.imap(_project_some, batches)
