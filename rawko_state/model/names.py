"""The names of task files. A file's name takes precedence over its header."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone

PLAIN, PACKED = ".task", ".task.gz"
_NAME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}-[0-9]{2}-[0-9]{2})-([0-9A-Za-z]{1,64})\.task(\.gz)?")


@dataclass(frozen=True, slots=True, order=True)
class TaskName:
    """A parsed file name; it takes precedence over the header."""

    stamp: str
    id: str
    packed: bool = False
    """If a task exists in both forms (a process was killed while packing it), the plain one counts."""

    @property
    def filename(self) -> str:
        return f"{self.stamp}-{self.id}{PACKED if self.packed else PLAIN}"

    @property
    def file_path(self) -> str:
        """The path as stored in index rows: relative to the project, so that a project can be moved."""
        return f".rawko/state/tasks/{self.filename}"

    @property
    def created(self) -> datetime | None:
        try:
            return datetime.strptime(self.stamp, "%Y-%m-%dT%H-%M-%S").replace(tzinfo=timezone.utc)
        except ValueError:
            return None


def parse_name(filename: str) -> TaskName | None:
    match = _NAME.fullmatch(filename)
    return TaskName(match[1], match[2], match[3] is not None) if match else None


def name_for(created: datetime, task_id: str) -> TaskName:
    return TaskName(created.astimezone(timezone.utc).strftime("%Y-%m-%dT%H-%M-%S"), task_id)
