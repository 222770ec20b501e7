"""Recorded text as safe HTML: Markdown, highlighted code, diffs, the output of programs. The HTML export and the page share it.

Everything in a task is untrusted. Markdown is rendered with raw HTML off, links lead to http, https and mailto only, and
nothing is loaded: an image becomes its description. Styles are classes, so that a strict Content-Security-Policy holds. Without
the extra ``[html]`` (markdown-it-py, Pygments) the same functions return plain escaped text.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from html import escape
from itertools import islice, pairwise, zip_longest
from typing import Any, Final

from rawko_state.exchange.coloured import PLAIN, runs, settled
from rawko_state.exchange.diff_lines import DiffLine, lines_of
from rawko_state.format.diffs import NO_END
from rawko_state.format.text import visible
from rawko_state.model.entries import Diff

_SCHEMES: Final = ("http://", "https://", "mailto:")
_MOST_MARKDOWN: Final = 200_000
"""Longer texts are shown as they are: nobody reads them for their form, and they would take seconds."""
_MOST_CODE: Final = 60_000
_LONGEST_LINE: Final = 2_000
_AHEAD: Final = 2_000
"""Lines that are read after those of a diff that are shown: which lines replace which depends on them."""
_LONG = re.compile(rf"^(.{{{_LONGEST_LINE}}})(.+)$", re.MULTILINE)
_Tokens = list[tuple[str, str]]
"""A line of code: class and text of each piece."""


@lru_cache(maxsize=1)
def is_rich() -> bool:
    """Whether the extra is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("markdown_it", "pygments"))


def text_html(text: str) -> str:
    """Escaped text, with control characters made visible."""
    return escape(visible(text).replace("\x00", "␀"), quote=True)


# Markdown


def markdown_html(text: str) -> str:
    """What somebody said, as ``<div class="md">``."""
    if not is_rich() or len(text) > _MOST_MARKDOWN:
        return f'<div class="md pre">{text_html(text)}</div>'
    return f'<div class="md">{_markdown().render(visible(text))}</div>'


@lru_cache(maxsize=1)
def _markdown() -> Any:
    from markdown_it import MarkdownIt

    made: Any = MarkdownIt("commonmark", {"html": False, "linkify": False, "breaks": True}).enable(
        ["table", "strikethrough"]
    )
    rules: dict[str, Callable[..., str]] = {
        "fence": _fence,
        "code_block": _fence,
        "image": _image,
        "link_open": _link_open,
        "link_close": _link_close,
        "heading_open": _heading,
        "heading_close": _heading,
        "th_open": _cell,
        "td_open": _cell,
    }
    for name, rule in rules.items():
        made.add_render_rule(name, rule)
    # A link that leads elsewhere is still recognised, and shown as its words by _link_open.
    made.validateLink = lambda _: True
    return made


def _fence(_: Any, tokens: Sequence[Any], at: int, *__: Any) -> str:
    token = tokens[at]
    language = (token.info or "").strip().split(" ")[0]
    return code_html(token.content.removesuffix("\n"), language=language)


def _image(_: Any, tokens: Sequence[Any], at: int, *__: Any) -> str:
    token = tokens[at]
    words = token.content or "no description"
    return f'<span class="image">[image: {escape(words)}]</span>'


def _link_open(self: Any, tokens: Sequence[Any], at: int, options: Any, env: Any) -> str:
    href = str(tokens[at].attrGet("href") or "")
    if not href.lower().startswith(_SCHEMES):
        env.setdefault("elsewhere", []).append(True)
        return f'<span class="link" title="{escape(href, quote=True)}">'
    env.setdefault("elsewhere", []).append(False)
    return f'<a href="{escape(href, quote=True)}" rel="noopener noreferrer nofollow">'


def _link_close(_: Any, __: Any, ___: Any, ____: Any, env: Any) -> str:
    opened = env.get("elsewhere") or [False]
    return "</span>" if opened.pop() else "</a>"


def _heading(_: Any, tokens: Sequence[Any], at: int, options: Any, env: Any) -> str:
    """Below the headings of the page that it is part of, and at most one level below the heading before it."""
    token = tokens[at]
    if token.nesting != 1:
        return f"</h{env['heading']}>\n"
    env["heading"] = min(6, int(token.tag[1]) + 2, env.get("heading", 2) + 1)
    return f"<h{env['heading']}>"


def _cell(_: Any, tokens: Sequence[Any], at: int, *__: Any) -> str:
    """markdown-it-py aligns columns by inline styles, which the policy forbids."""
    token = tokens[at]
    side = str(token.attrGet("style") or "").rpartition(":")[2]
    return f'<{token.tag} class="{side}">' if side in ("right", "center") else f"<{token.tag}>"


# Code


def code_html(code: str, *, language: str = "", path: str = "") -> str:
    """Code as ``<pre class="code">``, highlighted if its language is known by name or by the path of its file."""
    lines = [_line_html(line) for line in _highlighted(code, language=language, path=path)]
    return '<pre class="code" tabindex="0"><code>' + "\n".join(lines) + "\n</code></pre>\n"


def _highlighted(code: str, *, language: str = "", path: str = "") -> Iterable[_Tokens]:
    """The lines of code. Plain where it is not known how to highlight them, or not worth the time."""
    code = code.replace("\r\n", "\n").replace("\r", "␍")  # a lexer would take it for the end of a line
    lexer = _lexer(language, path) if is_rich() and len(code) <= _MOST_CODE else None
    if lexer is None or any(len(line) > _LONGEST_LINE for line in code.split("\n")):
        return ([("", line)] for line in code.split("\n"))
    lines: list[_Tokens] = [[]]
    try:
        for kind, text in lexer.get_tokens(code):
            for number, part in enumerate(text.split("\n")):
                if number:
                    lines.append([])
                if part:
                    lines[-1].append((_class_of(kind), part))
    except Exception:  # a lexer that fails must not keep anybody from reading
        return ([("", line)] for line in code.split("\n"))
    wanted = code.count("\n") + 1  # lexers end the last line
    return [*lines, *([] for _ in range(wanted - len(lines)))][:wanted]


@lru_cache(maxsize=64)
def _lexer(language: str, path: str) -> Any:
    from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
    from pygments.util import ClassNotFound

    options = {"stripnl": False, "ensurenl": True}
    try:
        if language:
            return get_lexer_by_name(language[:40].lower(), **options)
        name = path.rpartition("/")[2]
        return get_lexer_for_filename(name, **options) if name else None
    except ClassNotFound:
        return None


@lru_cache(maxsize=256)
def _class_of(kind: Any) -> str:
    """Few classes, so that a page needs few colours: keyword, string, number, name of a function or class, comment."""
    from pygments.token import Comment, Generic, Keyword, Name, Number, Operator, String

    for kinds, name in (
        ((Comment,), "cm"),
        ((String,), "s1"),
        ((Number,), "m"),
        ((Keyword, Operator.Word, Name.Tag), "k"),
        ((Name.Function, Name.Class, Name.Decorator, Name.Attribute), "f"),
        ((Generic.Inserted,), "add"),
        ((Generic.Deleted,), "del"),
    ):
        if any(kind in each for each in kinds):
            return name
    return ""


def _line_html(tokens: _Tokens, change: tuple[int, int] | None = None, mark: str = "") -> str:
    """A line of code. ``change``: from where to where it differs from the line that it replaces, shown in a ``mark`` element."""
    found: list[str] = []
    at = 0
    begin, end = change if change is not None else (-1, -1)
    for name, text in tokens:
        for start, stop in _cuts(at, at + len(text), begin, end):
            piece = text_html(text[start - at : stop - at])
            piece = f'<span class="{name}">{piece}</span>' if name else piece
            found.append(f"<{mark}>{piece}</{mark}>" if change is not None and begin <= start < end else piece)
        at += len(text)
    return "".join(found)


def _cuts(start: int, stop: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    places = sorted({start, stop, *(place for place in (begin, end) if start < place < stop)})
    return pairwise(places)


# Output


_STYLES: Final = ("bold", "dim", "italic", "underline")


def output_html(text: str) -> str:
    """What a program printed, as the inside of a ``<pre>``; its colours as classes ``c0`` to ``c15``, ``bold``, ``dim`` …"""
    found: list[str] = []
    for style, piece in runs(settled(text)):
        shown = escape(piece.replace("\x00", "␀"), quote=True)
        names = [name for name in _STYLES if getattr(style, name)]
        names += [] if style.colour is None else [f"c{style.colour}"]
        found.append(shown if style == PLAIN else f'<span class="{" ".join(names)}">{shown}</span>')
    return "".join(found)


# Diffs


def diff_html(diff: Diff, hunks: str | None = None) -> str:
    """A diff as a table: line numbers of both sides, sign, code. Numbers are attributes, so that copying gives code only.
    ``hunks``: those of a diff that is kept apart, if the caller has them."""
    path = diff.path or ""
    return _table(path, diff_rows(hunks if hunks is not None else diff.hunks, path), split=False)


def diff_part_html(diff: Diff, hunks: str, *, split: bool, first: int, most: int) -> tuple[str, int | None]:
    """Some rows of a diff, as ``diff_html`` makes them or with both sides next to each other, and the row at which it goes on;
    None after the last one. Very long lines are cut, and say so."""
    path = diff.path or ""
    if not split:  # each line is a row
        hunks = "\n".join(hunks.split("\n", first + most + _AHEAD)[: first + most + _AHEAD])
    hunks = _LONG.sub(lambda found: f"{found[1]} … {len(found[2]):,} characters more", hunks)
    rows = islice((_split_rows if split else diff_rows)(hunks, path), first, None)
    html = _table(path, islice(rows, most), split=split)
    return html, (first + most if next(rows, None) is not None else None)


def _table(path: str, rows: Iterable[str], *, split: bool) -> str:
    label = text_html(path)
    columns = '<colgroup><col class="cn"><col><col class="cn"><col></colgroup>' if split else ""
    return (
        f'<div class="diff-w" role="group" tabindex="0" aria-label="Diff of {label}">'
        f'<table class="diff{" two" if split else ""}"><caption class="vh">Changes to {label}</caption>{columns}'
        f"{''.join(rows)}</table></div>"
    )


def _joined(lines: Sequence[DiffLine], signs: str) -> str:
    """One side of a diff, as the lexer reads it."""
    return "\n".join(line.text.replace("\r", "␍") for line in lines if line.sign in signs)


def diff_rows(hunks: str, path: str) -> Iterator[str]:
    """The rows of a unified diff: ``tr.hunk``, ``tr.a`` added, ``tr.d`` removed."""
    lines = list(lines_of(hunks))
    new = iter(_highlighted(_joined(lines, " +"), path=path))
    old = iter(_highlighted(_joined(lines, " -"), path=path))
    for line in lines:
        if line.sign == "@":
            yield f'<tr class="hunk"><td colspan="4">{text_html(line.text)}</td></tr>'
        elif line.sign == "\\":
            yield f'<tr class="hunk"><td colspan="4">{text_html(NO_END[2:])}</td></tr>'
        else:
            before = next(old) if line.sign in " -" else []
            after = next(new) if line.sign in " +" else []
            tokens = before if line.sign == "-" else after
            kind = {"+": ' class="a"', "-": ' class="d"'}.get(line.sign, "")
            code = _line_html(tokens, line.change, "ins" if line.sign == "+" else "del")
            sign = "\u2212" if line.sign == "-" else line.sign.strip()
            yield (
                f'<tr{kind}><td class="n" data-n="{line.old or ""}"></td><td class="n" data-n="{line.new or ""}"></td>'
                f'<td class="s">{sign}</td><td class="c">{code}</td></tr>'
            )


def _split_rows(hunks: str, path: str) -> Iterator[str]:
    """The rows with both sides: number and code of the old file, number and code of the new one."""
    lines = list(lines_of(hunks))
    new = iter(_highlighted(_joined(lines, " +"), path=path))
    old = iter(_highlighted(_joined(lines, " -"), path=path))
    removed: list[str] = []
    added: list[str] = []
    for line in lines:
        if line.sign == "-":
            removed.append(_side("d", line.old, _line_html(next(old), line.change, "del")))
            continue
        if line.sign == "+":
            added.append(_side("a", line.new, _line_html(next(new), line.change, "ins")))
            continue
        yield from _beside(removed, added)
        removed, added = [], []
        if line.sign in "@\\":
            text = line.text if line.sign == "@" else NO_END[2:]
            yield f'<tr class="hunk"><td colspan="4">{text_html(text)}</td></tr>'
        else:
            code = _line_html(next(new))
            next(old)
            yield f"<tr>{_side('', line.old, code)}{_side('', line.new, code)}</tr>"
    yield from _beside(removed, added)


def _side(kind: str, number: int | None, code: str) -> str:
    return f'<td class="n {kind}" data-n="{number or ""}"></td><td class="c {kind}">{code}</td>'


def _beside(removed: list[str], added: list[str]) -> Iterator[str]:
    nothing = '<td class="n none"></td><td class="c none"></td>'
    for one, two in zip_longest(removed, added, fillvalue=nothing):
        yield f"<tr>{one}{two}</tr>"
