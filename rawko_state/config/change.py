"""Changes one setting in a file and leaves everything else in it unchanged, including comments."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

from rawko_state.config.schema import BY_KEY, WHOLE, Place, Wrong, find, is_mapping, nearest
from rawko_state.config.settings import Problem, entries
from rawko_state.errors import InvalidValue, RawkoError, StorageError


def parse_value(key: str, text: str) -> Any:
    """Parses a value from the command line."""
    setting, entry = place_of(key)
    if entry is None and is_mapping(setting):
        raise InvalidValue(f"{key} takes a value for each name: rawko config set {key}.NAME VALUE")
    try:
        return setting.type.of_text(text) if entry is None else setting.type.read({entry: text})[entry]
    except Wrong as wrong:
        said = f"{setting.key} takes {wrong}" if entry else f"{key} takes {wrong}, not {text!r}"
        raise InvalidValue(f"{said}.") from None


def place_of(key: str) -> Place:
    place = find(key)
    if place is None:
        raise InvalidValue(f"Unknown setting: {key!r}.{nearest(key)}")
    return place


def put(path: Path, key: str, text: str | None) -> None:
    """Sets a key, or removes it if the text is None. The file is replaced atomically."""
    place = place_of(key)
    wanted = None if text is None else parse_value(key, text)
    keys = place.setting.key.split(".") + ([] if place.entry is None else [place.entry])
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"Can't read {path}: {error}.", str(path)) from error
    for change in (changed, part_anew, whole_anew):
        after = change(before, keys, text, path)
        if _says(after, place, wanted, before, path):
            _replace(path, after)
            return
    raise RawkoError(f"Can't change {path} automatically.\n  Edit it: rawko config edit")


def _says(text: str, place: Place, wanted: Any, before: str, path: Path) -> bool:
    """Whether the changed file has the wanted value and everything else in it is unchanged."""
    key = place.setting.key
    problems: list[Problem] = []
    now = {name: value for name, value, _ in entries(text, path, problems)}
    earlier: list[Problem] = []
    then = {name: value for name, value, _ in entries(before, path, earlier)}
    value, old = now.pop(key, None), then.pop(key, None)
    found = place.read(None if value is None else place.setting.type.read(value))
    return (
        found == wanted
        and _others(value, place) == _others(old, place)
        and now == then
        and len(problems) <= len(earlier)
    )


def _others(value: Any, place: Place) -> dict[str, Any]:
    """The entries of a mapping beside the one that is changed."""
    if place.entry is None or not isinstance(value, dict):
        return {}
    return {name: each for name, each in value.items() if name != place.entry}


def changed(text: str, keys: list[str], value: str | None, path: Path) -> str:
    """The text of a YAML file with one value changed, added or removed."""
    import yaml

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise RawkoError(f"{path} is not valid YAML: {error}.".splitlines()[0]) from None
    indent, depth = "", 0
    end = len(text)
    alone: tuple[Any, Any] | None = None
    """The outermost mapping that holds nothing but the key: it is removed along with it."""
    while isinstance(node, yaml.MappingNode):
        found = next(((key, inner) for key, inner in node.value if key.value == keys[depth]), None)
        if found is None:
            break
        key_node, inner = found
        indent = " " * key_node.start_mark.column
        only = len(node.value) == 1 and depth > 0
        alone = (alone if only else None) or (key_node, inner)
        if depth == len(keys) - 1:
            if value is None:
                return _without(text, *alone)
            return (
                text[: inner.start_mark.index] + _scalar(value, number=_is_number(keys)) + text[inner.end_mark.index :]
            )
        end = inner.end_mark.index
        node, depth = inner, depth + 1
        if isinstance(node, yaml.MappingNode) and node.value:
            indent = " " * node.value[0][0].start_mark.column
    if value is None:
        return text
    lines = []
    for level, name in enumerate(keys[depth:]):
        last = level == len(keys) - depth - 1
        lines.append(f"{indent}{'  ' * level}{name}:" + (f" {_scalar(value, number=_is_number(keys))}" if last else ""))
    block = "\n".join(lines) + "\n"
    if depth == 0:
        return text + ("" if not text or text.endswith("\n") else "\n") + block
    at = text.rfind("\n", 0, end) + 1 if end <= len(text) and text[end - 1 : end] == "\n" else len(text[:end])
    before = text[:at]
    return before + ("" if before.endswith("\n") else "\n") + block + text[at:].lstrip("\n")


def _without(text: str, key_node: Any, inner: Any) -> str:
    start = text.rfind("\n", 0, key_node.start_mark.index) + 1
    end = text.find("\n", _end(inner))
    return text[:start] + (text[end + 1 :] if end >= 0 else "")


def _end(node: Any) -> int:
    """Where the last value of a node ends. The end mark of a block node is where the next node begins."""
    import yaml

    if isinstance(node, (yaml.MappingNode, yaml.SequenceNode)) and node.value and not node.flow_style:
        last = node.value[-1]
        return _end(last[1] if isinstance(node, yaml.MappingNode) else last)
    return int(node.end_mark.index)


def part_anew(text: str, keys: list[str], value: str | None, path: Path) -> str:
    """For files whose layout has no room for a new line: rewrites the top-level section of the key in block style. Only that
    section loses its comments."""
    import yaml

    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        return whole_anew(text, keys, value, path)
    data = _data(text, keys, value, path)
    block = _dumped({keys[0]: data[keys[0]]} if keys[0] in data else {})
    for key_node, inner in node.value:
        if key_node.value == keys[0]:
            end = text.find("\n", _end(inner))
            return text[: key_node.start_mark.index] + block + (text[end + 1 :] if end >= 0 else "")
    return text + ("" if not text or text.endswith("\n") else "\n") + block


def whole_anew(text: str, keys: list[str], value: str | None, path: Path) -> str:
    """The same for the whole file."""
    return _dumped(_data(text, keys, value, path))


def _data(text: str, keys: list[str], value: str | None, path: Path) -> dict[str, Any]:
    import yaml

    data = yaml.safe_load(text) or {}
    if not isinstance(data, dict):
        raise RawkoError(f"{path} does not hold settings: it must be a mapping.")
    _put(data, keys, None if value is None else yaml.safe_load(_scalar(value, number=_is_number(keys))))
    return data


def _dumped(data: dict[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True)) if data else ""


def _put(data: dict[str, Any], keys: list[str], value: Any) -> None:
    inner = data.get(keys[0])
    if len(keys) > 1:
        inner = inner if isinstance(inner, dict) else {}
        _put(inner, keys[1:], value)
        value = inner or None
    if value is None:
        data.pop(keys[0], None)
    else:
        data[keys[0]] = value


def _is_number(keys: list[str]) -> bool:
    """Whether a setting may be written as a number: text that looks like one is quoted."""
    setting = BY_KEY.get(".".join(keys))
    return setting is not None and setting.type is WHOLE


def _scalar(value: str, *, number: bool) -> str:
    """A value as YAML on one line, quoted where YAML would read it as another type."""
    import yaml

    shown: int | str = int(value) if number and value.isdecimal() else value
    return str(yaml.safe_dump(shown, width=10**9, allow_unicode=True)).split("\n")[0]


def _replace(path: Path, text: str) -> None:
    beside = None
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
        if beside is not None:
            with contextlib.suppress(OSError):
                os.unlink(beside)
        raise StorageError(f"Can't write {path}: {error.strerror}.", str(path), error.errno) from error
