"""The project that the examples of the documentation are run in: a small shop, and the sessions of two agents that worked on it.

Every time is counted back from now, so that "3h ago" stays "3h ago" whenever the examples are run.
"""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

PRICE = """from decimal import Decimal


def vat(price):
    return round(price * 0.19, 2)
"""
PRICE_AFTER = PRICE.replace("    return round(price * 0.19, 2)", '    return (price * Decimal("0.19")).quantize(CENT)')
LOGIN = """def valid(token, now):
    return token.not_before <= now < token.expires
"""
LOGIN_AFTER = LOGIN.replace("    return token.not_before <= now", "    return token.not_before - SKEW <= now").replace(
    "now < token.expires", "now < token.expires + SKEW"
)


def make_shop(home: Path) -> Path:
    """Makes ``home/src/shop``, a git repository, and the agents' own folders in ``home``. Returns the project's folder."""
    project = home / "src" / "shop"
    for name, text in {"shop/price.py": PRICE, "shop/login.py": LOGIN, "README.md": "# Shop\n"}.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    _git(project, "init", "-q", "-b", "main")
    _git(project, "add", ".")
    _git(project, "-c", "user.name=ann", "-c", "user.email=ann@example.com", "commit", "-q", "-m", "A small shop")
    _rounding(home, project)
    _login(home, project)
    _hang(home, project)
    _greeting(home, project)
    return project


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True)


def _rounding(home: Path, project: Path) -> None:
    """A month ago: an edit, and tests that still fail when the model's service stops answering."""
    session = ClaudeSession(home, project, "rounding", timedelta(days=34, hours=5))
    session.prompt("Port the price rounding to Decimal")
    session.answer("I will look at how prices are rounded first.")
    session.tool("Read", {"file_path": f"{project}/shop/price.py"}, PRICE)
    session.answer("`round()` loses cents: `round(price * 0.19, 2)` gives 0.1 for a price of 0.55.")
    session.edit("shop/price.py", PRICE, PRICE_AFTER)
    session.tool("Bash", {"command": "pytest -q tests/test_price.py"}, _FAILING, failed=True)
    session.error("API Error: 529 Overloaded")


def _login(home: Path, project: Path) -> None:
    """Yesterday: a bug found, fixed and tested."""
    session = ClaudeSession(home, project, "login", timedelta(days=1, hours=3))
    session.prompt("Users with clock skew can't sign in. Fix it.")
    session.answer("The token check ignores clock skew. Plan:\n\n1. Allow 60 seconds.\n2. Add a test.")
    session.tool("Read", {"file_path": f"{project}/shop/login.py"}, LOGIN)
    session.edit("shop/login.py", LOGIN, LOGIN_AFTER)
    session.tool("Bash", {"command": "pytest -q tests/test_login.py"}, "...\n3 passed in 0.12s")
    session.answer("Fixed: tokens are accepted up to 60 seconds early or late. The three tests of the login pass.")


def _hang(home: Path, project: Path) -> None:
    """Three hours ago: killed while a command ran."""
    session = ClaudeSession(home, project, "hang", timedelta(hours=3, minutes=20))
    session.prompt("Why does the nightly build hang after the tests?")
    session.answer("I will run it and see where it stops.")
    session.tool("Bash", {"command": "make nightly"}, None)


def _greeting(home: Path, project: Path) -> None:
    """Five days ago, in Codex."""
    session = CodexSession(home, project, "prices", timedelta(days=5, hours=2))
    session.prompt("List the functions in shop/price.py")
    session.command("grep -n '^def' shop/price.py", "4:def vat(price):\n")
    session.answer("There is one: `vat(price)`.")


_FAILING = """F.
FAILED tests/test_price.py::test_vat - NameError: name 'CENT' is not defined
1 failed, 1 passed in 0.31s"""


class _Session:
    """What both kinds share: a clock that goes on, and a file that lines are added to."""

    def __init__(self, path: Path, began: timedelta) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._now = datetime.now(timezone.utc) - began
        self._count = 0

    def _time(self, seconds: float = 4.0) -> str:
        self._now += timedelta(seconds=seconds)
        return self._now.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"

    def _line(self, record: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def _id(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"rawko-docs/{name}"))


class ClaudeSession(_Session):
    """A session as Claude Code writes it."""

    def __init__(self, home: Path, project: Path, name: str, began: timedelta) -> None:
        self._id = _id(name)
        folder = re.sub(r"[^A-Za-z0-9]", "-", str(project))
        super().__init__(home / ".claude" / "projects" / folder / f"{self._id}.jsonl", began)
        self._project, self._parent = project, None

    def _record(self, kind: str, message: dict[str, Any], **more: Any) -> None:
        self._count += 1
        own = _id(f"{self._id}/{self._count}")
        self._line(
            {
                "parentUuid": self._parent,
                "isSidechain": False,
                "type": kind,
                "message": message,
                "uuid": own,
                "timestamp": self._time(),
                "userType": "external",
                "cwd": str(self._project),
                "sessionId": self._id,
                "version": "2.1.197",
                "gitBranch": "main",
                **more,
            }
        )
        self._parent = own

    def prompt(self, text: str) -> None:
        self._record("user", {"role": "user", "content": text})

    def _assistant(self, part: dict[str, Any], stop: str, **more: Any) -> None:
        usage = {
            "input_tokens": 210 + self._count,
            "cache_creation_input_tokens": 900,
            "cache_read_input_tokens": 14_200,
            "output_tokens": 85,
        }
        message = {
            "id": f"msg_{self._id[:8]}_{self._count}",
            "type": "message",
            "role": "assistant",
            "model": "claude-opus-4-8",
            "content": [part],
            "stop_reason": stop,
            "usage": usage,
        }
        self._record("assistant", message, **more)

    def answer(self, text: str) -> None:
        self._assistant({"type": "text", "text": text}, "end_turn")

    def error(self, text: str) -> None:
        self._assistant({"type": "text", "text": text}, "stop_sequence", isApiErrorMessage=True, apiErrorStatus=529)

    def tool(
        self, name: str, given: dict[str, Any], output: str | None, *, failed: bool = False, result: Any = None
    ) -> None:
        """A call and its result. Without an output, the session ends while the tool runs."""
        key = f"toolu_{self._id[:8]}{self._count:04}"
        self._assistant({"type": "tool_use", "id": key, "name": name, "input": given}, "tool_use")
        if output is None:
            return
        part = {"tool_use_id": key, "type": "tool_result", "content": output, "is_error": failed}
        self._record(
            "user", {"role": "user", "content": [part]}, toolUseResult=result or {"stdout": output, "stderr": ""}
        )

    def edit(self, path: str, before: str, after: str) -> None:
        changed = [(old, new) for old, new in zip(before.splitlines(), after.splitlines(), strict=True) if old != new]
        old, new = changed[0]
        number = before.splitlines().index(old) + 1
        patch = {
            "oldStart": number,
            "oldLines": 1,
            "newStart": number,
            "newLines": 1,
            "lines": [f"-{old}", f"+{new}"],
        }
        given = {"file_path": f"{self._project}/{path}", "old_string": old, "new_string": new}
        result = {
            "filePath": f"{self._project}/{path}",
            "oldString": old,
            "newString": new,
            "originalFile": before,
            "structuredPatch": [patch],
        }
        self.tool("Edit", given, f"The file {path} has been updated successfully.", result=result)


class CodexSession(_Session):
    """A session as Codex writes it, with the records that matter here."""

    def __init__(self, home: Path, project: Path, name: str, began: timedelta) -> None:
        self._id, self._turn = _id(name), _id(f"{name}/turn")
        start = datetime.now(timezone.utc) - began
        folder = home / ".codex" / "sessions" / start.strftime("%Y/%m/%d")
        super().__init__(folder / f"rollout-{start:%Y-%m-%dT%H-%M-%S}-{self._id}.jsonl", began)
        meta = {"id": self._id, "cwd": str(project), "originator": "codex_exec", "cli_version": "0.166.0"}
        self._line({"timestamp": self._time(), "type": "session_meta", "payload": meta})
        self._event({"type": "task_started", "turn_id": self._turn})
        context = {"turn_id": self._turn, "cwd": str(project), "model": "gpt-5.5"}
        self._line({"timestamp": self._time(0), "type": "turn_context", "payload": context})

    def _event(self, payload: dict[str, Any]) -> None:
        self._line({"timestamp": self._time(), "type": "event_msg", "payload": payload})

    def _item(self, payload: dict[str, Any]) -> None:
        self._line({"timestamp": self._time(), "type": "response_item", "payload": payload})

    def prompt(self, text: str) -> None:
        self._item({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
        self._event({"type": "user_message", "message": text})

    def command(self, words: str, output: str) -> None:
        self._count += 1
        key = f"call_{self._id[:8]}{self._count:04}"
        given = json.dumps({"cmd": words})
        self._item({"type": "function_call", "name": "exec_command", "arguments": given, "call_id": key})
        said = f"Wall time: 0.1 seconds\nProcess exited with code 0\nOutput:\n{output}"
        self._item({"type": "function_call_output", "call_id": key, "output": said})

    def answer(self, text: str) -> None:
        self._item({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]})
        self._event({"type": "agent_message", "message": text})
        self._event({"type": "task_complete", "turn_id": self._turn, "last_agent_message": text})
