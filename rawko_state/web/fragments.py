"""Recorded text as markup of the page: what ``exchange`` has made safe, marked as such."""

from __future__ import annotations

from typing import Final

from markupsafe import Markup

from rawko_state.exchange import rich_html
from rawko_state.exchange.telling import Telling, tell
from rawko_state.model.entries import Diff, ToolCall, Turn
from rawko_state.store.contract import HostedStore

_VERBS: Final = {"$": "Run"}
"""What is a prompt in a terminal is a word here."""
ROWS: Final = 300
"""Rows of a diff that are sent at a time."""
_NOBODYS: Final = Turn(number=1, agent="")


def telling(call: ToolCall, turn: Turn) -> Telling:
    line = tell(call, turn)
    return line._replace(verb=_VERBS.get(line.verb, line.verb))


def telling_now(tool: str, args: str) -> Telling:
    """Of a call that runs: nothing but its name and arguments is known."""
    return telling(ToolCall(tool, args), _NOBODYS)


def markdown(text: str) -> Markup:
    """With its own ``div.md``."""
    return Markup(rich_html.markdown_html(text))


def output(text: str) -> Markup:
    """The inside of a ``pre``."""
    return Markup(rich_html.output_html(text))


def diff(
    value: Diff, at: str, *, split: bool, store: HostedStore | None = None, first: int = 0, most: int = ROWS
) -> Markup:
    """Some rows of a diff, and where the others are: ``at`` is the address of a page for this diff alone. What is kept apart is
    shown with ``store`` only."""
    hunks: str | None = value.hunks
    if value.blob is not None:
        data = store.blob_bytes(value.blob) if store is not None and most else None
        hunks = None if data is None else data.decode("utf-8", "replace")
        if hunks is None and store is not None and most:
            return Markup('<p class="note bad">{}</p>').format(
                f"The diff of {value.path} is kept apart, and can't be read now."
            )
    query = "&diff=split" if split else ""
    if hunks is None or not most:
        text = f"+{value.added:,} −{value.removed:,}"
        return Markup('<p class="rest"><span>{}</span> <a class="further" href="{}?at=0{}">Open them</a></p>').format(
            text, at, Markup(query)
        )
    html, following = rich_html.diff_part_html(value, hunks, split=split, first=first, most=most)
    if following is None:
        return Markup(html)
    rest = Markup('{}<p class="rest"><span>{}</span> <a class="further" href="{}?at={}{}">Open more</a></p>')
    return rest.format(Markup(html), f"The first {following:,} lines of this diff", at, following, Markup(query))
