"""rawko import: tasks that were exported come back, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from rawko_state.cli.project import store_of
from rawko_state.errors import InvalidValue, RawkoError


@click.command(name="import")
@click.argument("source", type=click.Choice(["rawko"]))
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.pass_context
def command(ctx: click.Context, source: str, paths: tuple[Path, ...]) -> None:
    """Bring in what `rawko history export` wrote as json or jsonl. Each task file is made again, byte for byte.

    A task that is here already is passed over; one of the same id with other content is refused.
    """
    from rawko_state.exchange.plain import blobs_bytes, records_bytes

    store = store_of(ctx)
    new = same = bad = 0
    for path in paths:
        try:
            for task in _tasks(path):
                if store.place(str(task.get("file")), records_bytes(task), blobs_bytes(task)) is None:
                    same += 1
                else:
                    new += 1
        except RawkoError as error:
            bad += 1
            click.echo(f"rawko: {path}: {error}", err=True)
    click.echo(f"{new} imported, {same} here already" + (f", {bad} files with errors" if bad else ""))
    ctx.exit(1 if bad else 0)


def _tasks(path: Path) -> Iterator[dict[str, Any]]:
    """One object, an array of them, or one a line."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        data = json.loads(text)
        found = data if isinstance(data, list) else [data]
    except (ValueError, RecursionError):
        try:
            found = [json.loads(line) for line in text.split("\n") if line.strip()]
        except (ValueError, RecursionError) as error:
            raise InvalidValue(f"not JSON: {error}") from None
    for task in found:
        if not isinstance(task, dict):
            raise InvalidValue("not an export of rawko")
        yield task
