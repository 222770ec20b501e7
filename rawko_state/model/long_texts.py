"""Long texts of a turn, which are kept apart from the task file: outputs of tools, and diffs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rawko_state.model.entries import Blob, Diff, ToolCall, Turn, blobs_of
from rawko_state.model.frozen import replace

OUTPUT_LIMIT: Final = 16_384
DIFF_LIMIT: Final = 262_144
"""Higher than for outputs: people grep for what an agent wrote."""


def has_long_text(turn: Turn) -> bool:
    for call in turn.tools:
        if type(call) is ToolCall and call.output is not None and _is_long(call.output, OUTPUT_LIMIT):
            return True
    return any(_is_long(diff.hunks, DIFF_LIMIT) for diff in turn.diffs)


def apart(turn: Turn, put: Callable[[str], Blob]) -> Turn:
    """The turn with its long texts stored by ``put``."""
    if not has_long_text(turn):
        return turn

    def tool(call: ToolCall | str) -> ToolCall | str:
        if isinstance(call, str) or call.output is None or not _is_long(call.output, OUTPUT_LIMIT):
            return call
        return replace(call, output=None, blob=put(call.output))

    def diff(each: Diff) -> Diff:
        return replace(each, hunks="", blob=put(each.hunks)) if _is_long(each.hunks, DIFF_LIMIT) else each

    return replace(turn, tools=tuple(map(tool, turn.tools)), diffs=tuple(map(diff, turn.diffs)))


def with_blobs_changed(turn: Turn, change: Callable[[Blob], Blob]) -> Turn:
    """The turn with each of its blobs replaced; the same turn if none is."""
    new = {blob: change(blob) for blob in blobs_of(turn)}
    if all(new[blob] is blob for blob in new):
        return turn

    def tool(call: ToolCall | str) -> ToolCall | str:
        return replace(call, blob=new[call.blob]) if isinstance(call, ToolCall) and call.blob else call

    def diff(each: Diff) -> Diff:
        return replace(each, blob=new[each.blob]) if each.blob else each

    return replace(turn, tools=tuple(map(tool, turn.tools)), diffs=tuple(map(diff, turn.diffs)))


def _is_long(text: str, limit: int) -> bool:
    return len(text) * 4 > limit and len(text.encode("utf-8", "surrogatepass")) > limit
