"""Transcripts of the Claude Agent SDK in a store, where other machines find them.

    pip install 'rawko-state[claude-agent-sdk]'
    python examples/claude_session_store.py FOLDER

With a key, pass the store to the SDK instead: ``ClaudeAgentOptions(session_store=RawkoSessionStore(store))``.
"""

from __future__ import annotations

import asyncio
import sys

import rawko_state
from rawko_state.integrations.claude_agent_sdk import RawkoSessionStore


async def main(folder: str) -> None:
    sessions = RawkoSessionStore(rawko_state.open(folder))
    key = {"project_key": "shop", "session_id": "5f3c"}
    # The SDK calls append() while a session runs, and load() when it is resumed.
    await sessions.append(
        key, [{"type": "user", "uuid": "u1", "message": {"role": "user", "content": "Fix the login"}}]
    )
    await sessions.append(
        key, [{"type": "assistant", "uuid": "u2", "message": {"role": "assistant", "content": "Done."}}]
    )
    for session in await sessions.list_sessions("shop"):
        print("session:", session["session_id"])
    for entry in await sessions.load(key) or []:
        print(f"{entry['type']}: {entry['message']['content']}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
