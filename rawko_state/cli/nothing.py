"""What is said when nothing was found: what was looked for, where, and what to try."""

from __future__ import annotations

import shlex

import click

from rawko_state.cli.printing import first_line, message_text
from rawko_state.store import TaskFilter

ANYWHERE = "in any project"


def no_tasks(wanted: TaskFilter, where: str, *, any_at_all: bool = True, command: str = "history") -> None:
    """For a list of tasks. What to try is the same without the last condition."""
    asked = _in_words(wanted)
    if not asked or not any_at_all:
        _say(f"No tasks {where} yet.", "What to do first: rawko")
        return
    options = [option for _, option in asked[:-1]] + (["--all-projects"] if where == ANYWHERE else [])
    words = ", ".join(each for each, _ in asked)
    _say(f"No tasks {where} match: {words}.", f"Try: {' '.join(['rawko', command, *options])}")


def no_match(query: str, wanted: TaskFilter, where: str, suggestion: str | None) -> None:
    """For a search. What to try is what was perhaps meant, else the same with fewer conditions or in more places."""
    asked = _in_words(wanted)
    words = ", ".join([query, *(each for each, _ in asked)])
    options = [option for _, option in asked[:-1]] + (["--all-projects"] if where == ANYWHERE else [])
    again = ["rawko search", shlex.quote(first_line(query))]
    if suggestion:
        advice = f"Did you mean: rawko search {shlex.quote(first_line(suggestion))}"
    elif asked:
        advice = f"Try: {' '.join([*again, *options])}"
    elif where != ANYWHERE:
        advice = f"Look in every project: {' '.join([*again, '--all-projects'])}"
    else:
        advice = "List all tasks: rawko history --all-projects"
    _say(f"No task {where} matches: {words}.", advice)


def _say(what: str, advice: str) -> None:
    click.echo(message_text(f"{first_line(what)}\n  {first_line(advice)}", who=""), err=True)


def _in_words(wanted: TaskFilter) -> list[tuple[str, str]]:
    """What a filter asks for: each condition in words, and as the option that sets it."""
    found = []
    if wanted.status:
        found.append((f"status {' or '.join(wanted.status)}", f"--status {','.join(wanted.status)}"))
    if wanted.agent:
        found.append((f"agent {wanted.agent}", f"--agent {shlex.quote(wanted.agent)}"))
    if wanted.file:
        found.append((f"file {wanted.file}", f"--file {shlex.quote(wanted.file)}"))
    for name, value in wanted.labels:
        shown = name if value is None else f"{name}={value}"
        found.append((f"label {shown}", f"--label {shlex.quote(shown)}"))
    for word, when in (("since", wanted.since), ("until", wanted.until)):
        if when is not None:
            try:
                found.append((f"{word} {when.astimezone():%Y-%m-%d %H:%M}", f"--{word} {when:%Y-%m-%d}"))
            except (OverflowError, ValueError, OSError):
                found.append((word, f"--{word} {when.year:04}-{when.month:02}-{when.day:02}"))
    return found
