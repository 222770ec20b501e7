"""The prose of the documentation: what a person reads of a Markdown page, without code, addresses and markup."""

from __future__ import annotations

import re
from collections.abc import Iterator

_CODE_BLOCK = re.compile(r"^```.*?^```$", re.S | re.M)
_COMMENT = re.compile(r"<!--.*?-->", re.S)
_CODE = re.compile(r"`[^`]*`")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_APART = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. |\||#))")
_OPENING = re.compile(r"^\s*(?:[-*#]+ |\d+\. )")
_ENDS = re.compile(r"(?<=[.:;?!])\s+(?=[A-Z\"(*]|CODE)")

# What a native reader stumbles over -> what to write.
AVOIDED = {
    r"anew": "again",
    r"meanwhile|in the meantime": "while …, since",
    r"whoever|whomever": "the process that, anyone who",
    r"somebody|anybody|everybody|nobody": "someone, anyone, everyone, no one",
    r"he|him|his|she|her": "you, it, they",
    r"one's|oneself": "your",
    r"is away|are away": "can't be reached",
    r"(?<!there )is no (?!longer\b)[a-z]+": "is not a …",
    r"of before": "older, earlier",
    r"so many|that many|so much": "a number",
    r"mend|mends|mended": "fix",
    r"shelf|catalogue|desk": "index",
    r"stands|stood": "is, is written",
    r"tells|told": "says, said, reports",
    r"takes? in|took in|taken in": "adds, reads",
    r"brings? (?:it|them|one) back": "restores",
    r"any more": "no longer",
    r"goes? on|went on": "continue",
    r"cannot": "can't",
    r"carried out": "applied",
    r"please(?! report it)": "nothing",
    r"simply|obviously|of course": "nothing",
    r"trouble": "problem",
}
_AVOIDED = {re.compile(rf"\b(?:{words})\b", re.IGNORECASE): better for words, better in AVOIDED.items()}


def avoided(text: str) -> Iterator[str]:
    """What a native reader would stumble over in a text, and what to write."""
    for words, better in _AVOIDED.items():
        if found := words.search(text):
            yield f"{found[0]!r} ({better}): {text}"


def sentences(page: str) -> Iterator[str]:
    """The sentences of paragraphs, list items and table cells. Inline code is one word, ``CODE``."""
    text = _COMMENT.sub("", _CODE_BLOCK.sub("\n\n", page))
    text = _LINK.sub(r"\1", _CODE.sub("CODE", text))
    for block in _APART.split(text):
        row = block.strip()
        for cell in row.strip("|").split("|") if row.startswith("|") else [block]:
            plain = " ".join(_OPENING.sub("", cell).split())
            yield from (each for each in _ENDS.split(plain) if each)
