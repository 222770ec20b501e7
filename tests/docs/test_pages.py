"""The documentation speaks of commands, options, settings and files that exist."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rawko_state import errors
from rawko_state.cli import cli

ROOT = Path(__file__).parents[2]
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
WRITTEN = tuple(page for page in PAGES if page.name not in ("changelog.md", "sources.md", "commands.md"))


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def shell_lines(text: str) -> Iterator[str]:
    """The commands in the code blocks of a page."""
    for language, body in re.findall(r"^```(sh|console)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in body.replace("\\\n", " ").splitlines():
            if language == "sh" or line.startswith("$ "):
                yield line.removeprefix("$ ")


def calls(line: str) -> Iterator[list[str]]:
    """Each call of rawko in a line of shell, as words."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&()<>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] = []
    for word in [*lexer, ";"]:
        if not set(word) - set(";|&()<>"):
            if words and words[0].rsplit("/", 1)[-1] == "rawko":
                yield words[1:]
            words = []
        elif not words and "=" in word and word.split("=", 1)[0].isidentifier():
            continue  # an environment variable, or id=$(…)
        else:
            words.append(word)


def wrong_in(words: list[str]) -> str | None:
    """What does not exist of a call: the command, or an option."""
    command: click.Command = cli
    context = click.Context(cli, info_name="rawko")
    for word in words:
        if word == "--":
            return None
        if word.startswith("-") and len(word) > 1 and not word[1].isdigit():
            options = {each for param in command.get_params(context) for each in (*param.opts, *param.secondary_opts)}
            known = options | {"-h", "--help"}
            option = word.split("=")[0]
            if option not in known and not (option[:2] in known and option[1] != "-"):
                return f"{context.command_path} has no option {option}"
        elif isinstance(command, click.Group) and (inner := command.get_command(context, word)) is not None:
            command, context = inner, click.Context(inner, info_name=word, parent=context)
    return f"{context.command_path}: no such command" if command is cli and words and words[0][:1].isalpha() else None


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_every_command_in_the_documentation_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    wrong = [
        f"{line.strip()}: {found}" for line in shell_lines(text) for words in calls(line) if (found := wrong_in(words))
    ]
    assert wrong == []


def help_pages(command: click.Command = cli, name: str = "rawko") -> Iterator[tuple[str, list[str]]]:
    """Each command with the examples of its help page."""
    yield name, [line for line in getattr(command, "examples", "").replace("\\\n", " ").splitlines() if line]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            assert inner is not None
            if not inner.hidden:
                yield from help_pages(inner, f"{name} {each}")


def test_every_help_page_has_examples_of_commands_that_exist() -> None:
    pages = dict(help_pages())
    assert len(pages) > 60
    assert [name for name, examples in pages.items() if not examples and name != "rawko"] == []
    found = [(name, words) for name, lines in pages.items() for line in lines for words in calls(line)]
    assert [(name, words) for name, words in found if wrong_in(words)] == []
    named = {name for name, words in found if " ".join(["rawko", *words]).startswith(name) or "-C" in words}
    assert named >= set(pages) - {"rawko", "rawko history show", "rawko history export"}


def test_the_test_above_would_notice() -> None:
    assert wrong_in(["history", "--nope"]) == "rawko history has no option --nope"
    assert wrong_in(["hook", "install", "--nope"]) == "rawko hook install has no option --nope"
    assert wrong_in(["nope"]) == "rawko: no such command"
    assert list(calls("id=$(rawko task start 'a; b'); my-agent | rawko record # rawko x")) == [
        ["task", "start", "a; b"],
        ["record"],
    ]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


@pytest.mark.skipif(sys.platform == "win32", reason="the examples need a pseudo-terminal")
def test_the_first_page_shows_what_the_commands_print() -> None:
    """The other pages are run by ``docs/tools/examples.py --check``, in CI."""
    run = [sys.executable, str(ROOT / "docs/tools/examples.py"), "--check", "start.md"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_error_is_explained() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text("utf-8")
    raised = [
        each.__name__ for each in vars(errors).values() if isinstance(each, type) and each.__module__ == errors.__name__
    ]
    assert [name for name in raised if name != "RawkoError" and f"\n| `{name}` |" not in page] == []


def test_every_benchmark_is_run_for_the_page_of_benchmarks() -> None:
    spec = importlib.util.spec_from_file_location("bench_all", ROOT / "bench/all.py")
    assert spec is not None
    assert spec.loader is not None
    every = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(every)
    programs = {path.stem for path in (ROOT / "bench").glob("*.py") if '__name__ == "__main__"' in path.read_text()}
    assert set(every.SMALL) == programs - {"all"}
    for program, small in every.SMALL.items():
        known = set(re.findall(r"--[a-z-]+", (ROOT / "bench" / f"{program}.py").read_text()))
        loops = re.findall(r'"(\w+)", \d+\)', (ROOT / "bench" / f"{program}.py").read_text())
        given = {word for word in small.arguments.split() if word.startswith("--")}
        assert given <= known | {f"--{each}" for each in loops}, program
