"""rawko serve: the team server."""

from __future__ import annotations

import click

from rawko_state.cli.printing import visible
from rawko_state.cli.project import root_of
from rawko_state.errors import RawkoError


@click.command(name="serve")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Where to listen; others than this machine need tokens."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8737, show_default=True, help="0 for any that is free.")
@click.option("--database", metavar="URL", envvar="RAWKO_DATABASE", help="postgresql://…: serve its workspaces.")
@click.option(
    "--listen-database",
    "listen",
    metavar="URL",
    envvar="RAWKO_LISTEN_DATABASE",
    help="A direct address of the database for notifications, if --database is a pooler.",
)
@click.option("--allowed-host", "hosts", multiple=True, metavar="NAME", help="A name that this server is called by.")
@click.option(
    "--rate",
    type=click.FloatRange(0),
    default=1000.0,
    show_default=True,
    metavar="N",
    help="Requests a second that one client may make; 0: any.",
)
@click.option(
    "--connections",
    type=click.IntRange(0),
    default=2000,
    show_default=True,
    metavar="N",
    help="Connections that one address may have open; 0: any. Behind a proxy, all clients have its address.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="Processes that share the port; needs --database.",
)
@click.option("--quiet", "-q", is_flag=True, help="No line for every request.")
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
    """Serve tasks over HTTP and WebSocket: those of the project around it, or of PostgreSQL.

    \b
    rawko serve                                             # this project, for this machine
    rawko token create --role write                         # from now on a token is needed
    rawko serve --host 0.0.0.0 --allowed-host tasks.example.com
    rawko serve --database postgresql://rawko@db/rawko      # workspaces for a team
    rawko --remote http://127.0.0.1:8737 history            # from anywhere else

    The address of the API is /api/v1, its description is at /openapi.json; see docs/server.md and docs/deploy.md.
    """
    try:
        from rawko_state.server.limits import Limits
        from rawko_state.server.run import Options, run
    except ImportError as error:
        raise RawkoError(
            f"serving needs more than the core ({error.name}): pip install 'rawko-state[server]'"
        ) from None

    root = root_of(ctx, anywhere=database is not None)
    limits = Limits(connections=connections)
    options = Options(root, host, port, database, listen, hosts, rate, quiet, limits, workers)
    run(options, lambda message: click.echo(f"rawko: {visible(message)}", err=True))
