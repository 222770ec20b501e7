"""rawko open: look at tasks in the browser."""

from __future__ import annotations

import contextlib
import threading
import webbrowser
from pathlib import Path
from urllib.parse import urlencode

import click

from rawko_state.cli import Page
from rawko_state.cli.completing import complete_ids
from rawko_state.cli.printing import visible
from rawko_state.cli.project import is_remote, me, root_of, store_of
from rawko_state.errors import NoProject, RawkoError
from rawko_state.lazy import installing


@click.command(
    name="open",
    cls=Page,
    examples="""
    rawko open
    rawko open abc123
    rawko open --all-projects
    rawko open --no-browser
    """,
)
@click.argument("task_id", metavar="[ID]", required=False, shell_complete=complete_ids)
@click.option("--all-projects", is_flag=True, help="Every project on this machine, with a switcher")
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="PORT", help="Port (default: a free one)")
@click.option("--browser/--no-browser", default=True, help="Open the browser, or only print the link")
@click.pass_context
def command(ctx: click.Context, task_id: str | None, all_projects: bool, port: int, browser: bool) -> None:
    """Look at tasks in the browser: read, search, follow, answer.

    Starts a server that only this machine can reach, or uses one that you already run for this project with 'rawko open' or
    'rawko serve', and opens a link that works once. Ctrl-C stops it. For a team: rawko serve.
    """
    try:
        from rawko_state.backends.select import open_projects
        from rawko_state.cli.running_server import ALL_PROJECTS, OPEN, SERVE, ServerNote
        from rawko_state.server.run import Options, run
        from rawko_state.web.pages import routes
        from rawko_state.web.sessions import Links
    except ImportError as error:
        raise RawkoError(
            f"The page needs more packages ({error.name} is missing).\n  Install them: {installing('server')}"
        ) from None
    if is_remote(ctx):
        raise RawkoError(
            "This project's tasks are on a server, which has a page of its own: open its address in a browser.\n"
            "  For the files here: rawko --remote local open"
        )
    root = _any_root(ctx) if all_projects else root_of(ctx)
    place = "/"
    if task_id is not None:
        place = f"/t/{store_of(ctx).find(task_id).id}"
    note = ServerNote(root, ALL_PROJECTS if all_projects else OPEN)
    found = note.running() or (None if all_projects else ServerNote(root, SERVE).running())
    if found is not None:
        _show(_link(*found, place), browser)
        return
    links = Links(me(root))

    def started(url: str) -> None:
        note.write(url, links.key)
        click.echo("Press Ctrl-C to stop.", err=True)
        # A text browser runs until one leaves it, and asks this server meanwhile.
        threading.Thread(
            target=_show, args=(_link(url, links.make(), place), browser), daemon=True, name="browser"
        ).start()

    options = Options(
        root, port=port, quiet=True, private=True, started=started, pages=lambda server: routes(server, links)
    )
    host = open_projects(root, _warn) if all_projects else None
    try:
        run(options, _warn, host)
    finally:
        note.remove()


def _any_root(ctx: click.Context) -> Path:
    """The enclosing project; outside of any, the one that was used last."""
    try:
        return root_of(ctx)
    except NoProject:
        from rawko_state.backends.select import user_state
        from rawko_state.cli.projects_cmd import is_there

        with user_state() as user:
            known = [Path(each.root) for each in user.projects() if is_there(each.root)]
        if not known:
            raise
        return known[0]


def _warn(message: str) -> None:
    if not message.startswith("serving "):
        click.echo(f"rawko: {visible(message)}", err=True)


def _link(url: str, link: str, place: str) -> str:
    return f"{url}/open?{urlencode({'once': link, **({'next': place} if place != '/' else {})})}"


def _show(address: str, browser: bool) -> None:
    if browser:
        with contextlib.suppress(webbrowser.Error):
            if webbrowser.open(address):
                click.echo(f"Opened in the browser: {address.partition('?')[0].removesuffix('open')}", err=True)
                return
    # On standard output, so that it can be piped. It works once, and not for long.
    click.echo(address)
