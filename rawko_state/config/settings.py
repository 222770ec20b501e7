"""Settings in layers: system, user, project, project-user, environment. Later layers win, key by key.

Nothing is loaded until a setting is needed. YAML is only composed, never constructed: no tag in a file can create an object.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rawko_state.config import folders
from rawko_state.config.schema import BY_KEY, FOREIGN, SECTIONS, SETTINGS, Setting, Wrong, nearest
from rawko_state.errors import InvalidValue, UnsafePath
from rawko_state.model.frozen import Frozen

_LARGEST: Final = 1 << 20
_VARIABLES: Final = tuple({f"RAWKO_{setting.key.partition('.')[0].upper()}_" for setting in SETTINGS})
OWN_ONLY: Final = "is read only from your own settings, because a project's files may come from anyone"


class Problem(Frozen):
    where: str
    message: str
    key: str = ""
    """The setting concerned; empty if the file could not be read at all."""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class Value(Frozen):
    """The value of a setting, and the file and line, or the variable, that it comes from."""

    value: Any
    origin: str


class Settings:
    __slots__ = ("problems", "values")

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.problems: list[Problem] = []

    def __getitem__(self, key: str) -> Any:
        return self.value(key).value

    def value(self, key: str) -> Value:
        setting = BY_KEY.get(key)
        if setting is None:
            raise InvalidValue(f"Unknown setting: {key!r}.{nearest(key)}")
        return self.values.get(key, Value(setting.default, "default"))


def files(root: Path | None) -> dict[str, Path]:
    """The path of each layer's file, whether it exists or not."""
    found = {
        "system": folders.site_config() / "config.yaml",
        "user": folders.user_config() / "config.yaml",
    }
    if root is not None:
        found["project"] = root / ".rawko" / "config.yaml"
        found["project-user"] = root / ".rawko" / "config.user.yaml"
    return found


def load(root: Path | None, environment: Mapping[str, str] | None = None) -> Settings:
    """Merges all layers. Invalid values are left out and reported in ``problems``."""
    settings = Settings()
    for layer, path in files(root).items():
        ours = not layer.startswith("project")
        if not ours:
            _check_is_file(path)
        _take_file(settings, path, ours=ours)
    environment = os.environ if environment is None else environment
    for setting in SETTINGS:
        text = environment.get(setting.variable)
        if text is not None:
            _take(settings, setting, setting.type.of_text, text, setting.variable)
    settings.problems += _unknown_variables(environment)
    return settings


def _unknown_variables(environment: Mapping[str, str]) -> Iterator[Problem]:
    """Variables that are named like a setting's but match none. Others (RAWKO_DIR, RAWKO_TASK ...) are not settings."""
    known = {setting.variable: setting.key for setting in SETTINGS}
    for name in sorted(environment):
        if name.startswith(_VARIABLES) and name not in known:
            import difflib  # only needed for typos

            near = difflib.get_close_matches(name, known, n=1)
            advice = f". Did you mean {near[0]}?" if near else ""
            yield Problem(name, f"unknown environment variable{advice}", name)


def _take_file(settings: Settings, path: Path, *, ours: bool) -> None:
    found = read_file(path, settings.problems)
    if found is None:
        return
    text, source = found
    for key, value, line in entries(text, source, settings.problems):
        setting = BY_KEY[key]
        if setting.own_only and not ours:
            settings.problems.append(Problem(f"{source}:{line}", f"{key} {OWN_ONLY}", key))
            continue
        _take(settings, setting, setting.type.read, value, f"{source}:{line}")


def _take(settings: Settings, setting: Setting, read: Any, given: Any, origin: str) -> None:
    try:
        value = read(given)
    except Wrong as wrong:
        settings.problems.append(Problem(origin, f"{setting.key} takes {wrong}, not {given!r:.80}", setting.key))
        return
    settings.values[setting.key] = Value(value, origin)


def _check_is_file(path: Path) -> None:
    """A project may come from anyone: its settings must be a regular file, not a link to, say, /dev/zero."""
    for each in (path, path.with_suffix(".cue")):
        try:
            found = os.lstat(each)
        except OSError:
            continue
        if not stat.S_ISREG(found.st_mode):
            raise UnsafePath(f"{each} is not a regular file. Project settings are read from regular files only.")


def read_file(path: Path, problems: list[Problem]) -> tuple[str, str] | None:
    """The text and origin of a settings file, or of the CUE file in its place; None if neither exists."""
    try:
        # Do not block on a pipe, and do not read more than the maximum size.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                problems.append(Problem(str(path), "not a regular file"))
                return None
            data = stream.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            problems.append(Problem(str(path), "too large for a settings file"))
            return None
        return data.decode("utf-8").replace("\r\n", "\n"), str(path)
    except FileNotFoundError:
        return _from_cue(path.with_suffix(".cue"), problems)
    except (OSError, UnicodeDecodeError) as error:
        problems.append(Problem(str(path), f"can't be read: {error}"))
        return None


def _from_cue(path: Path, problems: list[Problem]) -> tuple[str, str] | None:
    if not path.is_file():
        return None
    import shutil
    import subprocess

    command = shutil.which("cue")
    if command is None:
        advice = f"cue export --out yaml {path.name} > {path.with_suffix('.yaml').name}"
        problems.append(Problem(str(path), f"the cue command is not installed; where it is: {advice}"))
        return None
    try:
        done = subprocess.run(
            [command, "export", "--out", "yaml", path.name], cwd=path.parent, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as error:
        problems.append(Problem(str(path), f"cue: {error}"))
        return None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it failed"])[0]
        problems.append(Problem(str(path), f"cue: {said}"))
        return None
    return done.stdout, f"{path} (exported)"


def entries(text: str, path: Path | str, problems: list[Problem]) -> Iterator[tuple[str, Any, int]]:
    """Yields each known key with its value and its line."""
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        problems.append(Problem(where, f"not valid YAML: {getattr(error, 'problem', None) or error}"))
        return
    except RecursionError:
        problems.append(Problem(str(path), "nested too deeply"))
        return
    if root is not None:
        yield from _walk(root, "", path, problems)


def _walk(node: Any, prefix: str, path: Path | str, problems: list[Problem]) -> Iterator[tuple[str, Any, int]]:
    import yaml

    if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null"):
        return  # an empty section
    if not isinstance(node, yaml.MappingNode):
        what = repr(prefix) if prefix else "the file"
        problems.append(Problem(f"{path}:{node.start_mark.line + 1}", f"{what} must be a mapping", prefix))
        return
    seen: set[str] = set()
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        name = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
        key = f"{prefix}.{name}" if prefix else name
        if key in seen:
            problems.append(Problem(f"{path}:{line}", f"{key!r} appears twice", key))
        elif key in SECTIONS:
            yield from _walk(value_node, key, path, problems)
        elif key in BY_KEY:
            yield key, _plain(value_node), line
        elif key in FOREIGN:
            pass
        else:
            problems.append(Problem(f"{path}:{line}", f"unknown setting {key!r}.{nearest(key)}", key))
        seen.add(key)


def _plain(node: Any) -> Any:
    """The value of a node: a scalar by YAML's safe rules, or a mapping or list of scalars."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        return {
            str(key.value): _plain(value) if isinstance(value, yaml.ScalarNode) else None for key, value in node.value
        }
    if isinstance(node, yaml.SequenceNode):
        # Anything but a scalar has the wrong type; None keeps its place, so that it is reported.
        return [_plain(item) if isinstance(item, yaml.ScalarNode) else None for item in node.value]
    if isinstance(node, yaml.ScalarNode):
        try:
            return yaml.SafeLoader("").construct_object(node)
        except (yaml.YAMLError, ValueError):
            return None
    return None
