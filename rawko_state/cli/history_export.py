"""rawko history export: tasks in other formats."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rawko_state.cli.project import complete_ids, store_of
from rawko_state.errors import StorageError
from rawko_state.exchange.exporting import EXACT, check, exported, plain_name, whole_object

if TYPE_CHECKING:
    from rawko_state.store.contract import Store

_ENDINGS = {"json": "json", "jsonl": "jsonl", "md": "md", "html": "html", "task": "task"}


@click.command(name="export")
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_ids)
@click.option("--format", "form", type=click.Choice(list(_ENDINGS)), default="json", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="A file; a folder for one file a task.")
@click.option("--as-is", is_flag=True, help="Also what looks like a secret.")
@click.pass_context
def command(ctx: click.Context, task_ids: tuple[str, ...], form: str, output: Path | None, as_is: bool) -> None:
    """Export tasks to a file or standard output.

    \b
    json, jsonl  everything; `rawko import` makes the same file of it again, byte for byte
    md           Markdown
    html         one page, nothing loaded from anywhere, to be sent to somebody
    task         the task file itself

    Secrets that an older version recorded are left out of md and html; the other forms are exact, so they are refused with such.
    """
    store = store_of(ctx)
    ids = [store.find(task_id).id for task_id in task_ids]
    if not as_is and form in EXACT:
        for task_id in ids:
            check(store, task_id)
    if output is not None and output.is_dir():
        for task_id in ids:
            target = output / f"{plain_name(store, task_id).removesuffix('.task')}.{_ENDINGS[form]}"
            _to_file(target, exported(store, task_id, form, as_is=as_is or form in EXACT))
            click.echo(str(target))
        return
    if len(ids) > 1 and form in ("html", "md", "task"):
        raise click.UsageError(f"several tasks as {form} need a folder: -o DIR", ctx)
    pieces = (
        _several(store, ids)
        if form == "json" and len(ids) > 1
        else (p for i in ids for p in exported(store, i, form, as_is=as_is or form in EXACT))
    )
    if output is None:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    else:
        _to_file(output, pieces)


def _several(store: Store, ids: list[str]) -> Iterator[bytes]:
    yield b"[\n"
    for number, task_id in enumerate(ids):
        yield (b",\n" if number else b"") + json.dumps(whole_object(store, task_id), indent=1).encode()
    yield b"\n]\n"


def _to_file(path: Path, pieces: Iterator[bytes]) -> None:
    try:
        with open(path, "wb") as stream:
            for piece in pieces:
                stream.write(piece)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}", str(path), error.errno) from error
