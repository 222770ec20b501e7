"""The query language.

    sso login              tasks that contain both words
    sso OR oauth           either
    sso NOT saml           the first without the second
    "clock skew"           a phrase
    valid*                 words with this prefix
    added:round            what a turn wrote into a file; removed: what it took out
    (sso OR oauth) agent:developer file:auth/* status:failed after:2024-01-01 is:pinned tool:shell.exec

Every part is a condition on a task: the word is in any of its turns, that agent took a turn, that file was touched. A query that
cannot be parsed is searched for as plain words, with a hint; it is never an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from rawko_state.late import late
from rawko_state.model.frozen import Frozen, replace
from rawko_state.search.words import Atoms, Sought, identifiers_of, normal

EDITED: Final = ("added", "removed")
FIELDS: Final = (
    *EDITED,
    "agent", "file", "status", "tool", "after", "before", "since", "until", "is", "label", "model", "branch", "id",
)  # fmt: skip


class Text(Frozen):
    """A word, a phrase or a prefix."""

    sought: Sought
    shown: str
    where: str = ""
    """``added`` or ``removed``: only in such lines of a diff."""


class Field(Frozen):
    name: str
    value: str


class Not(Frozen):
    part: Node


class And(Frozen):
    parts: tuple[Node, ...]


class Or(Frozen):
    parts: tuple[Node, ...]


Leaf: TypeAlias = Text | Field
Node: TypeAlias = Text | Field | Not | And | Or


class Query(Frozen):
    root: Node | None
    """None: the query contains nothing to search for."""
    hint: str | None = None

    def leaves(self) -> list[Leaf]:
        """The distinct leaves, in query order."""
        found: dict[Leaf, None] = {}

        def walk(node: Node) -> None:
            if isinstance(node, Not):
                walk(node.part)
            elif isinstance(node, (And, Or)):
                for part in node.parts:
                    walk(part)
            else:
                found[node] = None

        if self.root is not None:
            walk(self.root)
        return list(found)


_DEEPEST: Final = 50


class _Unreadable(Exception):
    pass


_TOKEN = late(
    r"""\s*(?:
        (?P<open>\() | (?P<close>\)) |
        (?P<field>(?:FIELDS)):(?:"(?P<quoted>[^"]*)"|(?P<value>[^\s"()]+)) |
        "(?P<phrase>[^"]*)"(?P<star>\*?) |
        (?P<word>[^\s"]+)
    )""".replace("FIELDS", "|".join(FIELDS)),
    re.VERBOSE,
)
_TRAILING = late(r"\)+$")
_LIKE_A_FIELD = late(r"(?<![^\s(])([A-Za-z]+):(?=\S)")


def parse(text: str, check: Callable[[Field], str | None] = lambda _: None) -> Query:
    """Parses a query. ``check`` returns what is wrong with a field's value, if anything."""
    try:
        tokens = _tokens(text)
        node, rest = _any_of(tokens, 0)
        if rest < len(tokens):
            raise _Unreadable("unmatched )")
        for field in (leaf for leaf in Query(node).leaves() if isinstance(leaf, Field)):
            problem = check(field)
            if problem is not None:
                raise _Unreadable(problem)
        return Query(node)
    except _Unreadable as trouble:
        wrong = f"{trouble}" + ("" if str(trouble).endswith((".", "?")) else ".")
        return Query(_literal(text), f"warning: Can't read the query: {wrong} Searching for the words instead.")


def _literal(text: str) -> Node | None:
    words = [_word(word) for word in text.split()]
    return _joined(And, [word for word in words if word is not None])


def _tokens(text: str) -> list[tuple[str, str]]:
    """The tokens as kind and text: ``(``, ``)``, an operator, or a leaf."""
    found: list[tuple[str, str]] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _Unreadable('unmatched "')
        at = match.end()
        if match["open"] or match["close"]:
            found.append((match[0].strip(), ""))
        elif match["field"]:
            value = match["quoted"] if match["quoted"] is not None else match["value"]
            found.append(("field", f"{match['field']}:{value}"))
        elif match["phrase"] is not None:
            found.append(("phrase*" if match["star"] else "phrase", match["phrase"]))
        elif match["word"] in ("AND", "OR", "NOT"):
            found.append((match["word"], ""))
        else:
            word = match["word"]
            # f(x) is one word; in (sso OR oauth) the bracket belongs to the query.
            closing = _TRAILING.search(word)
            extra = max(0, word.count(")") - word.count("(")) if closing else 0
            found.append(("word", word[: len(word) - extra]) if extra else ("word", word))
            found.extend([(")", "")] * extra)
    return [token for token in found if token[0] != "word" or token[1]]


def _any_of(tokens: list[tuple[str, str]], at: int, depth: int = 0) -> tuple[Node | None, int]:
    if depth > _DEEPEST:
        raise _Unreadable("too many parentheses")
    parts: list[Node] = []
    while True:
        node, at = _all_of(tokens, at, depth)
        if node is not None:
            parts.append(node)
        if at == len(tokens) or tokens[at][0] != "OR":
            return _joined(Or, parts), at
        at += 1
        if at == len(tokens) or tokens[at][0] in (")", "OR", "AND"):
            raise _Unreadable("nothing follows OR")
        if not parts and node is None:
            raise _Unreadable("nothing precedes OR")


def _all_of(tokens: list[tuple[str, str]], at: int, depth: int) -> tuple[Node | None, int]:
    parts: list[Node] = []
    begun = False
    while at < len(tokens) and tokens[at][0] not in (")", "OR"):
        if tokens[at][0] == "AND":
            if not begun or at + 1 == len(tokens) or tokens[at + 1][0] in (")", "OR", "AND"):
                raise _Unreadable("AND needs words on both sides")
            at += 1
            continue
        node, at = _one(tokens, at, depth)
        begun = True
        if node is not None:
            parts.append(node)
    return _joined(And, parts), at


def _one(tokens: list[tuple[str, str]], at: int, depth: int) -> tuple[Node | None, int]:
    nots = 0
    while at < len(tokens) and tokens[at][0] == "NOT":
        nots, at = nots + 1, at + 1
    if at == len(tokens) or tokens[at][0] in (")", "OR", "AND"):
        raise _Unreadable("nothing follows NOT")
    node, at = _plain_one(tokens, at, depth)
    return (Not(node) if nots % 2 and node is not None else node), at


def _plain_one(tokens: list[tuple[str, str]], at: int, depth: int) -> tuple[Node | None, int]:
    kind, text = tokens[at]
    if kind == "(":
        node, at = _any_of(tokens, at + 1, depth + 1)
        if at == len(tokens) or tokens[at][0] != ")":
            raise _Unreadable("unmatched (")
        return node, at + 1
    if kind == "field":
        name, _, value = text.partition(":")
        if name in EDITED:
            found = _phrase(value, False) if " " in value else _word(value)
            if found is None:
                raise _Unreadable(f"{name}: wants a word")
            return replace(found, shown=f'{name}:"{value}"' if " " in value else f"{name}:{value}", where=name), at + 1
        return Field(name, value), at + 1
    if kind == "word":
        return _word(text), at + 1
    return _phrase(text, kind == "phrase*"), at + 1


def _joined(kind: type[And] | type[Or], parts: list[Node]) -> Node | None:
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else kind(tuple(parts))


def _word(word: str) -> Text | None:
    """None if the word has neither letters nor digits."""
    identifiers = tuple(identifiers_of(normal(word)))
    if not identifiers:
        return None
    prefix = word.endswith("*") and word[-2:-1] not in ("", "*", "/", ".")
    return Text(Sought(identifiers, prefix=prefix), word)


def _phrase(text: str, prefix: bool) -> Text | None:
    identifiers: tuple[Atoms, ...] = tuple(identifiers_of(normal(text)))
    if not identifiers:
        return None
    chunks = text.split()
    return Text(Sought(identifiers, prefix=prefix, across=len(chunks) > 1), f'"{text}"' + "*" * prefix)


def with_known_fields(text: str) -> str | None:
    """The query with the field that was perhaps meant in place of a word that looks like one (``stauts:failed``), else None."""
    import difflib

    def known(match: re.Match[str]) -> str:
        near = difflib.get_close_matches(match[1].lower(), FIELDS, n=1, cutoff=0.75)
        return f"{near[0]}:" if near else match[0]

    meant = _LIKE_A_FIELD.sub(known, text)
    return meant if meant != text else None


def replaced(node: Node, old: Text, new: Text) -> Node:
    """The same query with one word replaced."""
    if isinstance(node, Not):
        return Not(replaced(node.part, old, new))
    if isinstance(node, (And, Or)):
        return type(node)(tuple(replaced(part, old, new) for part in node.parts))
    return new if node == old else node


def shown(node: Node | None) -> str:
    """The query as readable text."""
    if node is None:
        return ""
    if isinstance(node, Text):
        return node.shown
    if isinstance(node, Field):
        return f'{node.name}:"{node.value}"' if " " in node.value else f"{node.name}:{node.value}"
    if isinstance(node, Not):
        return f"NOT {_bracketed(node.part)}"
    return (" " if isinstance(node, And) else " OR ").join(_bracketed(part) for part in node.parts)


def _bracketed(node: Node) -> str:
    return f"({shown(node)})" if isinstance(node, (And, Or)) else shown(node)
