"""Imports other agents' sessions into projects: each once, then only what is new. Never writes to their files."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rawko_state.backends.select import open_files, user_state
from rawko_state.config.project import find_project
from rawko_state.errors import InvalidValue, NoProject, RawkoError, TaskExists
from rawko_state.exchange.dedupe import one_each
from rawko_state.exchange.forks import Fork, forks, placed
from rawko_state.exchange.linking import progress, recorded_until
from rawko_state.exchange.sources import sessions, siblings
from rawko_state.exchange.transcript import Session, Trouble
from rawko_state.exchange.turns import Facts, TurnBuilder
from rawko_state.format.parts import read_parent
from rawko_state.format.values import write_time
from rawko_state.model.entries import Entry, Json, Parent, Turn
from rawko_state.model.frozen import Frozen
from rawko_state.model.names import name_for
from rawko_state.model.status import ENDED, INTERRUPTED
from rawko_state.store.contract import BulkWriter, Store
from rawko_state.store.hosting import Imported
from rawko_state.tasks.task import Task

if TYPE_CHECKING:
    from rawko_state.store.hosting import UserRegistry

_LETTERS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID: Final = 8
_SOME: Final = 64
"""The number of sessions to import before the index is updated."""
_WORTH_A_POOL: Final = 8
_AT_ONCE: Final = 32
_BYTES_AT_ONCE: Final = 8 << 20
"""Sessions that are written together, with one sync for all: at most so many, of about so many bytes."""
_LOOK_EVERY: Final = 1.0


@dataclass(slots=True)
class Report:
    """The result of an import."""

    new: list[str] = field(default_factory=list)
    grown: list[str] = field(default_factory=list)
    same: int = 0
    elsewhere: int = 0
    """Sessions of other projects."""
    empty: list[Path] = field(default_factory=list)
    """Empty files: not an error, but not imported either."""
    wrong: list[Trouble] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    """Records of unknown kinds: kept, and counted."""


def task_id(source: str, key: str) -> str:
    """The same id for the same session on every machine."""
    number = int.from_bytes(hashlib.sha256(f"{source}:{key}".encode("utf-8", "surrogateescape")).digest()[:8], "big")
    digits = ""
    for _ in range(_ID):
        number, digit = divmod(number, 36)
        digits += _LETTERS[digit]
    return digits


class Belonging(Frozen):
    """Which sessions belong to a project: those run in one of its folders, or in a clone of its repository."""

    roots: tuple[str, ...]
    remotes: frozenset[str] = frozenset()
    everywhere: bool = False

    def target(self, session: Session, values: dict[str, str]) -> str | None:
        """The project that a session goes to."""
        cwd = values.get("cwd") or (str(session.folder) if session.folder is not None else None)
        if self.everywhere:
            return _project_of(cwd) or self.roots[0]
        if session.source in ("jsonl", "atif"):
            return self.roots[0]  # the user names its files explicitly
        if cwd is not None and any(_is_below(place, root) for place in _ways(cwd) for root in self.roots):
            # The sessions of a nested project belong to that project.
            nested = _project_of(cwd)
            inside = nested is not None and nested not in self.roots and _is_below(nested, self.roots[0])
            return None if inside else self.roots[0]
        repo = values.get("repo")
        return self.roots[0] if repo is not None and plain_remote(repo) in self.remotes else None


def _ways(cwd: str) -> tuple[str, ...]:
    """A folder as recorded, and with symlinks resolved."""
    return (os.path.normpath(cwd), os.path.realpath(cwd)) if os.path.isabs(cwd) else ()


def _is_below(place: str, root: str) -> bool:
    return place == root or place.startswith(root.rstrip("/") + "/")


def _project_of(cwd: str | None) -> str | None:
    if cwd is None or not os.path.isdir(cwd):
        return None
    try:
        return str(find_project(Path(cwd)))
    except NoProject:
        return None


def plain_remote(url: str) -> str:
    """A normal form for the different ways to write a repository's address."""
    url = url.strip().removesuffix("/").removesuffix(".git")
    for prefix in ("https://", "http://", "ssh://", "git://"):
        url = url.removeprefix(prefix)
    user, at, rest = url.partition("@")
    url = rest if at and "/" not in user else url
    return url.replace(":", "/", 1).lower()


class _Job(Frozen):
    session: Session
    belonging: Belonging
    dry_run: bool
    pack: bool
    fork: Fork | None = None
    size: int = 0


@dataclass(slots=True)
class _Done:
    """A worker's result for one session. What it wrote is recorded once its writer has committed it."""

    session: Session
    root: str | None = None
    task: str | None = None
    rows: object | None = None
    """The rows to add to the index."""
    wrong: list[str] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    is_empty: bool = False
    copy_of: str | None = None
    """The task that has all of it."""
    is_here: bool = False
    """A task for it already exists, and may need new turns."""
    is_new: bool = False
    version: str | None = None


_writers: dict[str, BulkWriter] = {}
"""The writers of this process, by project folder."""
_moved: dict[str, str] = {}
"""Sessions that a task of another name records: one that ran them, or that was handed over to them."""


def _writer(root: str) -> BulkWriter:
    if root not in _writers:
        writer = open_files(root).bulk_writer()
        assert writer is not None
        _writers[root] = writer
    return _writers[root]


def _brought(job: _Job, elsewhere: Store | None = None) -> _Done:
    """Imports one new session, in any process, into the project's files or into the store ``elsewhere``. Never raises: a file
    that cannot be read is reported, and the import continues."""
    session, done = job.session, _Done(job.session)
    try:
        fork = job.fork
        if fork is not None and fork.is_copy:
            done.copy_of = _task_of(session.source, fork.parent)
            return done
        start, loose, spent = (fork.place, fork.loose, fork.spent) if fork is not None else (0, (), None)
        grouping = TurnBuilder(session, start, job.belonging.roots, done.wrong, loose=loose, spent=spent)
        if grouping.is_empty:
            done.is_empty = True
            return done
        done.root = job.belonging.target(session, grouping.facts.values)
        if done.root is None:
            return done
        grouping.roots = (*grouping.roots, done.root)
        done.task = task_id(session.source, session.key)
        done.version = grouping.facts.values.get("version")
        if job.dry_run:
            return done
        created = grouping.facts.first or datetime.fromtimestamp(session.path.stat().st_mtime, timezone.utc)
        header = grouping.header(done.task, _parent(session, grouping, fork), created)
        name = name_for(created, done.task)
        if elsewhere is not None:
            done.is_here = not elsewhere.add_task(name, grouping.new(header))
            done.is_new = not done.is_here
        else:
            done.rows = _writer(done.root).write(name, grouping.new(header), pack=job.pack)
        done.unknown = grouping.facts.unknown
    except Exception as error:  # continue with the other sessions
        done.wrong.append(str(error) or type(error).__name__)
        done.rows = None
    return done


def import_sessions(
    store: Store,
    source: str,
    paths: Sequence[Path],
    *,
    belonging: Belonging,
    since: datetime | None = None,
    dry_run: bool = False,
    pack: bool = False,
    step: Callable[[int, int], None] | None = None,
) -> Report:
    """Imports everything new from a source. Can be stopped and called again at any time."""
    report = Report()
    with user_state() as user:
        work = _Import(store, source, belonging, dry_run, pack, user, report)
        all_found = one_each(sessions(source, paths, store.root, report.wrong), report.wrong)
        found = [each for each in work.looked_at(all_found) if since is None or work.changed(each) >= since]
        fresh = [each for each in found if not work.is_known(each)]
        done = len(found) - len(fresh)
        new = [each for each in fresh if f"{source}:{each.key}" not in work.tasks]
        new.sort(key=work.changed, reverse=True)  # what is looked for first is what was done last
        for each in fresh:
            if f"{source}:{each.key}" in work.tasks:
                work.grow(each)
                done += 1
                if step is not None:
                    step(done, len(found))
        work.add_all(
            new, forks(all_found, new), lambda count: step(done + count, len(found)) if step is not None else None
        )
        work.remember()
    return report


class _Import:
    def __init__(
        self,
        store: Store,
        source: str,
        belonging: Belonging,
        dry_run: bool,
        pack: bool,
        user: UserRegistry,
        report: Report,
    ) -> None:
        self._store, self._source, self._belonging, self._dry_run = store, source, belonging, dry_run
        self._pack = pack
        self._user, self._report = user, report
        # Which sessions belong where depends on the arguments.
        asked = repr((sorted(belonging.roots), sorted(belonging.remotes), belonging.everywhere))
        self._scope = f"{store.where} {hashlib.sha256(asked.encode('utf-8', 'replace')).hexdigest()[:12]}"
        self._known = user.imported(self._scope, source)
        self._seen: dict[str, Imported] = {}
        self._stats: dict[str, tuple[int, int]] = {}
        """Each file's stat from before it was read, so that data added during the read is noticed next time."""
        self.tasks = store.by_source(f"{source}:")
        self._there = set(self.tasks.values()) | {each.id for each in store.trash()}
        self._elsewhere = None if store.is_local else store
        self._stores: dict[str, Store] = {str(store.root): store}

    def _store_of(self, root: str) -> Store:
        """The store for the sessions of a project."""
        if self._elsewhere is not None:
            return self._elsewhere
        if root not in self._stores:
            self._stores[root] = open_files(root)
        return self._stores[root]

    def looked_at(self, found: Iterable[Session]) -> Iterator[Session]:
        for session in found:
            try:
                self._stats[session.key] = _stat(session)
            except OSError as error:
                self._report.wrong.append(Trouble(session.path, str(error.strerror)))
                continue
            yield session

    def changed(self, session: Session) -> datetime:
        """When its file was last changed."""
        return datetime.fromtimestamp(self._stats[session.key][1] / 1e9, timezone.utc)

    def is_known(self, session: Session) -> bool:
        """Whether its file is unchanged since the last import."""
        known = self._known.get(_key(session))
        if known is None or (known.size, known.mtime_ns) != self._stats[session.key]:
            return False
        if known.task is not None and known.task not in self._there and not self._belonging.everywhere:
            return False  # it was imported, and its task is gone
        if known.task is None:
            self._report.elsewhere += 1
        else:
            self._report.same += 1
        return True

    def _see(self, session: Session, task: str | None) -> None:
        self._seen[_key(session)] = Imported(*self._stats[session.key], task)

    def remember(self) -> None:
        if self._seen and not self._dry_run:
            with contextlib.suppress(RawkoError):  # then they are read again next time
                self._user.saw_imported(self._scope, self._source, self._seen.items())

    def add_all(self, new: Sequence[Session], copies: Mapping[str, Fork], step: Callable[[int], None]) -> None:
        jobs = [
            _Job(
                each,
                self._belonging,
                self._dry_run,
                self._pack,
                self._fork(copies.get(each.key)),
                self._stats[each.key][0],
            )
            for each in new
        ]
        waiting: list[_Done] = []
        versions: set[str] = set()
        _moved.clear()
        _moved.update(moved(self.tasks))
        try:
            for count, done in enumerate(_all_brought(jobs, self._elsewhere), 1):
                self._take(done)
                versions |= {done.version} if done.version else set()
                waiting.append(done)
                if len(waiting) >= _SOME:
                    self._index(waiting)
                    waiting = []
                step(count)
        finally:
            self._index(waiting)
            with contextlib.suppress(RawkoError):
                for version in versions:
                    self._user.saw_agent(self._source, version)

    def _fork(self, fork: Fork | None) -> Fork | None:
        return placed(self._store, self.tasks.get(f"{self._source}:{fork.parent}"), fork) if fork is not None else None

    def _take(self, done: _Done) -> None:
        report, session = self._report, done.session
        report.wrong += [Trouble(session.path, text) for text in done.wrong]
        report.unknown.update(done.unknown)
        if done.is_empty:
            report.empty += [session.path] if not done.wrong else []
        elif done.copy_of is not None:
            report.same += 1
            self._see(session, done.copy_of)
        elif done.is_here and done.root is not None and done.task is not None:
            self.grow(session, self._store_of(done.root), done.task)
        elif done.root is None and not done.wrong:
            report.elsewhere += 1
            self._see(session, None)
        elif done.task is not None and (done.is_new or self._dry_run):
            report.new.append(done.task)
            self._see(session, done.task)

    def _index(self, done: Sequence[_Done]) -> None:
        """Adds what the workers wrote to the index of each project."""
        for root in {each.root for each in done if each.root is not None and each.rows is not None}:
            _writer(root).index(each.rows for each in done if each.root == root and each.rows is not None)

    def grow(self, session: Session, store: Store | None = None, task: str | None = None) -> None:
        """Adds what is new in a session that was imported before, here or in another project."""
        report, wrong = self._report, list[str]()
        store, task = store or self._store, task or self.tasks[f"{self._source}:{session.key}"]
        try:
            roots = (*self._belonging.roots, str(store.root))
            grew, facts = grow(store, task, session, wrong, roots=roots, dry_run=self._dry_run)
            report.unknown.update(facts)
            if grew:
                report.grown.append(task)
            else:
                report.same += 1
            self._see(session, task)
        except Exception as error:  # continue with the other sessions
            wrong.append(str(error) or type(error).__name__)
        report.wrong += [Trouble(session.path, text) for text in wrong]


def grow(
    store: Store,
    task: str,
    session: Session,
    wrong: list[str],
    *,
    roots: Sequence[str] = (),
    ended: bool = True,
    is_alive: bool = False,
    asked: str | None = None,
    dry_run: bool = False,
) -> tuple[bool, Counter[str]]:
    """Appends what is new in a session since the last import. Returns whether there was anything, and the unknown kinds.
    ``asked``: the request, if the prompt says more than what a person asked for."""
    # Two processes that start from the same place would write the same turns.
    with store.import_lock():
        own, beside = progress(store, task, session)
        data = own or {}
        place = data.get("place")
        if own is None:
            place = recorded_until(store, task, session)
            data = _stood(session, place)
        start = place if isinstance(place, int) else 0
        if not session.is_marked(start, data.get("mark")):
            raise RawkoError(
                f"This is not the file that task {task} was imported from, or it was changed before byte {start}."
            )
        grouping = TurnBuilder(
            session, start, roots or (str(store.root),), wrong,
            ended=ended, is_alive=is_alive, before=data, beside=beside, asked=asked,
        )  # fmt: skip
        if dry_run:
            return not grouping.is_empty, Counter()
        interrupted = store.status(task) == INTERRUPTED
        with store.attach(task) as opened:
            running = opened.state.status not in ENDED
            if grouping.is_empty and (not (running and ended) or own is None):
                return False, Counter()  # it is as far as whoever runs it, or ran it, has recorded
            at = grouping.facts.first or datetime.now(timezone.utc)
            before = opened.state.turns
            requested = _requested(store, task, before) if running or not start else None
            for record in grouping.more(at, running=running, interrupted=interrupted, requested=requested):
                if not ended and running and len(record) == 1 and grouping.facts.place == start:
                    continue  # only the progress note, and it has not advanced
                added(opened, record)
            grew = opened.state.turns > before or not running
        return grew, grouping.facts.unknown


def _stood(session: Session, place: int) -> Mapping[str, Json]:
    """How a session stood at a place up to which it was recorded as it ran, as a note of an import would say."""
    facts = Facts()
    for at, step in session.steps(0, []):
        if at <= place:
            facts.take(step)
    begun = {} if facts.first is None else {"since": write_time(facts.first)}
    return {**begun, "standing": facts.standing()}


def _requested(store: Store, task: str, turns: int) -> str | None:
    """The request of a run in which nothing has happened yet."""
    runs = store.runs(task)
    return runs[-1].request if runs and runs[-1].first_turn == turns + 1 else None


def added(task: Task, record: Sequence[Entry]) -> None:
    """Adds a record. A turn that cannot be written as one is kept as its raw payload."""
    try:
        task.add(record)
    except InvalidValue:
        bare = [
            Turn(number=1, agent="agent", payload=entry.payload) if isinstance(entry, Turn) else entry
            for entry in record
        ]
        task.add(bare)


def start(
    store: Store,
    session: Session,
    wrong: list[str],
    *,
    ended: bool,
    is_alive: bool = False,
    parent: str | None = None,
) -> str | None:
    """Creates the task for a new session; None while there is nothing to record. ``parent``: the task that started it."""
    fork = forks(siblings(session), [session]).get(session.key)
    if fork is not None:
        source = f"{session.source}:{fork.parent}"
        fork = placed(store, store.by_source(source).get(source), fork)
    if fork is not None and fork.is_copy:
        return None
    begin, loose, spent = (fork.place, fork.loose, fork.spent) if fork is not None else (0, (), None)
    roots = (str(store.root),)
    grouping = TurnBuilder(session, begin, roots, wrong, ended=ended, is_alive=is_alive, loose=loose, spent=spent)
    if grouping.is_empty or (grouping.prompt is None and not ended):
        return None
    task = task_id(session.source, session.key)
    created = grouping.facts.first or datetime.now(timezone.utc)
    header = grouping.header(task, Parent(parent) if parent else _parent(session, grouping, fork), created)
    name = name_for(created, task)
    if not store.add_task(name, grouping.new(header)):
        raise TaskExists(task, ", from somewhere else")
    return task


def moved(tasks: Mapping[str, str]) -> dict[str, str]:
    """Those of the sources whose task is not named after them."""
    return {source: task for source, task in tasks.items() if task != task_id(*source.split(":", 1))}


def _parent(session: Session, grouping: TurnBuilder, fork: Fork | None) -> Parent | None:
    """The task that a session goes on with, was forked from, or whose sub-agent it was."""
    continued = read_parent(grouping.facts.values.get("continues", ""))
    if continued is not None:
        more = fork.turns if fork is not None and continued.turn is not None else 0
        return replace(continued, turn=continued.turn + more) if more and continued.turn is not None else continued
    above = session.parent or grouping.facts.values.get("parent") or grouping.facts.values.get("forked")
    above = fork.parent if fork is not None else above
    if not above:
        return None
    parent = _task_of(session.source, above)
    at = fork.turns if fork is not None and parent == task_id(session.source, above) else None
    return Parent(parent, at)


def _task_of(source: str, key: str) -> str:
    """The task that has a session, whether it is there yet or not."""
    return _moved.get(f"{source}:{key}") or task_id(source, key)


def _key(session: Session) -> str:
    """The session's key, in a form that a database can store."""
    return session.key.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\0")


def _stat(session: Session) -> tuple[int, int]:
    found = os.stat(session.path)
    is_database = session.path.name.endswith(".db")
    also = session.path.with_name(session.path.name + "-wal") if is_database else session.also
    if also is not None and also.exists():
        more = os.stat(also)
        return found.st_size + more.st_size, max(found.st_mtime_ns, more.st_mtime_ns)
    return found.st_size, found.st_mtime_ns


def _all_brought(jobs: Sequence[_Job], elsewhere: Store | None) -> Iterable[_Done]:
    if elsewhere is not None:
        return (_brought(job, elsewhere) for job in jobs)
    cores = os.cpu_count() or 1
    if len(jobs) < _WORTH_A_POOL or cores < 2:
        return itertools.chain.from_iterable(map(_some_brought, _together(jobs, 1)))
    return _by_many(list(_together(jobs, cores)), cores)


def _together(jobs: Sequence[_Job], cores: int) -> Iterator[list[_Job]]:
    """The jobs in their order, in parts that are written together. A few go to all cores."""
    most = max(1, min(_AT_ONCE, len(jobs) // (2 * cores)))
    some: list[_Job] = []
    size = 0
    for job in jobs:
        some.append(job)
        size += job.size
        if len(some) >= most or size >= _BYTES_AT_ONCE:
            yield some
            some, size = [], 0
    if some:
        yield some


def _by_many(parts: Sequence[list[_Job]], cores: int) -> Iterator[_Done]:
    """Imports in worker processes. If one is killed (out of memory, say), the pool breaks and the rest is done here."""
    import multiprocessing
    from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
    from concurrent.futures.process import BrokenProcessPool

    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    left = list(reversed(parts))
    running: dict[Future[list[_Done]], list[_Job]] = {}
    with ProcessPoolExecutor(cores, mp_context=context, initializer=_end_with, initargs=(os.getpid(), _moved)) as pool:
        try:
            while left or running:
                while left and len(running) < 2 * cores:
                    running[pool.submit(_some_brought, left[-1])] = left[-1]
                    left.pop()  # not before: a broken pool takes nothing
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    found = done.result()
                    del running[done]
                    yield from found
        except BrokenProcessPool:
            left += running.values()
            running.clear()
    for some in left:
        yield from _some_brought(some)


def _end_with(parent: int, known: Mapping[str, str]) -> None:
    """Ends a worker when its parent dies. Otherwise it would wait for work forever."""
    _moved.update(known)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _some_brought(jobs: Sequence[_Job]) -> list[_Done]:
    """Imports some sessions, and puts their tasks in place together."""
    found = [_brought(job) for job in jobs]
    written = [done for done in found if done.rows is not None]
    for root in {done.root for done in written if done.root is not None}:
        mine = [done for done in written if done.root == root]
        try:
            there = _writer(root).commit()
        except Exception as error:  # none of them is recorded; continue with the other sessions
            for done in mine:
                done.rows = None
                done.wrong.append(str(error) or type(error).__name__)
            continue
        for done in mine:
            done.is_here = done.task in there
            done.is_new = not done.is_here
            done.rows = None if done.is_here else done.rows
    return found
