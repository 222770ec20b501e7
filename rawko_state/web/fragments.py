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


def diff(value: Diff, *, split: bool, store: HostedStore | None = None) -> Markup:
    """With ``store``, also one that is kept apart."""
    hunks = None
    if value.blob is not None:
        data = store.blob_bytes(value.blob) if store is not None else None
        if data is None:
            return Markup('<p class="note bad">{}</p>').format(
                f"The diff of {value.path} is kept apart, and can't be read now."
            )
        hunks = data.decode("utf-8", "replace")
    return Markup((rich_html.split_diff_html if split else rich_html.diff_html)(value, hunks))
