"""Asks rawko's MCP server what was done before, as an agent does.

pip install 'rawko-state[mcp]'
python examples/mcp_client.py FOLDER
"""

from __future__ import annotations

import asyncio
import sys

from mcp import ClientSession, StdioServerParameters, stdio_client

import rawko_state


async def main(folder: str) -> None:
    with rawko_state.open(folder).start("Fix the login bug", agent="developer") as task:
        task.add_turn(rawko_state.Turn(number=1, agent="developer", content="The token check ignores clock skew."))

    server = StdioServerParameters(command=sys.executable, args=["-m", "rawko_state", "mcp"], cwd=folder)
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        print("tools:", ", ".join(tool.name for tool in (await session.list_tools()).tools))
        answer = await session.call_tool("search", {"query": "clock skew"})
        print(answer.content[0].text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
