"""rawko open: look at tasks in the browser."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import webbrowser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click

from rawko_state.cli import Page
from rawko_state.cli.printing import visible
from rawko_state.cli.project import complete_ids, is_remote, root_of, store_of
from rawko_state.errors import RawkoError


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

    Starts a server that only this machine can reach, or uses the one that an earlier 'rawko open' left running, and opens a link
    that works once. Ctrl-C stops it. For a team: rawko serve.
    """
    try:
        from rawko_state.backends.select import open_projects
        from rawko_state.server.run import Options, run
        from rawko_state.web.pages import routes
        from rawko_state.web.sessions import Links
    except ImportError as error:
        raise RawkoError(
            f"The page needs more packages ({error.name} is missing).\n  pip install 'rawko-state[server]'"
        ) from None
    if is_remote(ctx):
        raise RawkoError(
            "This project's tasks are on a server, which has a page of its own: open its address in a browser.\n"
            "  For the files here: rawko --remote local open"
        )
    root = root_of(ctx)
    place = f"/t/{store_of(ctx).find(task_id).id}" if task_id is not None else "/"
    note = _Note(root, all_projects)
    found = note.running()
    if found is not None:
        address = _link(found["url"], found["link"], place)
        _show(address, browser)
        return
    links = Links(_me())

    def started(url: str) -> None:
        note.write(url, links.key)
        _show(_link(url, links.make(), place), browser)
        click.echo("Press Ctrl-C to stop.", err=True)

    options = Options(
        root, port=port, quiet=True, private=True, started=started, pages=lambda server: routes(server, links)
    )
    host = open_projects(root, _warn) if all_projects else None
    try:
        run(options, _warn, host)
    finally:
        note.remove()


def _warn(message: str) -> None:
    if not message.startswith("serving "):
        click.echo(f"rawko: {visible(message)}", err=True)


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "me"


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


class _Note:
    """Where a running server is, and its key: a file that only this user can read."""

    def __init__(self, root: Path, all_projects: bool) -> None:
        from rawko_state.config.secret import key_path, keyed, user_key

        key = user_key()
        name = keyed("open", f"{root}\n{all_projects}", key)[:24] if key is not None else None
        self._path = key_path().parent / "open" / f"{name}.json" if name is not None else None

    def write(self, url: str, key: str) -> None:
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            beside = self._path.with_suffix(f".{os.getpid()}")
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as stream:
                json.dump({"url": url, "key": key, "pid": os.getpid()}, stream)
            os.replace(beside, self._path)

    def remove(self) -> None:
        """Removes it, unless another server has written its own since."""
        if self._path is not None:
            with contextlib.suppress(OSError, ValueError):
                if json.loads(self._path.read_text())["pid"] == os.getpid():
                    self._path.unlink()

    def running(self) -> dict[str, Any] | None:
        """The server that runs, with a new link to it; None if there is none."""
        import http.client
        from urllib.parse import urlsplit

        if self._path is None:
            return None
        try:
            known = json.loads(self._path.read_text())
            address = urlsplit(known["url"])
            connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=3)
            try:
                connection.request("POST", "/open/link", headers={"Authorization": f"Bearer {known['key']}"})
                response = connection.getresponse()
                link = response.read(200).decode("ascii")
            finally:
                connection.close()
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
            return None
        return {"url": known["url"], "link": link} if response.status == 200 else None
