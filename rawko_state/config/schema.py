"""Every setting there is: its name, its type, its default, and what it is for. The docs and the command are made from this."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

_DURATION = re.compile(r"([0-9]{1,9})(s|m|h|d|w)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class Wrong(Exception):
    """A value that a setting cannot have; says what was expected."""


@dataclass(frozen=True, slots=True)
class Type:
    """A type of setting: its name for people, and how a value of YAML, or the text of an environment variable, is read."""

    name: str
    read: Callable[[Any], Any]
    of_text: Callable[[str], Any]


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise Wrong("text on one line")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Wrong("a whole number, not negative")
    return value


def _whole_of_text(text: str) -> int:
    if not text.isdecimal() or len(text) > 15:
        raise Wrong("a whole number, not negative")
    return int(text)


def read_duration(value: Any) -> int:
    """In seconds."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise Wrong("a duration such as 30d, 12h, 2w, 90m or 45s")
    return int(match[1]) * _SECONDS[match[2]]


def _commands(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Wrong("a mapping of names to commands")
    return {_text(name): _text(command) for name, command in value.items()}


def _commands_of_text(text: str) -> dict[str, str]:
    raise Wrong("a file: a mapping cannot be given as an environment variable")


def one_of(*choices: str) -> Type:
    def read(value: Any) -> str:
        # YAML reads on and off as true and false.
        value = {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value
        if value not in choices:
            raise Wrong("one of " + ", ".join(choices))
        return str(value)

    return Type(" or ".join(choices), read, read)


TEXT: Final = Type("text", _text, _text)
WHOLE: Final = Type("whole number", _whole, _whole_of_text)
DURATION: Final = Type("duration", read_duration, read_duration)
COMMANDS: Final = Type("mapping of names to commands", _commands, _commands_of_text)


@dataclass(frozen=True, slots=True)
class Setting:
    key: str
    type: Type
    default: Any
    help: str
    own_only: bool = False
    """Not taken from a project's files: those may come from anybody, and this is run."""

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "RAWKO_" + self.key.upper().replace(".", "_")


SETTINGS: Final = (
    Setting("resume.budget", WHOLE, None, "Tokens that the context of `rawko resume` is shortened to, without --budget."),
    Setting("runners", COMMANDS, {}, "For each agent the command that `rawko resume` runs when that is next.", own_only=True),
    Setting("search.fold", one_of("auto", "off"), "auto", "Whether searches and finished tasks fold what is new, unasked."),
    Setting("user.name", TEXT, None, "Who you are in records (`By:`); by default the user of this machine."),
)  # fmt: skip
BY_KEY: Final = {setting.key: setting for setting in SETTINGS}
# The mappings that settings stand in.
SECTIONS: Final = frozenset(key.rpartition(".")[0] for key in BY_KEY if "." in key)


def nearest(key: str) -> str:
    near = difflib.get_close_matches(key, [*BY_KEY, *SECTIONS], n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(BY_KEY)}"
