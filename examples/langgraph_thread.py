"""A LangGraph graph whose threads are tasks: it goes on after a restart, and any earlier step can be looked at.

pip install 'rawko-state[langgraph]' langgraph
python examples/langgraph_thread.py FOLDER
"""

from __future__ import annotations

import operator
import sys
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

import rawko_state
from rawko_state.integrations.langgraph import RawkoSaver


class State(TypedDict):
    notes: Annotated[list[str], operator.add]


def think(state: State) -> dict[str, list[str]]:
    return {"notes": [f"thought {len(state['notes'])}"]}


def main(folder: str) -> None:
    builder = StateGraph(State)
    builder.add_node("think", think)
    builder.add_edge(START, "think")
    builder.add_conditional_edges("think", lambda state: "think" if len(state["notes"]) < 4 else END)
    thread: Any = {"configurable": {"thread_id": "thread-1"}}

    graph = builder.compile(checkpointer=RawkoSaver(rawko_state.open(folder)))
    graph.invoke({"notes": ["start"]}, thread)

    # As after a restart: another saver, which reads what the first one stored.
    again = builder.compile(checkpointer=RawkoSaver(rawko_state.open(folder)))
    print("now:", again.get_state(thread).values["notes"])
    for each in list(again.get_state_history(thread))[1:3]:
        print("before:", each.values["notes"])


if __name__ == "__main__":
    main(sys.argv[1])
