"""The commands. Each has its own file, imported only when the command is used."""

from __future__ import annotations

import atexit
import gc
import importlib
import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from rawko_state.errors import AmbiguousTask, InvalidValue, RawkoError, ServerAway, TaskNotFound
from rawko_state.late import late

# Heading -> command -> help line. The lines are here so that `rawko --help` imports none of the modules.
GROUPS = {
    "Look": {
        "history": "List tasks",
        "show": "Read a task",
        "search": "Find tasks by what was asked, said, run or changed",
        "pick": "Find a task interactively",
        "watch": "Follow running tasks live",
        "open": "Look at tasks in the browser",
        "stats": "Show tasks, time, tokens and cost",
    },
    "Continue": {
        "resume": "Continue, fork or hand over a task",
        "answer": "Answer a task's pending question",
        "pause": "Pause running tasks",
        "cancel": "Cancel tasks",
    },
    "Record": {
        "import": "Import sessions of Claude Code, Codex, aider and others",
        "hook": "Record an agent automatically from now on",
        "run": "Run a command and record it",
        "mcp": "Let agents look up past tasks (MCP)",
        "record": "Record from a stream of JSON lines",
        "task": "Record step by step from a shell script",
    },
    "Keep": {
        "export": "Export tasks as Markdown, HTML or JSON",
        "cleanup": "Apply retention; list, restore and empty the trash",
        "redact": "Remove secrets from recorded tasks",
        "verify": "Check task files for damage",
        "reindex": "Rebuild the index from the task files",
        "doctor": "Find problems and say how to fix them",
    },
    "Team": {
        "serve": "Serve tasks to a team",
        "token": "Manage access tokens",
        "workspace": "Manage workspaces",
        "pg": "Copy tasks to and from PostgreSQL",
    },
    "Set up": {
        "init": "Make this folder a project",
        "config": "Show and change settings",
        "projects": "List the projects on this machine",
        "completion": "Set up shell completion",
        "kv": "Store small values of your own",
        "demo": "See how rawko works, in two minutes",
    },
}
COMMANDS = {name: line for commands in GROUPS.values() for name, line in commands.items()}
_MODULES = {"show": "history_show", "export": "history_export"}
_RANGE = late(r"; [\d<=>x]*x[\d<=>]*(?=\])|  \[[\d<=>x]*x[\d<=>]*\]")
"""How click writes the range of a number in a help page. A wrong number is told what fits."""
_CLOSING = """\
New here? Try 'rawko demo'. To bring in past sessions: 'rawko import'.
Help for a command: rawko COMMAND --help"""


class Page(click.Command):
    """A command with a help page: what it does, how it is called, examples, and its options under headings."""

    def __init__(
        self, *given: Any, examples: str = "", headings: Mapping[str, Sequence[str]] | None = None, **options: Any
    ) -> None:
        super().__init__(*given, **options)
        self.examples = inspect.cleandoc(examples)
        self.headings = headings or {}
        """Heading -> names of parameters. What is in none of them stands under Options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click's parser doesn't say whose option it was
            raise

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        first, _, rest = inspect.cleandoc(self.help or "").partition("\n\n")
        formatter.write_text(first)
        formatter.write_paragraph()
        self.format_usage(ctx, formatter)
        if rest:
            formatter.write_paragraph()
            formatter.write_text(rest)
        self.format_examples(formatter)
        self.format_options(ctx, formatter)

    def format_examples(self, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in self.examples.split("\n")))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_parameters(ctx, formatter)

    def format_parameters(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        places = {name: heading for heading, names in self.headings.items() for name in names}
        rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (*self.headings, "Options")}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None and row[1]:  # newer versions of click name arguments here, with nothing to say of them
                row = row[0], _RANGE.sub("", row[1])
                rows[places.get(parameter.name or "", "Options")].append(row)
        for heading, found in rows.items():
            if found:
                with formatter.section(heading):
                    formatter.write_dl(found)

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.help = "Show this help"
        return option


class PageGroup(Page, click.Group):
    """A command with commands of its own. Called without one, it prints its help."""

    command_class = Page

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit(0)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """In a list, what a command does stands without the full stop, and is not cut."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, each.get_short_help_str(200).rstrip(".")) for name, each in found if each and not each.hidden]
            )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        self.format_parameters(ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            from rawko_state.cli.misuse import Typo, nearest  # only needed for typos

            advice = nearest(name, self.list_commands(ctx)) or f"\n  List them: {ctx.command_path} --help"
            raise Typo(f"Unknown command: {name}.{advice}", ctx)
        return super().resolve_command(ctx, args)


class FrontDoor(PageGroup):
    """`rawko`. Imports each command when it is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"rawko_state.cli.{_MODULES.get(cmd_name, cmd_name + '_cmd')}")
        command: click.Command = module.command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _NobodyReads from None  # click would exit with 1, as for an error
        except (TaskNotFound, AmbiguousTask, ServerAway) as error:
            from rawko_state.cli.advice import advise

            advise(error, ctx)
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(10), line) for name, line in commands.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(f"\n{_CLOSING}\n")

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help(ctx, formatter)
        self.format_epilog(ctx, formatter)


@click.command(cls=FrontDoor, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-C", "folder", metavar="DIR", help="Use the project in DIR  [env: RAWKO_DIR]")
@click.option(
    "--remote",
    metavar="URL",
    help="Use a rawko server; 'local' for this project's files  [env: RAWKO_REMOTE_SERVER]",
)
@click.option("--workspace", metavar="NAME", help="Workspace to use on the server  [env: RAWKO_WORKSPACE]")
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    metavar="WHEN",
    help="auto, always or never",
)
@click.option("--no-pager", is_flag=True, help="Print long texts instead of opening a pager")
@click.version_option(package_name="rawko-state", prog_name="rawko", help="Show the version")
@click.pass_context
def cli(
    ctx: click.Context, folder: str | None, remote: str | None, workspace: str | None, color: str, no_pager: bool
) -> None:
    """rawko records what coding agents do, as plain-text files in your project."""
    ctx.obj = folder
    ctx.meta["rawko.remote"], ctx.meta["rawko.workspace"] = remote, workspace
    ctx.meta["rawko.pager"] = not no_pager
    if color != "auto":
        ctx.color = color == "always"
    elif os.environ.get("NO_COLOR"):
        ctx.color = False
    if ctx.invoked_subcommand is None:
        from rawko_state.cli import front

        front.show(ctx)


def main(argv: list[str] | None = None) -> None:
    """The `rawko` command. An error is a line on standard error, perhaps one more with what to do, and a non-zero exit code."""
    atexit.register(gc.freeze)  # or Python would look for garbage among all that is loaded: a sixth of a search's time
    try:
        code: Any = cli.main(args=argv, prog_name="rawko", standalone_mode=False)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.Abort:
        click.echo("rawko: Stopped.", err=True)
        code = 130
    except click.UsageError as error:
        from rawko_state.cli.misuse import said_of

        _say(said_of(error))
        code = 2
    except click.ClickException as error:
        _say(error.format_message())
        code = error.exit_code
    except RawkoError as error:
        _say(str(error))
        code = 2 if isinstance(error, InvalidValue) else 1
    except KeyboardInterrupt:
        code = 130
    except UnicodeError as error:
        _say(f"Can't read or print this text as UTF-8: {error}.")
        code = 1
    except (OverflowError, RecursionError) as error:
        _say(f"A value is too large or nested too deeply: {error}.")
        code = 1
    except (_NobodyReads, BrokenPipeError):
        _end_by_sigpipe()
        code = 141
    except OSError as error:
        _say(f"{error.filename or 'Output'}: {error.strerror or error}.")
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


class _NobodyReads(Exception):
    """The reader of our output has closed the pipe."""


def _end_by_sigpipe() -> None:
    """Ends as programs do that write to a closed pipe. Otherwise Python would complain about unwritten output at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    import signal

    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)


def _say(message: str) -> None:
    from rawko_state.cli.printing import message_text

    click.echo(message_text(message), err=True)
    if os.environ.get("RAWKO_DEBUG"):
        import traceback

        traceback.print_exc()
