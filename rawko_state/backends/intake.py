"""Taking task files into an index: one file that has grown or changed, or many at once.

Apart from the catalogue, as a query that finds nothing new needs none of it, and it costs time to import.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rawko_state.backends.rebuild import projected_files
from rawko_state.format.seal import SEAL_LENGTH, seal_line
from rawko_state.index.database import Index
from rawko_state.index.projection import Laid, Placed, Projector, Row, Rows, laid
from rawko_state.journal.chain import Checkpoint
from rawko_state.journal.journal import Journal
from rawko_state.journal.layout import TaskName
from rawko_state.journal.reader import TaskReader
from rawko_state.model.appended import Appended


def file_path(name: TaskName) -> str:
    """As the index says it: relative to the project, so that a project may be moved."""
    return f".rawko/state/tasks/{name.filename}"


def checkpoint_of(name: TaskName, row: Row) -> Checkpoint | None:
    """Where the index knows a file up to, for a writer that goes on from there."""
    if row["tail_seal"] is None or row["file_path"] != file_path(name) or row["damaged"]:
        return None
    state = Projector(name.id, row["file_path"], row).state
    return Checkpoint(row["indexed_end"], row["tail_seal"], row["tail_offset"], state)


def put(index: Index, projector: Projector, records: Iterable[Laid], stat: tuple[int, int]) -> None:
    """The rows of some records. Inside a transaction."""
    for record in records:
        rows = projector.take(record)
        projector.row["file_size"], projector.row["file_mtime_ns"] = stat
        index.put(projector, rows)


def new_file(index: Index, name: TaskName, reader: TaskReader) -> Projector:
    """A file that nobody knew."""
    projector = Projector(name.id, file_path(name))
    for record in reader.records():
        put(index, projector, [laid(record, reader.fetch)], reader.stat())
    return projector


def appended(
    journal: Journal, index: Index, name: TaskName, done: Appended, stat: tuple[int, int], projector: Projector | None
) -> Projector:
    """What was just appended: from memory, if the index is just where the append began, else from the file."""
    if projector is not None and done.alone and projector.end == done.offset:
        after = (projector.end, projector.row["tail_seal"])
        blocks = tuple(Placed(*block) for block in done.blocks)
        rows = projector.take(Laid("sealed", done.offset, done.end - done.offset, done.seal, done.parent, 0, blocks))
        projector.row["file_size"], projector.row["file_mtime_ns"] = stat
        if index.put(projector, rows, after=after):
            return projector
    return one_file(journal, index, name, grown=True)


def one_file(journal: Journal, index: Index, name: TaskName, *, grown: bool) -> Projector:
    """What has been added to a file, if a writer's mark says that it has ``grown``, else all of it. Inside a transaction, as
    two processes may come to it at once."""
    row = index.row(name.id)
    with journal.reader(name) as reader:
        stat = reader.stat()
        if grown and row is not None and row["file_path"] == file_path(name) and _still_there(reader, row):
            projector = Projector(name.id, row["file_path"], row)
            scan = reader.scan((row["indexed_end"], row["tail_seal"]))
        else:
            index.forget(name.id)
            projector = Projector(name.id, file_path(name))
            scan = reader.scan()
        # Also when there is no record at all: the row says that the file was looked at as it is now.
        projector.row["file_size"], projector.row["file_mtime_ns"] = stat
        index.put(projector, Rows())
        for record in scan:
            put(index, projector, [laid(record, reader.fetch)], stat)
    return projector


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
    jobs = [(str(journal.layout.path(name)), name.id, file_path(name)) for name in names]
    for batch in projected_files(jobs):
        with index.transaction():
            index.put_new(batch.rows)
        yield batch.files, batch.problems
