"""Bringing other agents' sessions into projects: each once, again only what is new, and their own files never written to."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from rawko_state.backends.bringing import bring
from rawko_state.backends.local import LocalStore
from rawko_state.backends.secrets import redactor_for
from rawko_state.config.project import find_project
from rawko_state.errors import IllegalMove, NoProject, RawkoError
from rawko_state.exchange.grouping import IMPORTED, Grouping
from rawko_state.exchange.neutral import Session, Trouble
from rawko_state.exchange.sources import sessions
from rawko_state.index.projection import Bulk
from rawko_state.index.userdb import Imported, UserState
from rawko_state.journal.journal import Journal
from rawko_state.journal.layout import TaskName, name_for
from rawko_state.model.status import FINISHED
from rawko_state.redact.redactor import Redactor

_LETTERS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID: Final = 8
_SOME: Final = 64
"""So many sessions are brought in before the index hears of them."""
_WORTH_A_POOL: Final = 8
_TROUBLE: Final = (RawkoError, OSError, ValueError, RecursionError, LookupError, MemoryError)


@dataclass(slots=True)
class Report:
    """What an import came to."""

    new: list[str] = field(default_factory=list)
    grown: list[str] = field(default_factory=list)
    same: int = 0
    elsewhere: int = 0
    """Sessions of other projects."""
    empty: int = 0
    wrong: list[Trouble] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    """Records of a kind that is not known: kept, and counted."""


def task_id(source: str, key: str) -> str:
    """The same for the same session, on every machine."""
    number = int.from_bytes(hashlib.sha256(f"{source}:{key}".encode("utf-8", "surrogateescape")).digest()[:8], "big")
    digits = ""
    for _ in range(_ID):
        number, digit = divmod(number, 36)
        digits += _LETTERS[digit]
    return digits


@dataclass(frozen=True, slots=True)
class Belonging:
    """Which sessions are of a project: run in one of its folders, or in a clone of its repository."""

    roots: tuple[str, ...]
    remotes: frozenset[str] = frozenset()
    everywhere: bool = False

    def target(self, session: Session, values: dict[str, str]) -> str | None:
        """The project that a session goes to."""
        cwd = values.get("cwd") or (str(session.folder) if session.folder is not None else None)
        if self.everywhere:
            return _project_of(cwd) or self.roots[0]
        if cwd is not None and any(cwd == root or cwd.startswith(root.rstrip("/") + "/") for root in self.roots):
            return self.roots[0]
        repo = values.get("repo")
        return self.roots[0] if repo is not None and plain_remote(repo) in self.remotes else None


def _project_of(cwd: str | None) -> str | None:
    if cwd is None or not os.path.isdir(cwd):
        return None
    try:
        return str(find_project(Path(cwd)))
    except NoProject:
        return None


def plain_remote(url: str) -> str:
    """The same for the ways in which one repository's address is written."""
    url = url.strip().removesuffix("/").removesuffix(".git")
    for prefix in ("https://", "http://", "ssh://", "git://"):
        url = url.removeprefix(prefix)
    user, at, rest = url.partition("@")
    url = rest if at and "/" not in user else url
    return url.replace(":", "/", 1).lower()


@dataclass(frozen=True, slots=True)
class _Job:
    session: Session
    belonging: Belonging
    dry_run: bool
    pack: bool


@dataclass(slots=True)
class _Done:
    """What a worker made of one session."""

    session: Session
    root: str | None = None
    task: str | None = None
    rows: Bulk | None = None
    wrong: list[str] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    is_empty: bool = False
    version: str | None = None


_places: dict[str, tuple[Journal, Redactor]] = {}


def _place(root: str) -> tuple[Journal, Redactor]:
    if root not in _places:
        _places[root] = (Journal(Path(root)), redactor_for(Path(root), lambda message: None))
        _places[root][0].layout.make()
    return _places[root]


def _brought(job: _Job) -> _Done:
    """One new session, in whichever process. Never raises: a file that cannot be read is told of, not the end."""
    session, done = job.session, _Done(job.session)
    try:
        grouping = Grouping(session, 0, Path(job.belonging.roots[0]), done.wrong)
        if grouping.is_empty:
            done.is_empty = True
            return done
        done.root = job.belonging.target(session, grouping.facts.values)
        if done.root is None:
            return done
        done.task = task_id(session.source, session.key)
        done.version = grouping.facts.values.get("version")
        if job.dry_run:
            return done
        journal, redactor = _place(done.root)
        created = grouping.facts.first or datetime.fromtimestamp(session.path.stat().st_mtime, timezone.utc)
        parent = session.parent or grouping.facts.values.get("parent")
        header = grouping.header(done.task, task_id(session.source, parent) if parent else None, created)
        name = name_for(created, done.task)
        done.rows = bring(journal, redactor, name, grouping.new(header), _taken(journal, name), pack=job.pack)
        done.unknown = grouping.facts.unknown
        if done.rows is None:
            done.wrong.append(f"there is a task {done.task} already, from somewhere else")
    except _TROUBLE as error:
        done.wrong.append(str(error) or type(error).__name__)
        done.rows = None
    return done


def _taken(journal: Journal, name: TaskName) -> Callable[[str], bool]:
    """Whether the file of a session is there, in either form."""
    paths = [journal.layout.path(replace(name, packed=packed)) for packed in (False, True)]
    return lambda task: any(path.exists() for path in paths)


def import_sessions(
    store: LocalStore,
    source: str,
    paths: Sequence[Path],
    *,
    belonging: Belonging,
    since: datetime | None = None,
    dry_run: bool = False,
    pack: bool = False,
    step: Callable[[int, int], None] | None = None,
) -> Report:
    """Everything of a source that is new. Can be stopped and called again at any time."""
    report = Report()
    with UserState() as user:
        work = _Import(store, source, belonging, dry_run, pack, user, report)
        found = [each for each in sessions(source, paths, store.root, report.wrong) if _is_since(each, since)]
        fresh = [each for each in found if not work.is_known(each)]
        done = len(found) - len(fresh)
        new = [each for each in fresh if f"{source}:{each.key}" not in work.tasks]
        for each in fresh:
            if f"{source}:{each.key}" in work.tasks:
                work.grow(each)
                done += 1
                if step is not None:
                    step(done, len(found))
        work.bring_all(new, lambda count: step(done + count, len(found)) if step is not None else None)
        work.remember()
    return report


def _is_since(session: Session, since: datetime | None) -> bool:
    return since is None or datetime.fromtimestamp(session.path.stat().st_mtime, timezone.utc) >= since


class _Import:
    def __init__(
        self,
        store: LocalStore,
        source: str,
        belonging: Belonging,
        dry_run: bool,
        pack: bool,
        user: UserState,
        report: Report,
    ) -> None:
        self._store, self._source, self._belonging, self._dry_run = store, source, belonging, dry_run
        self._pack = pack
        self._user, self._report = user, report
        # What belongs where depends on how it is asked.
        self._scope = f"{store.root}{' *' if belonging.everywhere else ''}"
        self._known = user.imported(self._scope, source)
        self._seen: dict[str, Imported] = {}
        self.tasks = store.by_source(f"{source}:")
        self._stores: dict[str, LocalStore] = {str(store.root): store}

    def is_known(self, session: Session) -> bool:
        """Whether its file is as it was when it was last looked at."""
        known = self._known.get(session.key)
        if known is None or (known.size, known.mtime_ns) != _stat(session):
            return False
        if known.task is None:
            self._report.elsewhere += 1
        else:
            self._report.same += 1
        return True

    def _see(self, session: Session, task: str | None) -> None:
        self._seen[session.key] = Imported(*_stat(session), task)

    def remember(self) -> None:
        if self._seen and not self._dry_run:
            self._user.saw_imported(self._scope, self._source, self._seen.items())

    def bring_all(self, new: Sequence[Session], told: Callable[[int], None]) -> None:
        jobs = [_Job(each, self._belonging, self._dry_run, self._pack) for each in new]
        waiting: list[_Done] = []
        versions: set[str] = set()
        try:
            for count, done in enumerate(_all_brought(jobs), 1):
                self._take(done)
                versions |= {done.version} if done.version else set()
                waiting.append(done)
                if len(waiting) >= _SOME:
                    self._index(waiting)
                    waiting = []
                told(count)
        finally:
            self._index(waiting)
            for version in versions:
                self._user.saw_agent(self._source, version)

    def _take(self, done: _Done) -> None:
        report, session = self._report, done.session
        report.wrong += [Trouble(session.path, text) for text in done.wrong]
        report.unknown.update(done.unknown)
        if done.is_empty:
            report.empty += 1
        elif done.root is None and not done.wrong:
            report.elsewhere += 1
            self._see(session, None)
        elif done.task is not None and (done.rows is not None or self._dry_run):
            report.new.append(done.task)
            self._see(session, done.task)

    def _index(self, done: Sequence[_Done]) -> None:
        """Their rows are there already; if the index cannot take them, the next look at the folder does."""
        for root in {each.root for each in done if each.root is not None and each.rows is not None}:
            store = self._stores.setdefault(root, LocalStore(root, warn=lambda message: None))
            try:
                index = store.catalogue.index()
                with index.transaction():
                    for each in done:
                        if each.root == root and each.rows is not None:
                            index.put_new(each.rows)
            except RawkoError:
                continue

    def grow(self, session: Session) -> None:
        """What has come to a session that is here."""
        report, wrong = self._report, list[str]()
        task = self.tasks[f"{self._source}:{session.key}"]
        try:
            grew, facts = grow(self._store, task, session, wrong, dry_run=self._dry_run)
            report.unknown.update(facts)
            if grew:
                report.grown.append(task)
            else:
                report.same += 1
            self._see(session, task)
        except _TROUBLE as error:
            wrong.append(str(error) or type(error).__name__)
        report.wrong += [Trouble(session.path, text) for text in wrong]


def grow(
    store: LocalStore, task: str, session: Session, wrong: list[str], *, ended: bool = True, dry_run: bool = False
) -> tuple[bool, Counter[str]]:
    """Appends what has come to a session since it was last brought in. Whether there was anything, and the kinds not known."""
    note = store.last_note(task, IMPORTED)
    place = note.data.get("place") if note is not None and isinstance(note.data, dict) else 0
    start = place if isinstance(place, int) else 0
    if session.path.suffix == ".jsonl" and session.path.stat().st_size < start:
        raise IllegalMove(task, "longer than its session's file", "that: the file was replaced by a shorter one")
    grouping = Grouping(session, start, store.root, wrong, ended=ended)
    if grouping.is_empty or dry_run:
        return not grouping.is_empty, Counter()
    with store.attach(task) as opened:
        at = grouping.facts.first or datetime.now(timezone.utc)
        running = opened.state.status not in FINISHED
        before = opened.state.turns
        records = grouping.more(at, running=running)
        for record in records:
            if not ended and running and len(record) == 1 and grouping.facts.place == start:
                continue  # nothing but the note that says how far, and that is where it was
            opened.add(record)
        grew = opened.state.turns > before or not running
    return grew, grouping.facts.unknown


def start(
    store: LocalStore, session: Session, wrong: list[str], *, ended: bool, parent: str | None = None
) -> str | None:
    """The task of a session that is not here yet; None while there is nothing to say of it."""
    grouping = Grouping(session, 0, store.root, wrong, ended=ended)
    if grouping.is_empty or (grouping.prompt is None and not ended):
        return None
    task = task_id(session.source, session.key)
    created = grouping.facts.first or datetime.now(timezone.utc)
    above = session.parent or grouping.facts.values.get("parent")
    header = grouping.header(task, parent or (task_id(session.source, above) if above else None), created)
    name = name_for(created, task)
    store.journal.layout.make()
    rows = bring(store.journal, store.redactor, name, grouping.new(header), _taken(store.journal, name))
    if rows is None:
        raise RawkoError(f"there is a task {task} already, from somewhere else")
    try:
        index = store.catalogue.index()
        with index.transaction():
            index.put_new(rows)
    except RawkoError:
        pass  # the next look at the folder sees it
    return task


def _stat(session: Session) -> tuple[int, int]:
    found = os.stat(session.path)
    log = session.path.with_name(session.path.name + "-wal")
    if session.path.suffix == ".db" and log.exists():
        more = os.stat(log)
        return found.st_size + more.st_size, max(found.st_mtime_ns, more.st_mtime_ns)
    return found.st_size, found.st_mtime_ns


def _all_brought(jobs: Sequence[_Job]) -> Iterable[_Done]:
    cores = os.cpu_count() or 1
    if len(jobs) < _WORTH_A_POOL or cores < 2:
        return map(_brought, jobs)
    return _by_many(jobs, cores)


def _by_many(jobs: Sequence[_Job], cores: int) -> Iterator[_Done]:
    import multiprocessing

    method = "fork" if sys.platform == "linux" else "spawn"
    with multiprocessing.get_context(method).Pool(cores) as pool:
        yield from pool.imap_unordered(_brought, jobs, chunksize=4)
