"""rawko serve: the team server."""

from __future__ import annotations

import click

from rawko_state.cli import Page
from rawko_state.cli.printing import visible
from rawko_state.cli.project import me, root_of
from rawko_state.errors import RawkoError
from rawko_state.lazy import installing


@click.command(
    name="serve",
    cls=Page,
    examples="""
    rawko serve
    rawko serve --host 0.0.0.0 --allowed-host tasks.example.com
    rawko serve --database postgresql://rawko@db/rawko
    rawko --remote http://127.0.0.1:8737 history
    """,
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen on; anything but this machine needs a token",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8737,
    show_default=True,
    metavar="PORT",
    help="Port; 0 picks a free one",
)
@click.option("--database", metavar="URL", envvar="RAWKO_DATABASE", help="PostgreSQL database to serve")
@click.option(
    "--listen-database",
    "listen",
    metavar="URL",
    envvar="RAWKO_LISTEN_DATABASE",
    help="Direct address of the database for notifications, if --database is a pooler",
)
@click.option("--allowed-host", "hosts", multiple=True, metavar="NAME", help="Host name that clients use (repeatable)")
@click.option(
    "--rate",
    type=click.FloatRange(0),
    default=1000.0,
    show_default=True,
    metavar="N",
    help="Requests per second allowed per client; 0 for no limit",
)
@click.option(
    "--connections",
    type=click.IntRange(0),
    default=2000,
    show_default=True,
    metavar="N",
    help="Connections that one address may open; 0: no limit. Behind a proxy, all clients share one address",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="Processes that share the port (needs --database)",
)
@click.option("--quiet", "-q", is_flag=True, help="Don't log requests")
@click.pass_context
def command(
    ctx: click.Context,
    host: str,
    port: int,
    database: str | None,
    listen: str | None,
    hosts: tuple[str, ...],
    rate: float,
    connections: int,
    workers: int,
    quiet: bool,
) -> None:
    """Serve this project's tasks, or those in a PostgreSQL database, over HTTP and WebSocket.

    Without a token, only this machine is served. 'rawko token create --role write' makes one; from then on every request needs
    it. The page is at /, the API at /api/v1, its description at /openapi.json. See docs/reference/rest.md and
    docs/howto/deploy.md.
    """
    try:
        from rawko_state.cli.running_server import SERVE, ServerNote
        from rawko_state.server.limits import Limits
        from rawko_state.server.run import Options, run
        from rawko_state.web.pages import routes
        from rawko_state.web.sessions import Links
    except ImportError as error:
        raise RawkoError(
            f"The server needs more packages ({error.name} is missing).\n  Install them: {installing('server')}"
        ) from None

    root = root_of(ctx, anywhere=database is not None)
    limits = Limits(connections=connections)
    # 'rawko open' of the same user comes in by a one-time link. Another user can't read the note.
    note, links = (ServerNote(root, SERVE), Links(me(root))) if database is None else (None, None)

    def started(url: str) -> None:
        if note is not None and links is not None:
            note.write(url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:"), links.key)

    options = Options(
        root, host, port, database, listen, hosts, rate, quiet, limits, workers,
        pages=lambda server: routes(server, links), started=started,
    )  # fmt: skip
    try:
        run(options, lambda message: click.echo(f"rawko: {visible(message)}", err=True))
    finally:
        if note is not None:
            note.remove()
