"""Exports for people: what a reader is told, that nothing in them runs or leaves its place, and that long tasks stay usable."""

from __future__ import annotations

import re
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawko_state.backends.files.store import FileStore
from rawko_state.cli.reader import Reader, View
from rawko_state.exchange import rich_html
from rawko_state.exchange.exporting import readable
from rawko_state.exchange.markdown import prose
from rawko_state.format.diffs import compared
from rawko_state.model.entries import ToolCall, Turn
from tests.support.processes import rawko

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)><a href='javascript:alert(1)'>x</a>\"' autofocus [x](javascript:alert(1)) ![y](https://a.example/p.png)"
_TAGS = {
    "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "b", "article", "header", "span", "div", "nav", "ol",
    "li", "a", "details", "summary", "pre", "section", "footer", "time", "table", "tr", "td", "caption", "hr", "code", "ins", "del",
}  # fmt: skip


_ATTRIBUTES = {
    "class", "href", "id", "lang", "charset", "name", "content", "http-equiv", "datetime", "title", "open", "tabindex", "role",
    "aria-label", "colspan", "data-n",
}  # fmt: skip


class _Found(HTMLParser):
    """The tags, attributes and links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.attributes, self.links = set[str](), set[str](), set[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links |= {value or "" for name, value in attrs if name == "href"}


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


def exported(store: FileStore, form: str, *ids: str, **more: bool) -> str:
    return b"".join(readable(store, ids, form, estimate=lambda *_: Decimal("0.21"), **more)).decode()


def sample(store: FileStore) -> str:
    with store.start(
        "Fix the *login* bug\nIt is urgent.", by="ann", agent="developer", model="claude-opus-4-1"
    ) as task:
        edit = ToolCall("edit", "auth/sso.rs", "done", more={"diff": 1})
        run = ToolCall("Bash", "cargo test", "error", output="Exit code 101\n\x1b[31mFAILED\x1b[0m")
        diffs = (compared("auth/sso.rs", "now\n", "now + leeway\n"),)
        task.add_turn(
            Turn(
                number=1, agent="developer", status="complete", content="First **try**.", tools=(edit, run), diffs=diffs
            )
        )
        task.add_turn(Turn(number=2, agent="user", content="And a test", by="ann"))
        task.add_turn(
            Turn(
                number=3,
                agent="developer",
                status="complete",
                content="Done:\n\n```rust\nlet x = 1;\n```",
                tokens={"in": 12_000, "out": 900},
            )
        )
        task.finish("success", "Done:")
    return task.id


def test_the_page_tells_what_a_reader_wants_to_know(store: FileStore) -> None:
    page = exported(store, "html", sample(store))
    assert "<title>Fix the *login* bug · " in page
    assert "<h1>Fix the *login* bug</h1>" in page
    for fact in ("developer", "claude-opus-4-1", "12k tokens in, 900 out", "~$0.21", "1 file changed"):
        assert f"{fact}</span>" in page
    places = re.findall(r'<li><a href="#(task-[a-z0-9]+-[rt][0-9]+)">', page)
    assert len(places) == 2  # the contents: both prompts
    assert all(f'id="{place}"' in page for place in places)
    assert (
        '<span class="v">Edit</span> <span class="o">auth/sso.rs</span><span class="x">  <span class="add">+1</span>'
        in page
    )
    assert '<tr class="a">' in page
    assert (
        '<details class="tool err"><summary><span class="l"><span class="v">$</span> <span class="o">cargo test</span><span class="x">  → exit 101'
        in page
    )
    assert '<span class="c1">FAILED</span>' in page
    assert '<span class="k">let</span>' in page
    assert page.count("Done:") == 1  # no answer twice
    assert not re.search(r"<(script|link|img|iframe)\b", page)
    assert "style=" not in page


def test_the_style_of_the_page_is_the_only_one_that_its_policy_allows(store: FileStore) -> None:
    import base64
    import hashlib

    page = exported(store, "html", sample(store))
    style = re.search("<style>(.*)</style>", page, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in page


@pytest.mark.parametrize("brief", [False, True])
def test_nothing_in_a_page_runs_or_is_loaded(store: FileStore, brief: bool) -> None:
    with store.start(EVIL, title=EVIL, labels={"a": EVIL}, by=EVIL) as task:
        call = ToolCall(EVIL, EVIL, "error", output=EVIL)
        task.add_turn(Turn(number=1, agent=EVIL, reason=EVIL, selected=EVIL, content=EVIL))
        task.add_turn(
            Turn(number=2, agent="dev", thinking=EVIL, content=EVIL, tools=(call,), diffs=(compared(EVIL, "", EVIL),))
        )
        task.finish("success", EVIL, files=[EVIL])
    page = exported(store, "html", task.id, brief=brief)
    found = _Found()
    found.feed(page)
    assert found.tags <= _TAGS
    assert found.attributes <= _ATTRIBUTES
    assert all(href.startswith("#") for href in found.links)


def test_markdown_fits_a_pull_request(store: FileStore) -> None:
    task = sample(store)
    text = exported(store, "md", task)
    assert text.startswith("# Fix the \\*login\\* bug\n\n**completed** · ")
    assert "\n## ann\n\n> Fix the *login* bug\n> It is urgent.\n" in text
    assert "\nFirst **try**.\n" in text  # prose, not fenced
    assert "<details><summary><code>Edit auth/sso.rs  +1 −1</code></summary>\n\n```diff\n--- a/auth/sso.rs" in text
    assert "<details><summary><code>$ cargo test  → exit 101</code></summary>\n\n```\nFAILED\n```" in text
    assert text.count("Done:") == 1
    assert text.endswith("\n## Files changed\n\n- `auth/sso.rs` +1 −1\n")
    brief = exported(store, "md", task, brief=True)
    assert "<details>" not in brief
    assert "First **try**." in brief
    assert "> And a test" in brief


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("# Head", "#### Head"),
        ("a < b, `a < b`", "a \\< b, `a < b`"),
        ("`open\nx` <script> `y", "`open\nx` \\<script> `y"),
        ("- `a\n- <script> ` x", "- `a\n- \\<script> ` x"),
        ("```\nopen", "```\nopen\n```"),
        ("1. a\n   ```\ncode\n<script>", "1. a\n```\ncode\n<script>\n```"),
        ("~~~x\n```\n~~~", "~~~x\n```\n~~~"),
        ("[a](javascript:x) [b](java&#115;cript:x) [c](https://c.example) [d](docs/d.md)", "[a]\\(javascript:x) [b]\\(java&#115;cript:x) [c](https://c.example) [d](docs/d.md)"),
        ("- [r]: javascript:x\n\n[r]", "- [r]\\: javascript:x\n\n[r]"),
        ("![p](https://tracker.example)", "!\\[p](https://tracker.example)"),
        ("\\<b>", "\\<b>"),
        ("\\\\<b>", "\\\\\\<b>"),
    ],
)  # fmt: skip
def test_prose_stays_in_its_place(text: str, wanted: str) -> None:
    assert prose(text) == wanted


@given(st.text(alphabet=st.sampled_from("ab<>`~![]():#\n\\- "), max_size=50))
def test_no_markup_survives_in_prose(text: str) -> None:
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark", {"html": True}).parse(prose(text))
    inline = [child for token in tokens for child in token.children or ()]
    assert not [token for token in (*tokens, *inline) if token.type in ("html_block", "html_inline", "image")]


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ("a\n", "b\nc\n", "Edit src/a.py  +2 −1"),
        (None, "b\n", "Write src/a.py  +1"),
        ("a\n", None, "Delete src/a.py  +0 −1"),
    ],
)
def test_a_change_without_a_tool_call_says_as_much_as_one_with_it(
    store: FileStore, before: str | None, after: str | None, line: str
) -> None:
    with store.start("x") as task, task.turn("dev") as turn:
        turn.edit("src/a.py", before=before, after=after)
    html, md = exported(store, "html", task.id), exported(store, "md", task.id)
    shown = re.sub(r"<[^>]+>", " ", html)
    assert line.split() == re.search(rf"{line.split()[0]}\s+src/a\.py[\s+−\d]*", shown)[0].split()  # type: ignore[index]
    assert f"<summary><code>{line}</code></summary>" in md
    entries = Reader(store, task.id, View()).turn(store.turn(task.id, 1))
    assert f"  {line}" in map(click.unstyle, entries)


def test_a_turn_that_failed_is_named_apart_from_its_agent(store: FileStore) -> None:
    with store.start("x") as task:
        task.add_turn(Turn(agent="dev", status="failed", content="y"))
    assert "\n### 1 dev (failed)\n" in exported(store, "md", task.id)


def test_several_tasks_are_one_file(store: FileStore) -> None:
    one, two = sample(store), sample(store)
    page = rawko(store.root, "export", one, two, "--format", "html").stdout
    assert page.count("<!doctype html>") == 1
    assert page.count("<h1>") == 2
    assert len(re.findall(r' id="([^"]+)"', page)) == len(set(re.findall(r' id="([^"]+)"', page)))
    assert rawko(store.root, "export", one, two, "--format", "md").stdout.count("\n---\n") == 1


def test_the_ending_of_a_file_names_its_format(store: FileStore, tmp_path: Path) -> None:
    task = sample(store)
    rawko(store.root, "export", task, "-o", str(tmp_path / "a.html"))
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")


def test_a_thousand_turns_stay_usable(store: FileStore) -> None:
    """Long output is cut, so that the page does not grow with what programs print, and only what is in sight is laid out."""
    with store.start("x") as task:
        call = ToolCall("Bash", "make", "done", output="line\n" * 1_000)
        task.add([Turn(number=1, agent="dev", content="said", tools=(call,)) for _ in range(100)])
    page = exported(store, "html", task.id)
    assert len(page) < 100 * 4_000 + 20_000
    assert "The first 700 lines of 1,000 are not part of this export." in page
    assert "content-visibility: auto" in page


def test_without_the_extra_it_is_plain_and_says_so(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    task = sample(store)
    monkeypatch.setattr("rawko_state.exchange.html_export.is_rich", lambda: False)
    monkeypatch.setattr(rich_html, "is_rich", lambda: False)
    page = exported(store, "html", task)
    assert "First **try**." in page
    assert "lacks its [html] extra" in page


def test_json_without_secrets(store: FileStore) -> None:
    import json

    with store.start("x") as task:
        pass
    path = next(store.journal.layout.tasks.glob("*.task"))
    secret = "ghp_" + "a1B2c3D4e5" * 3 + "F6g7H8"
    path.write_text(path.read_text().replace("User: x", f"User: x {secret}"))
    assert "rawko redact" in rawko(store.root, "export", task.id, code=1).stderr
    out = rawko(store.root, "export", task.id, "--redact").stdout
    assert secret not in out
    assert json.loads(out)["id"] == task.id
