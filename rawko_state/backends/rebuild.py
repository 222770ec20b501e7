"""Reading many task files at once, with all cores: files in, rows out, in batches."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rawko_state.errors import RawkoError
from rawko_state.index.projection import Bulk, Projector, laid, merged
from rawko_state.journal.reader import TaskReader

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
        with TaskReader(Path(path)) as reader:
            parts = [projector.take(laid(record, reader.fetch)) for record in reader.records()]
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
    import multiprocessing

    # Forking is quick and safe here (no threads); elsewhere a fresh interpreter is started.
    method = "fork" if sys.platform == "linux" else "spawn"
    with multiprocessing.get_context(method).Pool(cores) as pool:
        yield from pool.imap(_project_some, batches)
