"""A small agent in a plain loop: it thinks, calls tools, asks before it deletes, and records all of it.

    python examples/loop_agent.py FOLDER

The model is a script, so that the example runs anywhere. Replace ``Scripted`` with a call of yours. Then look at what it
recorded:

    rawko -C FOLDER history show
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import rawko_state as rawko


@dataclass
class Step:
    """What a model answers: words, and a tool to call next, if any."""

    thinking: str
    words: str
    tool: str | None = None
    args: str = ""


class Scripted:
    """A model that follows a script."""

    def __init__(self, steps: Iterator[Step]) -> None:
        self._steps = steps

    def answer(self, conversation: list[str]) -> Step:
        return next(self._steps)


SCRIPT = (
    Step("What is there?", "I look at the folder.", "list", "."),
    Step("A note is missing.", "I write a note.", "write", "note.txt"),
    Step("The old one can go.", "I remove the old note.", "delete", "old.txt"),
    Step("All done.", "The folder is tidy."),
)
MOST_STEPS = 20


def call(folder: Path, step: Step, turn: rawko.LiveTurn) -> str:
    """Calls a tool, and records the call before it runs: if we die in it, the record says that it may have run."""
    key = turn.begin_tool(f"filesystem.{step.tool}", step.args)
    path = folder / step.args
    if step.tool == "list":
        # Output is recorded as it arrives.
        found = sorted(each.name for each in path.iterdir() if each.name != ".rawko")
        for name in found:
            turn.tool_output(key, f"{name}\n")
        result = f"{len(found)} files"
    elif step.tool == "write":
        before = path.read_text() if path.exists() else None
        path.write_text("tidy\n")
        turn.edit(step.args, before=before, after="tidy\n", tool=key)
        result = "5 bytes"
    else:
        path.unlink()
        turn.touch("delete", step.args)
        result = "deleted"
    turn.end_tool(key, result)
    return result


def run(folder: Path, model: Scripted, *, request: str = "Tidy up the folder", patience: float | None = None) -> str:
    """Runs the agent on a task. Returns the task's id."""
    with rawko.open(folder) as store, store.start(request, agent="tidier", model="scripted-1") as task:
        conversation = [request]
        for _ in range(MOST_STEPS):
            turn = task.turn("tidier")
            with turn:
                step = model.answer(conversation)
                turn.think(step.thinking)
                turn.say(step.words)
                conversation.append(step.words)
                if step.tool is None:
                    break
                if step.tool == "delete" and not turn.approve("filesystem.delete", step.args, timeout=patience):
                    conversation.append("The user said no.")
                    continue
                if step.tool == "delete":
                    # approve() ended the turn with the question, so the call is a turn of its own.
                    with task.turn("tidier") as approved:
                        conversation.append(call(folder, step, approved))
                else:
                    conversation.append(call(folder, step, turn))
        task.finish("success", conversation[-1])
    return task.id


if __name__ == "__main__":
    where = Path(sys.argv[1])
    where.mkdir(parents=True, exist_ok=True)
    (where / "old.txt").touch()
    print("The agent asks before it deletes. Answer in another terminal: rawko -C", where, "answer")
    made = run(where, Scripted(iter(SCRIPT)))
    subprocess.run([sys.executable, "-m", "rawko_state", "-C", str(where), "history", "show", made], check=True)
