"""What is said about a command line that is wrong: what is unknown or out of range, and what was perhaps meant."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence

import click


class Typo(click.UsageError):
    """A usage error whose message says all there is to say."""


def nearest(word: str, known: Sequence[str]) -> str:
    """A question with the known word that is most like this one; empty if none is. Dashes are no likeness."""
    plain = {each.lstrip("-"): each for each in known if each not in ("-h", "--help")}
    near = difflib.get_close_matches(word.lstrip("-"), plain, n=1)
    started = [name for name in plain if len(word) > 2 and name.startswith(word)]
    found = near or started[:1]
    return f" Did you mean {plain[found[0]]}?" if found else ""


def said_of(error: click.UsageError) -> str:
    """What was wrong; on a second line, where to read how it is done."""
    if isinstance(error, click.NoSuchOption):
        message = _unknown_option(error)
    elif isinstance(error, click.MissingParameter):
        message = _missing(error)
    elif isinstance(error, click.BadParameter):
        message = _bad_value(error)
    elif isinstance(error, click.BadOptionUsage):
        message = _bad_use(error)
    elif extra := re.match(r"Got unexpected extra arguments? \((.*)\)", error.message, re.S):
        message = f"Unexpected argument: {extra[1]}"
    else:
        message = error.format_message().strip()
    message += "" if message.endswith((".", "?", "…")) or "\n" in message else "."
    if isinstance(error, Typo) or error.ctx is None or "\n" in message:
        return message
    return f"{message}\n  Help: {error.ctx.command_path} --help"


def _unknown_option(error: click.NoSuchOption) -> str:
    message = f"Unknown option: {error.option_name}."
    if error.ctx is None:
        return message
    root = error.ctx.find_root()
    own = _options(root).get(error.option_name) if error.ctx is not root else None
    if own is not None:
        command = error.ctx.command_path.removeprefix(f"{root.command_path} ")
        words = [root.command_path, error.option_name, own.metavar or "", command]
        return f"{error.option_name} goes before the command.\n  {' '.join(filter(None, words))} …"
    return message + nearest(error.option_name, list(_options(error.ctx)))


def _missing(error: click.MissingParameter) -> str:
    """What has to be given, and where there are few words that it can be, these."""
    parameter = error.param
    if parameter is None:
        return error.format_message().strip()
    kind = "argument" if isinstance(parameter, click.Argument) else "option"
    known = [str(each) for each in parameter.type.choices] if isinstance(parameter.type, click.Choice) else []
    if kind == "option":
        return f"Missing option: {parameter.opts[-1]}{f' ({_listed(known)})' if known else ''}"
    if known:
        return f"Missing argument: {_listed(known)}"
    return f"Missing argument: {(parameter.metavar or parameter.name or '').upper().removesuffix('...')}"


def _bad_use(error: click.BadOptionUsage) -> str:
    """An option without its value, or a flag with one."""
    option = _options(error.ctx).get(error.option_name) if error.ctx is not None else None
    if option is None:
        return error.format_message().strip()
    return f"{error.option_name} takes no value" if option.is_flag else f"{error.option_name} needs a value"


def _options(ctx: click.Context) -> dict[str, click.Option]:
    options = (each for each in ctx.command.get_params(ctx) if isinstance(each, click.Option))
    return {name: each for each in options for name in each.opts}


def _bad_value(error: click.BadParameter) -> str:
    """click quotes the value, and then says what it is not."""
    parameter = error.param
    match = re.match(r"(.*) is not (?:one of|a valid|in the range)\b", error.message, re.S)
    if parameter is None or match is None:
        return error.format_message().strip()
    given = match[1] if match[1].startswith(("'", '"')) else repr(match[1])
    kind = parameter.type
    if isinstance(kind, click.Choice):
        known = [str(each) for each in kind.choices]
        near = nearest(given[1:-1], known)
        if isinstance(parameter, click.Argument):
            return _unknown_word((parameter.metavar or parameter.name or "").strip("[].").lower(), given, known, near)
        return f"{parameter.opts[-1]} takes {_listed(known)}, not {given}.{near}"
    name = parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.human_readable_name
    return f"{name} takes {_range(kind)}, not {given}."


def _unknown_word(name: str, given: str, known: Sequence[str], near: str) -> str:
    if os.path.exists(given[1:-1]):
        return f"Unknown {name}: {given}. Name the {name} before the path."
    return f"Unknown {name}: {given}." + (near or f" Known: {_listed(known, 'and')}.")


def _listed(words: Sequence[str], last: str = "or") -> str:
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else words[0]


def _range(kind: click.ParamType) -> str:  # type: ignore[type-arg]  # generic since click 8.3 only
    what = "a number" if isinstance(kind, click.types.FloatParamType) else "a whole number"
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    if low is not None and high is not None and high < 10**6:
        return f"{what} from {low} to {high}"
    return what if low is None else f"{what}, {low} or more"
