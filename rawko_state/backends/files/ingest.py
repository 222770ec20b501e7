"""Adds task files to an index: one file that has grown or changed, or many at once."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rawko_state.backends.files.workers import cores, on_all_cores
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
    """How far the index knows a file, for a writer to continue from."""
    if row["tail_seal"] is None or row["file_path"] != name.file_path or row["damaged"]:
        return None
    state = Projector(name.id, row["file_path"], row).state
    return Checkpoint(row["indexed_end"], row["tail_seal"], row["tail_offset"], state)


def put(index: Index, projector: Projector, records: Iterable[LocatedRecord], stat: tuple[int, int]) -> None:
    """Writes the rows of some records. Call inside a transaction."""
    for record in records:
        rows = projector.take(record)
        projector.row["file_size"], projector.row["file_mtime_ns"] = stat
        index.put(projector, rows)


def new_file(index: Index, name: TaskName, reader: TaskReader) -> Projector:
    """Indexes a file that is not in the index yet."""
    projector = Projector(name.id, name.file_path)
    for record in reader.records():
        put(index, projector, [located(record, reader.fetch)], reader.stat())
    return projector


def appended(
    journal: Journal,
    index: Index,
    name: TaskName,
    done: Sequence[Appended],
    stat: tuple[int, int],
    projector: Projector | None,
) -> Projector:
    """Indexes appends that follow one another: from memory if the index is exactly where the first began and nobody else has
    appended, otherwise from the file."""
    if projector is not None and _follow_one_another(projector.end, done):
        after = (projector.end, projector.row["tail_seal"])
        rows = [
            projector.take(LocatedRecord("sealed", offset, end - offset, seal, parent, 0, blocks))
            for seal, parent, offset, end, _, blocks, _ in done
        ]
        # The file may hold more by now, which others have appended: it must not look as if that was indexed too.
        projector.row["file_size"], projector.row["file_mtime_ns"] = done[-1].end, stat[1]
        if index.put(projector, rows[0] if len(rows) == 1 else merged(rows), after=after):
            return projector
    return one_file(journal, index, name, grown=True)


def _follow_one_another(end: int, done: Iterable[Appended]) -> bool:
    """Whether nothing else is between these records, the first of which begins at ``end``."""
    for each in done:
        if not each.alone or each.offset != end:
            return False
        end = each.end
    return True


def one_file(journal: Journal, index: Index, name: TaskName, *, grown: bool) -> Projector:
    """Indexes only the new records if a writer's mark says the file has ``grown``, otherwise the whole file. Call inside a
    transaction, because two processes may do this at once."""
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
        # Even without any record: the row says that the file was read in its current state.
        projector.row["file_size"], projector.row["file_mtime_ns"] = stat
        index.put(projector, NewRows())
        for record in scan:
            put(index, projector, [located(record, reader.fetch)], stat)
    if row is not None:
        _note_missing(index, row, projector, was_cut=projector.row["tail_seal"] in old)
    return projector


MISSING: Final = "missing "
"""Key prefix, before the task's id, for content that a file has lost. Reported until it is back, or the loss is accepted."""


def _note_missing(index: Index, before: Row, now: Projector, *, was_cut: bool) -> None:
    """Notes content that the index knew and the file lost: it was truncated, or replaced by a shorter one."""
    task_id, turns = before["id"], before["turns"] - now.row["turns"]
    known = index.meta(MISSING + task_id)
    if known is not None and json.loads(known)["seal"] in index.seals(task_id):
        index.drop_meta(MISSING + task_id)  # it is back
    elif known is None and before["tail_seal"] is not None and (turns > 0 or was_cut):
        index.set_meta(MISSING + task_id, json.dumps({"turns": max(0, turns), "seal": before["tail_seal"]}))


def _still_there(reader: TaskReader, row: Row) -> bool:
    """Whether the indexed part of the file is unchanged: the last seal is where it was."""
    end, seal = row["indexed_end"], row["tail_seal"]
    if seal is None or end > reader.size:
        return False
    return reader.fetch(max(0, end - SEAL_LENGTH), SEAL_LENGTH) == seal_line(seal)


def many_files(
    journal: Journal, index: Index, names: Sequence[TaskName]
) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Indexes many files on all cores. Yields for each batch its file count and the files that could not be fully read."""
    jobs = [(str(journal.layout.path(name)), name.id, name.file_path) for name in names]
    for batch in projected_files(jobs):
        with index.transaction():
            index.put_new(batch.rows)
        yield batch.files, batch.problems


# Project many files on all cores, in batches

Job = tuple[str, str, str]
"""Path, task id, path as stored in the index."""
BATCH: Final = 256
_WORTH_A_POOL: Final = 1_000


@dataclass(slots=True)
class Batch:
    """The result for some files."""

    files: int = 0
    rows: Bulk = field(default_factory=Bulk)
    problems: list[tuple[str, str]] = field(default_factory=list)


def project_file(job: Job, batch: Batch) -> None:
    """All rows of one file. Never raises: an unreadable file is reported as a problem."""
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
    # All objects here live until the batch is done. The garbage collector would find nothing, at the cost of a third of the time.
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
    """Batches in the order of the jobs. Uses a pool when that is worth the startup time."""
    batches = [jobs[start : start + BATCH] for start in range(0, len(jobs), BATCH)]
    if len(jobs) < _WORTH_A_POOL or cores() < 2:
        for batch in batches:
            yield _project_some(batch)
        return
    yield from on_all_cores(_project_some, batches)
