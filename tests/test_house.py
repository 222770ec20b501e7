"""The rules of docs/why/architecture.md that a linter does not know."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.processes import ROOT

PACKAGE = ROOT / "rawko_state"
ABOVE = ("cli", "server", "lifecycle", "exchange", "integrations")
STORES = {"FileStore", "PostgresStore", "RemoteStore", "IndexedStore", "BaseStore"}
SEALING = {"emit_block", "seal_of", "seal_line", "seal_record"}
SEALS = {
    "journal/chain.py": {"seal_line"},  # compares what stands in a file with what it knew
    "backends/files/ingest.py": {"seal_line"},  # compares, too
}


def modules(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for name, tree in parsed().items():
        if not folders or name.startswith(tuple(f"{folder}/" for folder in folders)):
            yield name, tree


@cache
def parsed() -> dict[str, ast.Module]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def test_records_are_made_in_one_place() -> None:
    """Nobody but format/ makes blocks and seals; who seals bytes that were read before is named above."""
    found = {}
    for name, tree in modules():
        if not name.startswith("format/"):
            used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & SEALING
            if used:
                found[name] = used
    assert found == SEALS


def test_no_code_looks_at_the_words_of_a_message() -> None:
    """Errors and problems carry what is asked of them."""
    wrong = []
    for name, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops):
                text = ast.unparse(node)
                constant = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
                if constant and ("str(error)" in text or ".message" in text):
                    wrong.append(f"{name}:{node.lineno}: {text}")
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                (".message.startswith", "str(error).startswith")
            ):
                wrong.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert wrong == []


def test_nobody_above_the_contract_asks_which_backend_it_is() -> None:
    wrong = []
    for name, tree in modules(*ABOVE):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                named = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
                wrong += [f"{name}:{node.lineno}"] if named & STORES else []
    assert wrong == []


@pytest.mark.parametrize("backend", ["files", "postgres", "remote"])
def test_the_backends_have_the_same_rooms(backend: str) -> None:
    assert {"store.py", "writer.py"} <= {path.name for path in (PACKAGE / "backends" / backend).iterdir()}


def test_every_file_says_what_it_is_about() -> None:
    silent = [name for name, tree in modules() if not ast.get_docstring(tree)]
    assert silent == []


def test_no_page_has_the_marks_of_a_conflict() -> None:
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert not [line for line in lines if line.startswith(("<<<<<<< ", ">>>>>>> "))], path


def test_tests_are_not_too_long() -> None:
    long = {
        path.name: count
        for path in Path(__file__).parent.rglob("*.py")
        if (count := len(path.read_text().splitlines())) > 620
    }
    assert long == {}


def test_what_is_loaded_later_is_what_the_types_say() -> None:
    """A lazily loaded module has an import of the same name for type checkers and import-linter."""
    wrong = []
    for name, tree in modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.If) or ast.unparse(node.test) != "TYPE_CHECKING":
                continue
            typed = {
                alias.asname or alias.name: f"{each.module}.{alias.name}"
                for each in node.body
                if isinstance(each, ast.ImportFrom)
                for alias in each.names
            }
            for each in node.orelse:
                if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call):
                    target, loaded = ast.unparse(each.targets[0]), ast.literal_eval(each.value.args[0])
                    wrong += [f"{name}: {target}"] if typed.get(target) != loaded else []
    assert wrong == []
