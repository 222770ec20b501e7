"""Changing one setting in a file, leaving everything else in it as it stands, comments included."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from rawko_state.config.schema import BY_KEY, Wrong, nearest
from rawko_state.config.settings import Problem, entries
from rawko_state.errors import InvalidValue, StorageError


def parse_value(key: str, text: str) -> Any:
    """The value that a text on the command line stands for."""
    setting = BY_KEY.get(key)
    if setting is None:
        raise InvalidValue(f"no setting {key!r}{nearest(key)}")
    try:
        return setting.type.of_text(text)
    except Wrong as wrong:
        raise InvalidValue(f"{key}: expected {wrong}, not {text!r}") from None


def put(path: Path, key: str, text: str | None) -> None:
    """Sets a key to what a text says, or takes it out. The file is replaced at once, or not at all."""
    if text is not None:
        parse_value(key, text)
    elif key not in BY_KEY:
        raise InvalidValue(f"no setting {key!r}{nearest(key)}")
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"cannot read {path}: {error}", str(path)) from error
    after = changed(before, key.split("."), text, path)
    problems: list[Problem] = []
    found = {name: value for name, value, _ in entries(after, path, problems)}
    wanted = None if text is None else parse_value(key, text)
    read = None if key not in found else BY_KEY[key].type.read(found[key])
    if read != wanted or len(problems) > len(_problems(before, path)):
        raise InvalidValue(f"{path} is written in a way that cannot be changed from here: run 'rawko config edit'")
    _replace(path, after)


def _problems(text: str, path: Path) -> list[Problem]:
    problems: list[Problem] = []
    for _ in entries(text, path, problems):
        pass
    return problems


def changed(text: str, keys: list[str], value: str | None, path: Path) -> str:
    """The text of a YAML file with one value changed, added or taken out."""
    import yaml

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise InvalidValue(f"{path} is not YAML: {error}".splitlines()[0]) from None
    indent, depth = "", 0
    end = len(text)
    while isinstance(node, yaml.MappingNode):
        found = next(((key, inner) for key, inner in node.value if key.value == keys[depth]), None)
        if found is None:
            break
        key_node, inner = found
        indent = " " * key_node.start_mark.column
        if depth == len(keys) - 1:
            return _at(text, key_node, inner, value)
        end = inner.end_mark.index
        node, depth = inner, depth + 1
        if isinstance(node, yaml.MappingNode) and node.value:
            indent = " " * node.value[0][0].start_mark.column
    if value is None:
        return text
    lines = []
    for level, name in enumerate(keys[depth:]):
        last = level == len(keys) - depth - 1
        lines.append(f"{indent}{'  ' * level}{name}:" + (f" {_scalar(value)}" if last else ""))
    block = "\n".join(lines) + "\n"
    if depth == 0:
        return text + ("" if not text or text.endswith("\n") else "\n") + block
    at = text.rfind("\n", 0, end) + 1 if end <= len(text) and text[end - 1 : end] == "\n" else len(text[:end])
    before = text[:at]
    return before + ("" if before.endswith("\n") else "\n") + block + text[at:].lstrip("\n")


def _at(text: str, key_node: Any, inner: Any, value: str | None) -> str:
    if value is not None:
        return text[: inner.start_mark.index] + _scalar(value) + text[inner.end_mark.index :]
    start = text.rfind("\n", 0, key_node.start_mark.index) + 1
    end = text.find("\n", inner.end_mark.index)
    return text[:start] + (text[end + 1 :] if end >= 0 else "")


def _scalar(value: str) -> str:
    """As YAML, on one line, quoted where it would be something else."""
    import yaml

    return str(yaml.safe_dump(int(value) if value.isdecimal() else value, width=10**9, allow_unicode=True)).split("\n")[
        0
    ]


def _replace(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        if path.exists():
            os.chmod(beside, path.stat().st_mode & 0o777)
        os.replace(beside, path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}", str(path), error.errno) from error
