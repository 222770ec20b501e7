"""Reading many task files at once, with all cores: files in, rows out, in batches."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rawko_state.errors import RawkoError
from rawko_state.index.projection import Projector, Rows, laid, merged
from rawko_state.journal.reader import TaskReader

Job = tuple[str, str, str]
"""Path, task id, path as the index says it."""
BATCH: Final = 256
_WORTH_A_POOL: Final = 1_000


@dataclass(slots=True)
class Done:
    task_id: str
    projector: Projector | None
    rows: Rows
    problem: str | None = None


def project_file(job: Job) -> Done:
    """All rows of one file. Never raises: a file that cannot be read is a problem, not the end."""
    path, task_id, file_path = job
    projector = Projector(task_id, file_path)
    try:
        with TaskReader(Path(path)) as reader:
            stat = reader.stat()
            parts = [projector.take(laid(record)) for record in reader.records()]
            faults = [str(problem) for problem in reader.problems]
    except RawkoError as error:
        return Done(task_id, None, Rows(), str(error))
    projector.row["file_size"], projector.row["file_mtime_ns"] = stat
    return Done(task_id, projector, merged(parts), faults[0] if faults else None)


def _project_some(jobs: Sequence[Job]) -> list[Done]:
    return [project_file(job) for job in jobs]


def projected_files(jobs: Sequence[Job]) -> Iterator[list[Done]]:
    """Batches in the order of the jobs. A pool is used when it is worth its start."""
    batches = [jobs[start : start + BATCH] for start in range(0, len(jobs), BATCH)]
    cores = os.cpu_count() or 1
    if len(jobs) < _WORTH_A_POOL or cores < 2:
        for batch in batches:
            yield _project_some(batch)
        return
    # Forking is quick and safe here (no threads); elsewhere a fresh interpreter is started.
    method = "fork" if sys.platform == "linux" else "spawn"
    with multiprocessing.get_context(method).Pool(cores) as pool:
        yield from pool.imap(_project_some, batches)
