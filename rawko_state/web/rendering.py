"""Templates to HTML. Everything is escaped unless a function of ours made it as markup; control characters are made visible."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rawko_state.format.text import visible
from rawko_state.web import wording
from rawko_state.web.visits import FILTERS, Visit

_BEGINNING: Final = 4096
"""Characters. The styles, the scripts and the icons of every page are named in more than that."""
_FOLDER: Final = Path(__file__).parent
STATIC: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
ICONS: Final = {
    "running": "run", "waiting": "wait", "paused": "pause", "completed": "ok", "failed": "fail", "cancelled": "cancel",
    "interrupted": "cut", "pending": "pend", "unknown": "unknown",
}  # fmt: skip


def _shown(value: Any) -> Any:
    return visible(value) if type(value) is str else value


@functools.cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    made.globals |= {
        "counted": wording.counted, "count": wording.count, "hue": wording.hue, "clock": wording.clock, "icons": ICONS,
        "moment": wording.moment, "took": wording.took, "size": wording.size, "age": wording.age, "day": wording.day,
        "first_line": wording.first_line, "filter_names": FILTERS,
    }  # fmt: skip
    return made


def rendered(visit: Visit, template: str, values: dict[str, Any]) -> bytes:
    text = environment().get_template(template).render(visit=visit, **values)
    return text.encode("utf-8", "replace")


def beginning(visit: Visit, template: str, values: dict[str, Any]) -> tuple[bytes, Iterator[str]]:
    """The first part of a page, of what no task takes part in, and the rest: it is made when it is asked for."""
    texts = environment().get_template(template).generate(visit=visit, **values)
    first, size = [], 0
    while size < _BEGINNING and (text := next(texts, None)) is not None:
        first.append(text)
        size += len(text)
    return "".join(first).encode("utf-8", "replace"), texts


def fragment(visit: Visit, template: str, **values: Any) -> str:
    """A piece of a page, for a script to put in."""
    return rendered(visit, template, values).decode()


def plain(text: str) -> Markup:
    """Text as markup: escaped, its control characters shown."""
    return Markup.escape(visible(text))


@functools.cache
def static_file(name: str) -> tuple[bytes, str, str] | None:
    """Content, media type and tag of a file that the page loads."""
    suffix = name.rpartition(".")[2]
    path = _FOLDER / "static" / name
    if suffix not in STATIC or "/" in name or "\\" in name or name.startswith(".") or not path.is_file():
        return None
    data = path.read_bytes()
    return data, STATIC[suffix], f'"{hashlib.sha256(data).hexdigest()[:20]}"'
