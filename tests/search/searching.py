"""What the tests of this folder share."""

from __future__ import annotations

import itertools
import unicodedata

from hypothesis import strategies as st

from rawko_state.backends.files.store import FileStore
from rawko_state.model.entries import Turn
from rawko_state.search.query import Text
from rawko_state.search.words import Sought, identifiers_of
from rawko_state.store import RELEVANCE, TaskFilter
from tests.support.processes import DRIVERS


def said(store: FileStore, *contents: str, request: str = "do it", **more: object) -> str:
    """A finished task with a turn for each text."""
    with store.start(request, **more) as task:  # type: ignore[arg-type]
        for content in contents:
            task.add_turn(Turn(number=1, agent="developer", status="complete", content=content))
        task.finish("success", "done")
        return task.id


def ids(store: FileStore, query: str, **filters: object) -> list[str]:
    return [hit.task.id for hit in store.search(query, TaskFilter(sort=RELEVANCE, **filters)).hits]  # type: ignore[arg-type]


def text(word: str) -> Text:
    return Text(Sought(tuple(identifiers_of(word))), word)


def plain_atoms(identifier: str) -> list[str]:
    """Character by character."""
    found = [""]
    for at, character in enumerate(identifier):
        before, after = identifier[at - 1 : at], identifier[at + 1 : at + 2]
        if character == "_":
            found.append("")
            continue
        if "\u4e00" <= character <= "\u9fff":
            found += [character, ""]
            continue
        small_before = before.islower() or before.isdigit()
        if character.isupper() and before and (small_before or (after.islower() and before != "_")):
            found.append("")
        found[-1] += character
    return [atom.lower()[:64] for atom in found if atom]


def plain_words(chunk: str) -> list[list[str]]:
    word = "".join(character if character.isalnum() or character == "_" else " " for character in chunk)
    return [atoms for part in word.split() if (atoms := plain_atoms(part))]


def readings(words: list[list[str]]) -> list[list[str]]:
    choices = []
    for atoms in words:
        whole = "".join(atoms)
        fine = len(atoms) > 1 and len(whole) <= 64 and not any("\u4e00" <= c <= "\u9fff" for c in whole)
        choices.append([atoms, [whole]] if fine else [atoms])
    return [[atom for part in chosen for atom in part] for chosen in itertools.product(*choices)]


def plain_match(query: str, content: str) -> bool:
    """A single word, "phrase" or prefix* against one text."""
    content = unicodedata.normalize("NFKC", content)
    phrase = query.startswith('"')
    prefix = query.endswith("*")
    wanted = readings(plain_words(query))
    flows = [content] if phrase and " " in query else content.split()
    for flow in flows:
        for have in readings(plain_words(flow)):
            for want in wanted:
                for start in range(len(have) - len(want) + 1):
                    part = have[start : start + len(want)]
                    if part == want or (prefix and part[:-1] == want[:-1] and part[-1].startswith(want[-1])):
                        return True
    return False


WORDS = [
    "sso",
    "login",
    "getUser",
    "get_user",
    "getuser",
    "userBy",
    "auth/sso.rs",
    "src/auth",
    "E0308",
    "数据",
    "据库",
    "--no-fix",
    "no",
    "fix",
]


QUERY_WORDS = [
    *WORDS,
    "user",
    "get*",
    "getu*",
    "auth/sso",
    '"sso login"',
    '"login get user"',
    "数据库",
    "sso.rs",
    "absent",
    "a*",
]


contents = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)


tasks = st.lists(st.lists(contents, min_size=1, max_size=3), min_size=1, max_size=5)


leaves = st.sampled_from(QUERY_WORDS)


queries = st.recursive(
    leaves.map(lambda word: ("word", word)),
    lambda part: st.one_of(
        st.tuples(st.just("and"), st.lists(part, min_size=2, max_size=3)),
        st.tuples(st.just("or"), st.lists(part, min_size=2, max_size=3)),
        st.tuples(st.just("not"), part),
    ),
    max_leaves=4,
)


def written(query: tuple[str, object]) -> str:
    kind, part = query
    if kind == "word":
        return str(part)
    if kind == "not":
        return f"NOT ({written(part)})"  # type: ignore[arg-type]
    return "(" + (" " if kind == "and" else " OR ").join(written(each) for each in part) + ")"  # type: ignore[attr-defined]


def holds(query: tuple[str, object], texts: list[str]) -> bool:
    kind, part = query
    if kind == "word":
        return any(plain_match(str(part), each) for each in texts)
    if kind == "not":
        return not holds(part, texts)  # type: ignore[arg-type]
    return (all if kind == "and" else any)(holds(each, texts) for each in part)  # type: ignore[attr-defined]


def words_in(query: tuple[str, object]) -> set[str]:
    kind, part = query
    if kind == "word":
        return {str(part)}
    parts = [part] if kind == "not" else part
    return {word for each in parts for word in words_in(each)}  # type: ignore[attr-defined,arg-type]


DRIVER = str(DRIVERS / "search.py")
