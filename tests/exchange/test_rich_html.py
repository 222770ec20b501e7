"""Recorded text as HTML: whatever a model or a web page said, a browser shows it and runs nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawko_state.exchange import rich_html
from rawko_state.exchange.coloured import Style, runs, settled
from rawko_state.exchange.diff_lines import lines_of
from rawko_state.exchange.rich_html import code_html, diff_html, diff_part_html, markdown_html, output_html
from rawko_state.format.diffs import compared, replacement

_TAGS = {
    "div", "p", "h3", "h4", "h5", "h6", "ul", "ol", "li", "a", "span", "code", "pre", "em", "strong", "s", "blockquote", "hr",
    "br", "table", "thead", "tbody", "tr", "th", "td", "caption", "ins", "del",
}  # fmt: skip
_ATTRIBUTES = {"class", "href", "rel", "title", "tabindex", "start", "colspan", "data-n", "role", "aria-label"}


class _Checked(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _TAGS, tag
        for name, value in attrs:
            assert name in _ATTRIBUTES, name
            if name == "href":
                assert re.match("https?://|mailto:", value or "", re.IGNORECASE), value
        if tag not in ("br", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("br", "hr"):
            assert self.open.pop() == tag


def checked(html: str) -> str:
    parser = _Checked()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", html)
    return html


HOSTILE = [
    "<script>alert(1)</script>",
    "[x](javascript:alert(1)) [y](JaVaScRiPt:alert(1)) [z](data:text/html;base64,xx) [r]\n\n[r]: vbscript:x",
    "<javascript:alert(1)> <https://a.example/\"onmouseover=alert(1)>",
    "![x](https://tracker.example/pixel.png) ![y](javascript:alert(1))",
    "<img src=x onerror=alert(1)> <svg onload=alert(1)>",
    "```\"><script>alert(1)</script>\ncode\n```",
    "```html\n<script>alert(1)</script>\n```",
    "| a |\n|:-:|\n| <b onclick=x> |",
    "[a](https://a.example \"x\\\" onclick=\\\"y\")",
    "\x1b]0;title\x07 \u202e evil \x00",
    "> " * 200 + "x",
    "[" * 5000,
    "*" * 5000 + "a",
    "# h\n\n[link *in [another](https://b.example)*](file:///etc/passwd)",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("rich", [True, False])
def test_hostile_text_is_only_text(text: str, rich: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rich_html, "is_rich", lambda: rich)
    checked(markdown_html(text))
    checked(code_html(text, language="html"))
    checked(f"<pre>{output_html(text)}</pre>")
    checked(diff_html(compared('<a"b>.html', text, text + "\n<script>")))


@given(st.text(alphabet=st.sampled_from("ab <>&\"'`*_[]()!|#-\n\r\t\\:/\x1b[0;m\u202e~"), max_size=60))
def test_any_text_is_safe(text: str) -> None:
    checked(markdown_html(text))
    checked(f"<pre>{output_html(text)}</pre>")
    checked(diff_html(replacement("a.py", "x\n" + text, text)))


def test_markdown_is_rendered_and_code_highlighted() -> None:
    html = markdown_html(
        "# Plan\n\n1. **allow** 60 s\n\n```python\ndef f():\n    return 1\n```\n\n[docs](https://a.example)"
    )
    assert "<h3>Plan</h3>" in html
    assert "<strong>allow</strong>" in html
    assert '<span class="k">def</span> <span class="f">f</span>' in html
    assert '<a href="https://a.example" rel="noopener noreferrer nofollow">docs</a>' in html
    assert "style=" not in markdown_html("| a |\n|--:|\n| 1 |")
    assert "step 1<br />\nstep 2" in markdown_html("step 1\nstep 2"), "what a program printed keeps its lines"


def test_without_the_extra_it_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rich_html, "is_rich", lambda: False)
    assert markdown_html("**a** <b>") == '<div class="md pre">**a** &lt;b&gt;</div>'
    assert "<span" not in code_html("def f(): pass", language="python")
    assert '<tr class="a">' in diff_html(compared("a.py", "1\n", "2\n"))


def test_a_diff_has_the_numbers_of_both_sides_and_what_changed_in_a_line() -> None:
    html = diff_html(compared("a.py", "x = 1\nreturn a - b\n", "x = 1\nreturn a + b\n"))
    assert html.count('data-n="2"') == 2
    assert "return" in html
    assert "<del>-</del>" in html
    assert "<ins>+</ins>" in html
    unknown = diff_html(replacement("a.py", "return a - b\n", "return a + b\n"))
    assert not re.search('data-n="[0-9]', unknown)


@pytest.mark.parametrize(
    "hunks",
    ["", "@@ -1,2 +1,2 @@\n-a\n+b\n c\n\\ No newline at end of file", "@@ -0,0 +1 @@\n+", "@@ -1,4 +1,3 @@\n-a\n-b\n+c\n-d\n+e\n+f", "odd\n\n-x"],
)  # fmt: skip
def test_every_line_of_a_diff_is_shown_once(hunks: str) -> None:
    shown = [line.text if line.sign in "@\\" else line.sign + line.text for line in lines_of(hunks)]
    assert [line.strip() for line in shown] == [line.strip() for line in hunks.split("\n") if hunks]


def test_colours_of_a_program_are_kept_and_everything_else_is_dropped() -> None:
    text = "a\x1b[1;31mred\x1b[0m\x1b[2Jb\x1b]8;;http://evil\x07c\x1b]0;no end"
    assert list(runs(text)) == [
        (Style(), "a"),
        (Style(colour=1, bold=True), "red"),
        (Style(), "␛"),
        (Style(), "b"),
        (Style(), "␛"),
        (Style(), "c"),
        (Style(), "␛"),
        (Style(), "0;no end"),
    ]
    assert output_html("\x1b[32mok\x1b[m <b>") == '<span class="c2">ok</span> &lt;b&gt;'


def test_a_progress_bar_is_shown_as_it_was_last() -> None:
    assert settled("10%\r20%\rdone\r\nnext\r") == "done\nnext"


def test_headings_never_skip_a_level_whatever_an_agent_writes() -> None:
    html = markdown_html("### a\n\n# b\n\n#### c\n\n## d\n\ne\n-\n\n###### f\n")
    assert re.findall("<h([0-9])>", html) == re.findall("</h([0-9])>", html) == ["3", "3", "4", "4", "4", "5"]


@pytest.mark.parametrize("split", [False, True])
def test_a_long_diff_comes_in_parts_that_make_up_the_whole(split: bool) -> None:
    before, after = ("".join(f"{word} {number}\n" for number in range(2_600)) for word in ("old", "new"))
    diff = compared("a.txt", "same\n" + before, "same\n" + after)
    rows: list[str] = []
    first: int | None = 0
    while first is not None:
        html, first = diff_part_html(diff, diff.hunks, split=split, first=first, most=500)
        found = re.findall("<tr.*?</tr>", html)
        assert len(found) <= 500
        rows += found
    assert len(rows) == (2_602 if split else 5_202)
    text = re.sub("<[^>]+>", "\n", "".join(rows))
    for word in ("old", "new"):
        assert re.findall(rf"{word} ([0-9]+)", text) == [str(number) for number in range(2_600)]


def test_a_very_long_line_of_a_diff_is_cut_and_says_so() -> None:
    diff = compared("a.js", "x\n", "y" * 50_000 + "\n")
    html, _ = diff_part_html(diff, diff.hunks, split=False, first=0, most=10)
    assert len(html) < 5_000
    assert re.search("yy … 48,00[01] characters more", html)
    assert "y" * 50_000 in diff_html(diff), "an export has all of it"
