"""What a task file may be called. The name decides, whatever the header says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone

PLAIN, PACKED = ".task", ".task.gz"
_NAME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}-[0-9]{2}-[0-9]{2})-([0-9A-Za-z]{1,64})\.task(\.gz)?")


@dataclass(frozen=True, slots=True, order=True)
class TaskName:
    """What a file name says; it decides, whatever the header says."""

    stamp: str
    id: str
    packed: bool = False
    """Of a task in both forms (a process was killed between the two), the plain one counts."""

    @property
    def filename(self) -> str:
        return f"{self.stamp}-{self.id}{PACKED if self.packed else PLAIN}"

    @property
    def file_path(self) -> str:
        """As rows name it: relative to the project, so that a project may be moved."""
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
