"""All messages that users can see, collected from the source: raised errors, echoed lines, warnings."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.processes import ROOT

SOURCE = ROOT / "rawko_state"
_SAID_BY = {"echo", "warn", "UsageError", "BadParameter", "ClickException"}


class Message(NamedTuple):
    path: str
    line: int
    kind: str
    """``error`` for what is raised, ``said`` for what is printed, ``help`` for the help of an option."""
    text: str
    """Placeholders are ``{}``."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text!r}"


def messages() -> Iterator[Message]:
    errors = _error_names()
    for path in sorted(SOURCE.rglob("*.py")):
        if "testing" in path.parts:
            continue
        name = str(path.relative_to(SOURCE))
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                called = _name(node.exc.func)
                if called in errors | _SAID_BY and node.exc.args:
                    yield from _found(name, "error", node.exc.args[0])
            elif isinstance(node, ast.Call) and _name(node.func) in ("echo", "warn") and node.args:
                yield from _found(name, "said", node.args[0])
            elif isinstance(node, ast.Call) and _name(node.func) == "option":
                for keyword in node.keywords:
                    if keyword.arg == "help":
                        yield from _found(name, "help", keyword.value)


def _found(path: str, kind: str, node: ast.expr) -> Iterator[Message]:
    text = _text(node)
    if text is not None and any(word.isalpha() and len(word) > 2 for word in text.split()):
        yield Message(path, node.lineno, kind, text)


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _error_names() -> set[str]:
    tree = ast.parse((SOURCE / "errors.py").read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


def listed(root: Path = SOURCE) -> str:
    """All of them, for somebody who reviews them: ``python -m tests.support.messages``."""
    return "\n".join(map(str, messages()))


if __name__ == "__main__":
    print(listed())
