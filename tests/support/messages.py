"""All messages that users can see, collected from the source: raised errors, echoed lines, warnings, help pages, and every other
text of the commands."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.processes import ROOT

SOURCE = ROOT / "rawko_state"
_COMMANDS = ("command", "group")
_SAID_BY = {"echo", "warn", "UsageError", "BadParameter", "ClickException"}


class Message(NamedTuple):
    path: str
    line: int
    kind: str
    """``error`` for what is raised, ``said`` for what is printed, ``help`` for the help of an option, ``page`` for that of a command,
    ``text`` for whatever else a command may say: hints, titles, parts of lines."""
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
        tree = ast.parse(path.read_text("utf-8"))
        if path.parent.name == "cli":
            yield from _texts(name, tree)
        for node in ast.walk(tree):
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


def _texts(path: str, tree: ast.Module) -> Iterator[Message]:
    """The help pages of a file of commands, and its texts of three words or more. Docstrings and examples are none."""
    others = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(_name(_called(each)) in _COMMANDS for each in node.decorator_list):
            yield Message(path, node.lineno, "page", ast.get_docstring(node) or "")
        if isinstance(node, ast.Expr):
            others.add(node.value)
        elif isinstance(node, ast.keyword) and node.arg in ("examples", "metavar"):
            others.update(ast.walk(node.value))
        elif isinstance(node, ast.JoinedStr):
            others.update(node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and node not in others and len((_text(node) or "").split()) > 2:
            yield from _found(path, "text", node)


def _called(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


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
