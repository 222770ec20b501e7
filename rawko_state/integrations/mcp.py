"""The MCP server: lets an agent look up past tasks over standard input and output, with the official SDK (``[mcp]``).

It only reads, unless it is told that it may write. What it answers is in ``recall.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from rawko_state.errors import RawkoError
from rawko_state.integrations.recall import LIMIT, QUOTED, Recall
from rawko_state.version import __version__

if TYPE_CHECKING:
    from rawko_state.store.contract import Store

_INSTRUCTIONS: Final = f"""\
rawko records what coding agents did in this project: requests, turns, tool calls, decisions, files. Before you begin a task, \
search for earlier work on it, and ask what touched a file before you change it. {QUOTED} Each result names its task and the \
seal of its record, so that it can be checked. Answers are short; they say how to get more."""
_READS: Final = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_ADDS: Final = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)


def server(opened: Callable[[], Store], *, write: bool = False, limit: int = LIMIT) -> MCPServer:
    """A server over the store that ``opened`` returns, which is called at the first question: an agent starts its servers in
    any folder, and one that fails at the start can't say why."""
    found = MCPServer("rawko", title="rawko", instructions=_INSTRUCTIONS, version=__version__, log_level="ERROR")
    store = functools.cache(opened)

    def answer(ctx: Context, ask: Callable[[Recall], str]) -> str:
        try:
            return ask(Recall(store(), _name_of(ctx), limit))
        except RawkoError as error:
            raise ToolError(str(error)) from None

    def search(query: str, ctx: Context, skip: int = 0) -> str:
        """Find past tasks that contain all the words. Also: OR, NOT, "phrases", prefix*, agent: file: tool: status: label:."""
        return answer(ctx, lambda recall: recall.search(query, skip))

    def list_tasks(
        ctx: Context, status: str | None = None, agent: str | None = None, file: str | None = None, skip: int = 0
    ) -> str:
        """List past tasks, most recent first. `status`: completed, failed, interrupted, cancelled …"""
        return answer(ctx, lambda recall: recall.tasks(status, agent, file, skip))

    def show_task(task: str, ctx: Context, from_turn: int = 1) -> str:
        """Show one task: its request, result and turns in short. `task`: an id or the start of one."""
        return answer(ctx, lambda recall: recall.task(task, from_turn))

    def show_turn(task: str, turn: int, ctx: Context, skip: int = 0) -> str:
        """Show one turn of a task in full: what was said, the tool calls and the changes."""
        return answer(ctx, lambda recall: recall.turn(task, turn, skip))

    def file_history(path: str, ctx: Context, skip: int = 0) -> str:
        """What touched this file: the tasks and turns that read, wrote or deleted it. A folder or a glob works too."""
        return answer(ctx, lambda recall: recall.touched(path, skip))

    def resume_context(task: str, ctx: Context, budget: int | None = None, at_turn: int | None = None) -> str:
        """What you need to know to continue a task, within `budget` tokens. `at_turn`: as of that turn."""
        return answer(ctx, lambda recall: recall.context(task, at_turn, budget))

    def record_note(text: str, ctx: Context, task: str = "current") -> str:
        """Add a note to a task, for whoever continues it. `task`: an id, or "current" for the one you work on."""
        return answer(ctx, lambda recall: recall.note(task, text))

    def record_decision(decision: str, reason: str, ctx: Context, task: str = "current") -> str:
        """Record a decision and its reason in a task. `task`: an id, or "current" for the one you work on."""
        return answer(ctx, lambda recall: recall.note(task, decision, kind="decision", reason=reason))

    reads: tuple[Any, ...] = (search, list_tasks, show_task, show_turn, file_history, resume_context)
    adds: tuple[Any, ...] = (record_note, record_decision) if write else ()
    for tool in reads:
        found.tool(annotations=_READS, structured_output=False)(tool)
    for tool in adds:
        found.tool(annotations=_ADDS, structured_output=False)(tool)
    return found


def _name_of(ctx: Context) -> str | None:
    """The name by which the asking program has introduced itself."""
    told: Any = ctx.session.client_params
    return str(told.client_info.name)[:100] if told is not None else None
