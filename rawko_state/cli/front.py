"""Bare `rawko`: what runs, what waits for you, what was interrupted, the last tasks, and what to type next.

It costs no more than `rawko history`: what only some projects need is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rawko_state.cli.printing import (
    commands_shown,
    counted,
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
from rawko_state.model import status as words
from rawko_state.store import TaskFilter

if TYPE_CHECKING:
    from rawko_state.store import TaskSummary
    from rawko_state.store.contract import Store

_MOST = 5


def show(ctx: click.Context) -> None:
    try:
        root_of(ctx)
    except NoProject:
        say(_nowhere())
        return
    store = store_of(ctx)
    recent = store.history(TaskFilter(limit=_MOST))
    say(_overview(store, recent) if recent else _new_project(store.root))


# A project with tasks


def _overview(store: Store, recent: Sequence[TaskSummary]) -> Iterator[str]:
    total = counted(store.count(TaskFilter()), "task")
    yield click.style(project_name(store.root), bold=True) + click.style(f" · {_where(store)} · {total}", dim=True)
    groups = {
        status: store.history(TaskFilter(status=(status,), limit=_MOST + 1))
        for status in (words.WAITING, words.RUNNING, words.INTERRUPTED)
    }
    titles = {words.WAITING: "Waiting for you", words.RUNNING: "Running", words.INTERRUPTED: "Interrupted"}
    for status, found in groups.items():
        if not found:
            continue
        yield ""
        yield click.style(titles[status], bold=True)
        for summary in found[:_MOST]:
            right = _progress(summary) if status == words.RUNNING else ago(summary.updated)
            yield _row(summary, right)
            if status == words.WAITING:
                yield from _question(store, summary.id)
        if len(found) > _MOST:
            more = store.count(TaskFilter(status=(status,))) - _MOST
            yield click.style(f"  and {more:,} more: rawko history --status {status}", dim=True)
    shown = {summary.id for found in groups.values() for summary in found}
    others = [summary for summary in recent if summary.id not in shown]
    if others:
        yield ""
        yield click.style("Recent", bold=True)
        for summary in others:
            yield _row(summary, ago(summary.updated), named=summary.status != words.COMPLETED)
    if is_terminal():
        yield ""
        yield from commands_shown(_fitting(groups, recent))


def _where(store: Store) -> str:
    return with_tilde(store.root) if store.is_local else store.where


def _row(summary: TaskSummary, right: str, *, named: bool = False) -> str:
    """One task: id, request and, at the right edge of a terminal, when it was last active."""
    about = summary.title or summary.request or ""
    marks = ("* " if summary.pinned else "") + ("! " if summary.damaged else "")
    status = f"{one_line(summary.status, 11)}  " if named else ""
    if not is_terminal():
        return f"  {summary.id}  {status}{marks}{one_line(about, 10_000)}  {right}"
    left = screen().columns - 2 - len(summary.id) - 2 - width_of(status) - 2 - len(right)
    text = padded(one_line(marks + about, max(10, left)), left)
    shown = styled_status(summary.status, status.rstrip()) + "  " if named else ""
    return f"  {click.style(summary.id, bold=True)}  {shown}{text}  {click.style(right, dim=True)}"


def _progress(summary: TaskSummary) -> str:
    facts = [summary.agents[-1]] if summary.agents else []
    facts += [counted(summary.turns, "turn")] if summary.turns else []
    facts += [took(summary.duration_ms)] if summary.duration_ms else []
    return " · ".join(one_line(fact, 20) for fact in (facts or [ago(summary.updated)]))


def _question(store: Store, task_id: str) -> Iterator[str]:
    turn = store.open_question(task_id)
    if turn is None or turn.question is None:
        return
    indent = " " * (4 + len(task_id))
    width = max(20, screen().columns - len(indent)) if is_terminal() else 10_000
    for line in wrapped(turn.question.text, width)[:3]:
        yield indent + click.style(line, fg="yellow")
    for number, choice in enumerate(turn.question.choices[:_MOST], 1):
        default = " (default)" if choice == turn.question.default else ""
        yield f"{indent}  {number}  {one_line(choice, width - 15)}{default}"


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

    yield f"Not in a project: {with_tilde(Path.cwd())} has no .rawko folder and is not in a repository."
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
            tasks = tasks_in(each.root)
            facts = f"{tasks:>7} task{' ' if tasks == '1' else 's'}   {ago(each.seen)}"
            yield f"  {padded(with_tilde(each.root), width)}{click.style(facts, dim=True)}"
        commands = [
            (f"cd {with_tilde(known[0].root)}", "then: rawko"),
            ("rawko search WORDS --all-projects", "look in all of them"),
            commands[0],
        ]
    yield ""
    yield from commands_shown(commands)
