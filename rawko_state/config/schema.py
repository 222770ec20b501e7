"""Every setting: its name, type, default and purpose. The docs and the config command are generated from this."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from rawko_state.late import late
from rawko_state.model.frozen import Frozen

_DURATION = late(r"([0-9]{1,9})(s|m|h|d|w)")
_RULE_NAME = late(r"[a-z0-9][a-z0-9-]{0,39}")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


FOREIGN: Final = frozenset(("agents",))
"""Parts of a project's settings that are for the program that runs the agents, not for what keeps their history."""


class Wrong(Exception):
    """An invalid value for a setting. The message says what was expected."""


class Type(Frozen):
    """The type of a setting: its display name, and how to read it from YAML or from an environment variable."""

    name: str
    read: Callable[[Any], Any]
    of_text: Callable[[str], Any]


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise Wrong("one line of text")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Wrong("a whole number, 0 or more")
    return value


def _whole_of_text(text: str) -> int:
    if not text.isdecimal() or len(text) > 15:
        raise Wrong("a whole number, 0 or more")
    return int(text)


def read_duration(value: Any) -> int:
    """A duration in seconds."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise Wrong("a duration such as 30d, 12h, 2w, 90m or 45s")
    return int(match[1]) * _SECONDS[match[2]]


def write_duration(seconds: int) -> str:
    """A duration as people write it, in the largest unit that fits."""
    unit = next((unit for unit, size in reversed(_SECONDS.items()) if seconds and seconds % size == 0), "s")
    return f"{seconds // _SECONDS[unit]}{unit}"


def _commands(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Wrong("a mapping of names to commands")
    return {_text(name): _text(command) for name, command in value.items()}


def _commands_of_text(text: str) -> dict[str, str]:
    raise Wrong("a settings file; a mapping can't be given in an environment variable")


def _patterns(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Wrong("a mapping of names to regular expressions")
    for name, pattern in value.items():
        if not isinstance(name, str) or not _RULE_NAME.fullmatch(name):
            raise Wrong("names of lower-case letters, digits and '-'")
        try:
            re.compile(_text(pattern))
        except (re.error, OverflowError, RecursionError) as error:
            raise Wrong(f"regular expressions; {name}: {error}") from None
    return dict(value)


_TAG = late(r"[a-z0-9-]{1,40}:[0-9a-f]{4}")


def _tags(value: Any) -> tuple[str, ...]:
    found = _words(value)
    for tag in found:
        if not _TAG.fullmatch(tag):
            raise Wrong(f"tags such as github-token:3f2a, not {tag!r}")
    return found


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [word.strip() for word in value.split(",")]
    if not isinstance(value, list) or not all(isinstance(word, str) and word.isprintable() for word in value):
        raise Wrong("a list of words")
    return tuple(word for word in value if word)


def _switch(value: Any) -> bool:
    found = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.get(str(value).lower())
    if found is None:
        raise Wrong("yes or no")
    return found


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
TEXTS: Final = Type("mapping of names to texts", _commands, _commands_of_text)
PATTERNS: Final = Type("mapping of names to regular expressions", _patterns, _commands_of_text)
WORDS: Final = Type("list of words", _words, _words)
TAGS: Final = Type("list of tags", _tags, _tags)
SWITCH: Final = Type("yes or no", _switch, _switch)


class Setting(Frozen):
    key: str
    type: Type
    default: Any
    help: str
    own_only: bool = False
    """Ignored in a project's files, which may come from anyone: the setting runs a command or can weaken security."""

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "RAWKO_" + self.key.upper().replace(".", "_").replace("-", "_")


SETTINGS: Final = (
    Setting("record.surroundings", SWITCH, True, "Whether new tasks record repository, branch, commit, folder and runtime."),
    Setting("redact.allow", TAGS, (), "Values to keep, by the tags that replaced them: `github-token:3f2a`.", own_only=True),
    Setting("redact.env", WORDS, (), "Environment variables whose values are secrets and always removed."),
    Setting("redact.exact", SWITCH, True, "Whether programs may keep exact values, secrets included.", own_only=True),
    Setting("redact.off", WORDS, (), "Redaction rules to switch off; `all` switches off every rule.", own_only=True),
    Setting("redact.patterns", PATTERNS, {}, "Your own secret patterns.", own_only=True),
    Setting("redact.samples.match", TEXTS, {}, "For each pattern of your own, a text that it must match.", own_only=True),
    Setting("redact.samples.never", TEXTS, {}, "For each pattern of your own, a text that it must not match.", own_only=True),
    Setting("remote-ca", TEXT, None, "A file with certificates to trust besides the system's.", own_only=True),
    Setting("remote-server", TEXT, None, "Server to use instead of this project's files."),
    Setting("resume.budget", WHOLE, None, "Default token limit for the context of `rawko resume`."),
    Setting("runners", COMMANDS, {}, "Command that `rawko resume` runs for each agent.", own_only=True),
    Setting("search.fold", one_of("auto", "off"), "auto", "Whether the search index is updated automatically."),
    Setting("server.audit.max_age", DURATION, None, "A server deletes audit entries that are older than this; by default none."),
    Setting("state.retention.compress_after", DURATION, None, "Compress finished tasks (`.task.gz`) after this time."),
    Setting("state.retention.keep_failed", SWITCH, True, "Keep failed and interrupted tasks regardless of their age."),
    Setting("state.retention.max_age", DURATION, None, "Move tasks to the trash when they ended longer ago than this."),
    Setting("state.retention.max_count", WHOLE, None, "Keep at most this many tasks; move the oldest to the trash."),
    Setting("state.retention.min_keep", WHOLE, 0, "Always keep this many of the newest tasks."),
    Setting("state.retention.trash", DURATION, 2_592_000, "Permanently delete tasks from the trash after this time."),
    Setting("state.share", one_of("no", "git"), "no", "`git`: share task files through git, and ignore only derived files."),
    Setting("trusted-servers", WORDS, (), "Servers that a project's settings may select as `remote-server`.", own_only=True),
    Setting("user.name", TEXT, None, "Your name in records (`By:`); default: your account name."),
    Setting("workspace", TEXT, None, "Workspace to use (servers with workspaces only)."),
)  # fmt: skip
BY_KEY: Final = {setting.key: setting for setting in SETTINGS}
_MAPPINGS: Final = (COMMANDS, TEXTS, PATTERNS)
# The mappings that contain settings.
SECTIONS: Final = frozenset(key[:at] for key in BY_KEY for at, letter in enumerate(key) if letter == ".")


class Place(NamedTuple):
    """What a key names: a setting, or one entry of a setting that is a mapping, such as ``runners.developer``."""

    setting: Setting
    entry: str | None

    def read(self, value: Any) -> Any:
        """The value of the setting, or of the entry in it."""
        return value if self.entry is None else (value or {}).get(self.entry)


def find(key: str) -> Place | None:
    setting = BY_KEY.get(key)
    if setting is not None:
        return Place(setting, None)
    parent, _, entry = key.rpartition(".")
    setting = BY_KEY.get(parent)
    return Place(setting, entry) if setting is not None and is_mapping(setting) and entry else None


def is_mapping(setting: Setting) -> bool:
    return setting.type in _MAPPINGS


def nearest(key: str) -> str:
    import difflib  # only needed for typos

    near = difflib.get_close_matches(key, [*BY_KEY, *SECTIONS], n=1)
    return f" Did you mean {near[0]}?" if near else " List them: rawko config list"
