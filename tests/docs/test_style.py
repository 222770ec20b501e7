"""The English of the documentation: plain words, short sentences, and the terms of the glossary."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.prose import avoided, sentences

ROOT = Path(__file__).parents[2]
HISTORY = ("changelog.md",)
"""What was written at its time stays as it was."""
PAGES = tuple(
    page
    for page in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
    if page.name not in HISTORY and page.name not in ("glossary.md", "commands.md", "python.md")
)
"""The glossary names the words to avoid; the others are made from help texts and docstrings, which have tests of their own."""
SPECIFICATION = ("format.md",)
_MOST_WORDS = 45


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_uses_plain_words(page: Path) -> None:
    assert [found for sentence in sentences(page.read_text("utf-8")) for found in avoided(sentence)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in SPECIFICATION], ids=name)
def test_a_sentence_can_be_read_aloud(page: Path) -> None:
    found = [each for each in sentences(page.read_text("utf-8")) if len(each.split()) > _MOST_WORDS]
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_nobody_is_shouted_at(page: Path) -> None:
    assert [each for each in sentences(page.read_text("utf-8")) if each.endswith("!")] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs/howto").glob("*.md")), ids=name)
def test_a_how_to_says_first_what_you_will_have(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text.startswith("# ")
    assert "At the end of this page" in text.split("\n## ")[0]


def test_these_tests_would_notice() -> None:
    text = "A thing that\nsomebody said is no time.\n\n```\nwhoever\n```\n| a `whoever` | He did. |\n- One! Two (b)\n"
    assert list(sentences(text)) == ["A thing that somebody said is no time.", "a CODE", "He did.", "One!", "Two (b)"]
    for wrong in ("somebody", "is no time", "he"):
        assert list(avoided(wrong))
    assert not list(avoided("there is no time, and the index is no longer there"))


@pytest.mark.parametrize(
    "page", sorted((ROOT / "rawko_state/web/templates").glob("*.html")), ids=lambda page: page.name
)
def test_the_page_in_the_browser_uses_plain_words(page: Path) -> None:
    markup = re.sub(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}|<[^>]+>", " ", page.read_text("utf-8"), flags=re.S)
    assert [found for line in markup.split("\n") for found in avoided(" ".join(line.split()))] == []
