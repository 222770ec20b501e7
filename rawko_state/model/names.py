"""The names of task files. A file's name takes precedence over its header."""

from __future__ import annotations

from datetime import datetime, timezone

from rawko_state.errors import InvalidValue
from rawko_state.late import late
from rawko_state.model.frozen import Frozen

PLAIN, PACKED = ".task", ".task.gz"
_NAME = late(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}-[0-9]{2}-[0-9]{2})-([0-9A-Za-z]{1,64})\.task(\.gz)?")

_OWN_ID = late(r"[0-9a-z]{6,64}")
_SOURCE_LIMIT = 500


def checked_id(task_id: str) -> str:
    """An id that a caller chose. Lower case, because two ids must differ on every file system; not too short, because Windows
    reserves some short file names, and people type the beginning of an id."""
    if not isinstance(task_id, str) or not _OWN_ID.fullmatch(task_id):
        raise InvalidValue(f"Not an id for a task: {task_id!r}. Use 6 to 64 lower-case letters (a-z) and digits.")
    return task_id


def checked_source(source: str) -> str:
    """A caller's own key of a task. It is a line of the header, and is looked up exactly."""
    is_text = isinstance(source, str) and source != "" and source == source.strip()
    if not is_text or not source.isprintable() or len(source) > _SOURCE_LIMIT:
        raise InvalidValue(
            f"Not a source: {repr(source)[:100]}. Use 1 to {_SOURCE_LIMIT} printable characters, without spaces at the ends."
        )
    return source


class TaskName(Frozen):
    """A parsed file name; it takes precedence over the header.

    >>> store.find("fix0001").filename.endswith("-fix0001.task")
    True
    """

    stamp: str
    id: str
    packed: bool = False
    """If a task exists in both forms (a process was killed while packing it), the plain one counts."""

    def __lt__(self, other: TaskName) -> bool:
        return (self.stamp, self.id, self.packed) < (other.stamp, other.id, other.packed)

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
