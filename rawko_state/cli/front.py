"""Bare `rawko`: what runs, what waits for you, what was interrupted, the last tasks, and what to type next.

It costs no more than `rawko history`: what only some projects need is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rawko_state.cli.printing import (
    commands_shown,
    counted,
    cut,
    is_terminal,
    one_line,
    padded,
    say,
    screen,
    styled_status,
    width_of,
    wrapped,
)
from rawko_state.cli.project import project_name, root_of, store_of, with_tilde
from rawko_state.cli.times import ago, took
from rawko_state.errors import NoProject
from rawko_state.format.values import read_time
from rawko_state.model import status as words
from rawko_state.store import TaskFilter

if TYPE_CHECKING:
    from rawko_state.store import TaskSummary
    from rawko_state.store.contract import Store

_MOST = 5
_TITLES = {words.WAITING: "Waiting for you", words.RUNNING: "Running", words.INTERRUPTED: "Interrupted"}
_LEAST = 16
"""Columns for a request that are worth the place."""


def show(ctx: click.Context) -> None:
    try:
        root_of(ctx)
    except NoProject:
        say(_nowhere())
        return
    store = store_of(ctx)
    recent = store.history(TaskFilter(limit=_MOST))
    say(_Overview(store, recent).fitting() if recent else _new_project(store.root))


# A project with tasks


class _Overview:
    """What is going on in a project, in groups. It is asked for once, and shown as long as the screen allows."""

    def __init__(self, store: Store, recent: Sequence[TaskSummary]) -> None:
        self._store = store
        self._total = store.count(TaskFilter())
        self._groups = {
            status: store.history(TaskFilter(status=(status,), limit=_MOST + 1))
            for status in (words.WAITING, words.RUNNING, words.INTERRUPTED)
        }
        self._counts = {
            status: store.count(TaskFilter(status=(status,))) if len(found) > _MOST else len(found)
            for status, found in self._groups.items()
        }
        grouped = {summary.id for found in self._groups.values() for summary in found}
        self._recent = recent
        self._others = [summary for summary in recent if summary.id not in grouped]
        self._ids = max(len(each) for each in {*grouped, *(summary.id for summary in recent)})
        self._alive = store.alive() if self._groups[words.RUNNING] else set()
        self._questions = {summary.id: store.open_question(summary.id) for summary in self._groups[words.WAITING]}

    def fitting(self) -> list[str]:
        """As much of it as fits on the screen, but at least one task of each group."""
        rows = screen().lines - 1 if is_terminal() else 10_000  # the next prompt needs a line as well
        for most in range(_MOST, 0, -1):
            lines = list(self._lines(most))
            if len(lines) <= rows:
                break
        return lines

    def _lines(self, most: int) -> Iterator[str]:
        facts = f" · {_where(self._store)} · {counted(self._total, 'task')}"
        name = project_name(self._store.root)
        if is_terminal():
            facts = cut(facts, max(1, screen().columns - width_of(name)))
        yield click.style(name, bold=True) + click.style(facts, dim=True)
        for status, found in self._groups.items():
            if not found:
                continue
            yield ""
            yield click.style(_TITLES[status], bold=True)
            # The line that says "and 1 more" has room for that one.
            shown = len(found) if self._counts[status] == most + 1 else most
            for summary in found[:shown]:
                running = status == words.RUNNING
                right = _progress(summary, self._alive) if running else ago(summary.updated)
                yield self._row(summary, right)
                yield from self._question(summary.id)
            if self._counts[status] > shown:
                more = f"  and {self._counts[status] - shown:,} more: rawko history --status {status}"
                yield click.style(more, dim=True)
        if self._others:
            yield ""
            yield click.style("Recent", bold=True)
            for summary in self._others[:most]:
                yield self._row(summary, ago(summary.updated), named=summary.status != words.COMPLETED)
        if is_terminal():
            yield ""
            yield from commands_shown(_fitting(self._groups, self._recent))

    def _row(self, summary: TaskSummary, right: str, *, named: bool = False) -> str:
        """One task: id, request and, at the right edge of a terminal, when it was last active."""
        about = summary.title or summary.request or ""
        marks = ("* " if summary.pinned else "") + ("! " if summary.damaged else "")
        status = f"{one_line(summary.status, 11)}  " if named else ""
        if not is_terminal():
            return f"  {summary.id}  {status}{marks}{one_line(about, 10_000)}  {right}"
        left = screen().columns - 2 - self._ids - 2 - width_of(status)
        if left >= len(right) + 2 + _LEAST:
            left -= len(right) + 2
        else:
            right = ""  # a narrow terminal has room for the request only
        text = padded(one_line(marks + about, max(1, left)), left if right else 0)
        shown = styled_status(summary.status, status.rstrip()) + "  " if named else ""
        end = f"  {click.style(right, dim=True)}" if right else ""
        return f"  {click.style(padded(summary.id, self._ids), bold=True)}  {shown}{text}{end}"

    def _question(self, task_id: str) -> Iterator[str]:
        """The question of a task that waits, with its choices."""
        turn = self._questions.get(task_id)
        if turn is None or turn.question is None:
            return
        indent = " " * (4 + self._ids)
        width = max(1, screen().columns - len(indent)) if is_terminal() else 10_000
        for line in wrapped(turn.question.text, width)[:3]:
            yield indent + click.style(line, fg="yellow")
        for number, choice in enumerate(turn.question.choices[:_MOST], 1):
            default = " (default)" if choice == turn.question.default else ""
            yield f"{indent}  {number}  {one_line(choice, max(1, width - 5 - len(default)))}{default}"


def _where(store: Store) -> str:
    return with_tilde(store.root) if store.is_local else store.where


def _progress(summary: TaskSummary, alive: set[str]) -> str:
    """Who runs a task and for how long, or that nobody does: then it was left open, by a script for instance."""
    if summary.id not in alive:
        return f"no process, {ago(summary.updated)}"
    began = read_time(summary.created) if summary.created else None
    since = (datetime.now(timezone.utc) - began).total_seconds() if began is not None else 0
    facts = [summary.agents[-1]] if summary.agents else []
    facts += [f"turn {summary.turns + 1}", took(max(0, int(since * 1000)))]
    return " · ".join(one_line(fact, 20) for fact in facts)


def _fitting(groups: dict[str, list[TaskSummary]], recent: Sequence[TaskSummary]) -> list[tuple[str, str]]:
    """The three commands that fit what is going on."""
    found = []
    if groups[words.WAITING]:
        found.append((f"rawko answer {groups[words.WAITING][0].id}", "answer the question"))
    if groups[words.RUNNING]:
        found.append(("rawko watch", "follow what runs"))
    if groups[words.INTERRUPTED]:
        found.append((f"rawko resume {groups[words.INTERRUPTED][0].id}", "continue the interrupted task"))
    found.append((f"rawko show {recent[0].id}", "read the last task"))
    found.append(("rawko search WORDS", "find any task"))
    found.append(("rawko pick", "find and read any task"))
    return found[:3]


# A project without tasks


def _new_project(root: Path) -> Iterator[str]:
    from rawko_state.cli.agents_here import agents_here

    yield f"No tasks in {project_name(root)} yet."
    found = list(agents_here(root))
    if found:
        yield ""
        yield click.style("Found on this machine:", bold=True)
        width = max(width_of(name) for name, _, _ in found)
        for name, _, what in found:
            yield f"  {padded(name, width)}   {what}"
    commands = [("rawko import", "bring them in (the originals are only read)")] if found else []
    agent = next((source for _, source, _ in found if source in ("claude-code", "codex")), "claude-code")
    commands.append((f"rawko hook install {agent}", "record every session from now on"))
    if not found:
        commands.append(('rawko run "Fix tests" -- make test', "run a command and record it"))
    commands.append(("rawko demo", "see how it works, in two minutes"))
    yield ""
    yield from commands_shown(commands)


# Outside any project


def _nowhere() -> Iterator[str]:
    from rawko_state.backends.select import user_state
    from rawko_state.cli.projects_cmd import is_there, tasks_in

    where = f"Not in a project: {with_tilde(Path.cwd())} has no .rawko folder and is not in a repository."
    yield from wrapped(where, screen().columns) if is_terminal() else [where]
    try:
        with user_state() as user:
            known = [each for each in user.projects() if is_there(each.root)][:_MOST]
    except Exception:  # a list that can't be read is no reason to fail
        known = []
    commands = [("rawko init", "make this folder a project"), ("rawko demo", "see how it works, in two minutes")]
    if known:
        yield ""
        yield click.style("Projects on this machine", bold=True)
        width = max(width_of(with_tilde(each.root)) for each in known)
        for each in known:
            tasks, last = tasks_in(each.root)
            facts = f"{tasks:>7} task{' ' if tasks == '1' else 's'}   {last}"
            yield f"  {padded(with_tilde(each.root), width)}{click.style(facts, dim=True)}"
        commands = [
            (f"cd {with_tilde(known[0].root)}", "then: rawko"),
            ("rawko search WORDS --all-projects", "look in all of them"),
            commands[0],
        ]
    yield ""
    yield from commands_shown(commands)
