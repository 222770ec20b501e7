"""A session of the OpenAI Agents SDK that survives a restart.

    pip install 'rawko-state[openai-agents]'
    python examples/openai_session.py FOLDER

With a key, pass the session to the runner instead: ``await Runner.run(agent, "Hello", session=session)``.
"""

from __future__ import annotations

import asyncio
import sys

import rawko_state
from rawko_state.integrations.openai_agents import RawkoSession


async def main(folder: str) -> None:
    store = rawko_state.open(folder)
    session = RawkoSession(store, "user-123")
    await session.add_items([{"role": "user", "content": "What is 6 times 7?"}, {"role": "assistant", "content": "41"}])
    wrong = await session.pop_item()
    print("taken back:", wrong["content"])
    await session.add_items([{"role": "assistant", "content": "42"}])

    again = RawkoSession(store, "user-123")
    for item in await again.get_items():
        print(f"{item['role']}: {item['content']}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
