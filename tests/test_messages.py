"""Every message that users can see: sentences, without the words that the glossary avoids. ``python -m tests.support.messages`` lists them."""

from __future__ import annotations

import re

from tests.support.messages import messages
from tests.support.processes import ROOT

ALL = list(messages())
_AVOIDED = re.compile(
    r"\b(anew|meanwhile|whoever|somebody|so many|that many|is away|shelf|catalogue|mend|trouble|sorry|oops|cannot)\b"
    r"|(?<!there )(?<!There )\bis no (?!longer)|!$|\bplease\b(?! report)"
)
_AS_TYPED = ("pick ", "rawko", "--")
"""Messages may begin with a command or an option."""


def test_there_are_messages() -> None:
    kinds = [message.kind for message in ALL]
    assert kinds.count("error") > 300
    assert kinds.count("help") > 100


def test_no_message_uses_a_word_that_the_glossary_avoids() -> None:
    assert not [str(message) for message in ALL if _AVOIDED.search(message.text)]


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
