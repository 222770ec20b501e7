"""Every message that users can see: sentences, without the words that the glossary avoids. ``python -m tests.support.messages`` lists them."""

from __future__ import annotations

import re

from tests.support.messages import messages
from tests.support.processes import ROOT
from tests.support.prose import avoided

ALL = list(messages())
_AS_TYPED = ("pick ", "rawko", "--")
"""Messages may begin with a command or an option."""


def test_there_are_messages() -> None:
    kinds = [message.kind for message in ALL]
    assert kinds.count("error") > 300
    assert kinds.count("help") > 100
    assert kinds.count("page") > 60
    assert kinds.count("text") > 500


def test_a_help_page_begins_with_a_sentence() -> None:
    pages = [message for message in ALL if message.kind == "page"]
    firsts = {str(message): message.text.split("\n\n")[0] for message in pages}
    assert [name for name, first in firsts.items() if not re.fullmatch(r"(?:[A-Z]|rawko ).*\.", first, re.S)] == []


def test_no_message_uses_a_word_that_a_reader_stumbles_over() -> None:
    found = [f"{message.path}:{message.line}: {wrong}" for message in ALL for wrong in avoided(message.text)]
    assert found == []


def test_no_message_shouts() -> None:
    assert not [str(message) for message in ALL if message.text.rstrip().endswith("!")]


def test_an_error_begins_with_a_capital_letter() -> None:
    """Or with what it is about: a path, an option, a quoted word."""
    wrong = [
        str(message)
        for message in ALL
        if message.kind == "error"
        and not re.match(r"[A-Z{'.-]", message.text)
        and not message.text.startswith(_AS_TYPED)
    ]
    assert wrong == [] or all("git {}" in each for each in wrong)  # git's own words


def test_an_error_is_a_sentence_or_ends_with_what_to_type() -> None:
    def ends(text: str) -> bool:
        last = text.rstrip().split("\n")[-1]
        return last.endswith((".", "?", "}", ")", "…")) or bool(re.search(r"[:·] (?:rawko |--|-\w |pip |chmod )", last))

    # Usage errors of commands get their end from the place that prints them, and further lines are commands.
    told = [message for message in ALL if message.kind == "error" and not message.path.startswith("cli/")]
    wrong = [str(message) for message in told if not ends(message.text) and "\n" not in message.text]
    assert len(wrong) <= 12, "\n".join(wrong)


def test_help_of_an_option_is_a_phrase() -> None:
    helps = [message for message in ALL if message.kind == "help"]
    assert not [str(message) for message in helps if message.text.rstrip().endswith(".")]


def test_the_glossary_has_one_meaning_for_a_term() -> None:
    rows = re.findall(
        r"^\| (\*\*.+?\*\*[^|]*) \|", (ROOT / "docs/reference/glossary.md").read_text("utf-8"), re.MULTILINE
    )
    terms = [term for row in rows for term in re.findall(r"\*\*(.+?)\*\*", row)]
    assert len(terms) > 40
    assert len(terms) == len(set(terms))
