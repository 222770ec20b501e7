"""One span or event of telemetry, whatever it came by, and how to read what it says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from rawko_state.format.fair_json import shallow
from rawko_state.model.frozen import Frozen

CHAT: Final = frozenset(("chat", "text_completion", "generate_content"))
INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
_CONVERSATION: Final = ("gen_ai.conversation.id", "session.id", "conversation.id")
_WHOSE: Final = (*_CONVERSATION, "gen_ai.agent.name", "agent_name", "gen_ai.provider.name", "gen_ai.system")


class Signal(Frozen):
    """A span or an event, whatever it came by."""

    key: str
    """Recognises it when it is sent again."""
    name: str
    trace: str
    at: datetime | None
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]
    ended: datetime | None = None
    error: str | None = None
    outermost: bool = False
    is_event: bool = False
    within: str = ""
    """The key of the span in which an event happened."""
    body: Any = None
    """What an event holds beside its attributes."""
    late: bool = False
    """What was said in a request that was recorded before."""

    @property
    def duration_ms(self) -> int | None:
        known = self.at is not None and self.ended is not None
        return max(0, (self.ended - self.at) // timedelta(milliseconds=1)) if known else None  # type: ignore[operator]

    @property
    def operation(self) -> str | None:
        found = self.attributes.get("gen_ai.operation.name")
        return found if isinstance(found, str) else None

    @property
    def kind(self) -> str:
        """What an event of Claude Code or Codex tells of: ``api_request``, ``tool_result`` …"""
        return self.name.partition(".")[2] if self.is_event else ""

    @property
    def conversation(self) -> str:
        """What it belongs to: a conversation that is named, else its trace."""
        named = next((self.attributes[key] for key in _CONVERSATION if self.attributes.get(key)), None)
        return self.trace if named is None else str(named)

    @property
    def whose(self) -> dict[str, Any]:
        """The attributes that say to which conversation and agent it belongs."""
        return {name: self.attributes[name] for name in _WHOSE if name in self.attributes}


def parts(messages: Any, *roles: str) -> Iterator[Mapping[str, Any]]:
    """The parts of the messages of these roles."""
    found = data(messages)
    for message in found if isinstance(found, list) else ():
        if isinstance(message, dict) and message.get("role") in roles:
            own = message.get("parts", message.get("content"))
            own = [{"type": "text", "content": own}] if isinstance(own, str) else own
            yield from (part for part in (own if isinstance(own, list) else ()) if isinstance(part, dict))


def first(given: Mapping[str, Any], *names: str) -> Any:
    return next((given[name] for name in names if given.get(name) is not None), None)


def data(value: Any) -> Any:
    """A value that is sent as JSON in a string, as attributes can't be nested everywhere."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(shallow(value))
        except ValueError:
            return value
    return value
