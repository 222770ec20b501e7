"""The commands. Each has its own file, imported only when the command is used."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

import click

from rawko_state.errors import RawkoError

# Command -> help line. The help lines are here so that `rawko --help` imports none of the modules.
COMMANDS = {
    "cleanup": "Move old tasks to the trash, pack finished ones, bring them back.",
    "completion": "Print a completion script for your shell.",
    "demo": "Record, kill, recover and read a task in a throw-away folder.",
    "doctor": "What is where, what is behind, what is wrong, and what to do.",
    "history": "List, show and export tasks.",
    "answer": "Answer the question that a task waits with.",
    "cancel": "Cancel a task, also in the process that runs it.",
    "pause": "Pause a task, also in the process that runs it.",
    "resume": "Go on with a task, add a run to it, or fork it.",
    "watch": "Follow a task, or all that run, live.",
    "config": "Show and change settings.",
    "hook": "Record what Claude Code or Codex does, by their own hooks.",
    "import": "Bring in what other agents, or rawko elsewhere, have recorded.",
    "init": "Make this folder a project.",
    "kv": "Small values of your own, kept per user.",
    "pg": "Move tasks between the files here and PostgreSQL, both ways.",
    "projects": "The projects in which rawko was used.",
    "record": "Write a task from JSON lines on standard input, live.",
    "redact": "Remove secrets from recorded tasks.",
    "reindex": "Rebuild the index from the task files.",
    "run": "Run a command, and record what it does.",
    "serve": "Serve tasks to a team: this project's, or those of PostgreSQL.",
    "stats": "Tasks, time, agents, files and tokens in figures.",
    "task": "Write to a task from a shell script, one step at a time.",
    "token": "Who may use a server: make, list, revoke and keep tokens.",
    "verify": "Check every seal of every task file; mend what can be mended.",
    "workspace": "The workspaces of a server on PostgreSQL.",
}


class LazyGroup(click.Group):
    """Imports each command when it is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"rawko_state.cli.{cmd_name}_cmd")
        command: click.Command = module.command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _NobodyReads from None  # click would exit with 1, as for an error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else " See 'rawko --help'."
            raise click.UsageError(f"no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-C", "folder", metavar="DIR", help="Work on the project in DIR (also: RAWKO_DIR).")
@click.option("--remote", metavar="URL", help="Use the tasks of a `rawko serve`; 'local' for the files here.")
@click.option("--workspace", metavar="NAME", help="The workspace, on a server that has such.")
@click.version_option(package_name="rawko-state", prog_name="rawko")
@click.pass_context
def cli(ctx: click.Context, folder: str | None, remote: str | None, workspace: str | None) -> None:
    """Keeps what coding agents did: readable task files, with an index that can be rebuilt from them."""
    ctx.obj = folder
    ctx.meta["rawko.remote"], ctx.meta["rawko.workspace"] = remote, workspace


def main(argv: list[str] | None = None) -> None:
    """The `rawko` command. An error is one line on standard error and a non-zero exit code."""
    try:
        code: Any = cli.main(args=argv, prog_name="rawko", standalone_mode=False)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.Abort:
        click.echo("rawko: stopped", err=True)
        code = 130
    except click.UsageError as error:
        where = f" (see '{error.ctx.command_path} --help')" if error.ctx else ""
        _say(f"{error.format_message()}{where}")
        code = 2
    except click.ClickException as error:
        _say(error.format_message())
        code = error.exit_code
    except RawkoError as error:
        _say(str(error))
        code = 1
    except KeyboardInterrupt:
        code = 130
    except UnicodeError as error:
        _say(f"text that is not UTF-8, or cannot be printed here: {error}")
        code = 1
    except (OverflowError, RecursionError) as error:
        _say(f"a value out of all bounds: {error}")
        code = 1
    except (_NobodyReads, BrokenPipeError):
        _end_by_sigpipe()
        code = 141
    except OSError as error:
        _say(f"{error.filename or 'output'}: {error.strerror or error}")
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


class _NobodyReads(Exception):
    """The reader of our output has closed the pipe."""


def _end_by_sigpipe() -> None:
    """Ends as programs do that write to a closed pipe. Otherwise Python would complain about unwritten output at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)


def _say(message: str) -> None:
    from rawko_state.cli.printing import visible

    click.echo(f"rawko: {visible(message).strip()}", err=True)
