"""Search: what counts as a match, that folding changes nothing but the time, and that nothing can break it."""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import SearchTrouble
from rawko_state.model.entries import FileTouch, ToolCall, Turn
from rawko_state.search import words
from rawko_state.search.documents import Document
from rawko_state.search.pages import TEXT, Filling, Page, Postings, pack
from rawko_state.search.query import And, Field, Not, Or, Query, Text, parse, shown
from rawko_state.search.words import Counts, Sought, identifiers_of, normal, occurs, spans, terms_of
from rawko_state.store import TaskFilter
from tests.search.searching import (
    ids,
    said,
    text,
)


class TestWords:
    @pytest.mark.parametrize("size", [1, 4, 9, 60])
    def test_a_long_text_has_the_counts_of_its_parts(self, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        parts = [
            (1, "the token\tvalidation of token_validation \u2028 getUserById\n" * 4),
            (3, "数据库 token"),
            (1, ""),
        ]
        whole = Counts().of(parts)
        monkeypatch.setattr(words, "_SLICE", size)
        assert Counts().of(parts) == whole

    @pytest.mark.parametrize(
        ("text", "atoms"),
        [
            ("auth/sso.rs", ["auth", "sso", "rs"]),
            ("token_validation", ["token", "validation"]),
            ("tokenValidation", ["token", "validation"]),
            ("getUserById", ["get", "user", "by", "id"]),
            ("HTTPServer", ["http", "server"]),
            ("E0308", ["e0308"]),
            ("--no-verify", ["no", "verify"]),
            ("ValueError:", ["value", "error"]),
            ("__init__", ["init"]),
            ("数据库", ["数", "据", "库"]),
            ("使用SQLite数据库", ["使", "用", "sq", "lite", "数", "据", "库"]),
            ("ÜberÄnderung", ["über", "änderung"]),
            ("Straße", ["strasse"]),
            ("cafe\u0301", ["café"]),
            ("ﬁx", ["fix"]),
            ("...", []),
        ],
    )
    def test_atoms(self, text: str, atoms: list[str]) -> None:
        assert [atom for identifier in identifiers_of(normal(text)) for atom in identifier] == atoms

    @pytest.mark.parametrize(
        ("query", "text", "found"),
        [
            ("auth/sso.rs", "edit src/auth/sso.rs now", True),
            ("sso.rs", "src/auth/sso.rs", True),
            ("sso", "src/auth/sso.rs", True),
            ("src/auth/sso.rs", "src/auth and auth/sso.rs", False),
            ("sso.rs", "the sso rs thing", False),
            ("token_validation", "tokenValidation()", True),
            ("tokenvalidation", "token_validation", True),
            ("tokenValidation", "tokenvalidation", True),
            ("UserBy", "getUserById", True),
            ("getUserById", "getuserbyid", True),
            ("GETUSERBYID", "getUserById", True),
            ("ById", "getUserName", False),
            ("getById", "getUserById", False),
            ("E0308", "error[E0308]: mismatched", True),
            ("--no-verify", "git commit --no-verify", True),
            ("no-verify", "git commit --no-verify", True),
            ("verify", "git commit --no-verify", True),
            ("ValueError:", "raise ValueError('x')", True),
            ("ValueError", "ValueError: x", True),
            ("数据库", "打开数据库连接", True),
            ("数库", "数据库", False),
            ("valid*", "token_validation", True),
            ("valid*", "invalid", False),
            ("tokenval*", "token_validation", True),
            ("src/au*", "src/auth/sso.rs", True),
            ('"clock skew"', "the clock\nskew is", True),
            ('"clock skew"', "clock-skew", True),
            ('"clock skew"', "clock of skew", False),
            ('"getUserById fails"', "getuserbyid fails", True),
            ("STRASSE", "straße", True),
            ("café", "cafe\u0301", True),
        ],
    )
    def test_what_matches(self, store: FileStore, query: str, text: str, found: bool) -> None:
        leaf = parse(query).root
        assert isinstance(leaf, Text)
        assert occurs(leaf.sought, [text]) is found
        said(store, text)
        assert bool(ids(store, query)) is found
        store.flush()
        assert store.unflushed() == 0
        assert bool(ids(store, query)) is found

    def test_a_long_text_without_spaces_is_no_trouble(self) -> None:
        text = "aB" * 200_000
        began = time.process_time()
        assert len(terms_of(text)) > 100_000
        assert list(spans(Sought((("zz",),)), text)) == []
        assert time.process_time() - began < 20

    @given(st.lists(st.integers(1, 300), min_size=1, max_size=200), st.data())
    def test_postings_come_back_with_what_no_document_beats(self, steps: list[int], data: st.DataObject) -> None:
        documents = list(itertools.accumulate(steps))
        page = Page()
        page.sizes = bytes(data.draw(st.lists(st.integers(0, 255), min_size=1, max_size=9))) * (documents[-1] + 1)
        page.sizes = page.sizes[: documents[-1] + 1]
        times = bytes(data.draw(st.lists(st.integers(1, 255), min_size=len(steps), max_size=len(steps))))
        packed = Postings(pack(documents, times, page.sizes))
        assert packed.count == len(documents)
        assert packed.lists(page) == (documents, times)
        best = list(packed.best)
        for document, number in zip(documents, times, strict=True):
            assert any(most >= number and least <= page.sizes[document] for most, least in best)
        page.sizes = page.sizes[:-1]
        with pytest.raises(SearchTrouble):
            packed.lists(page)

    def test_a_stored_page_is_read_when_it_is_needed(self) -> None:
        filling, reads = Filling(Counts()), []
        filling.own("abc123", 1, 1_700_000_000)
        document = Document(10, 20, "turn", 3)
        document.parts.append((1, "clock skew"))
        filling.add(document)
        packed = filling.packed()

        def load() -> bytes:
            reads.append(1)
            return packed.page

        page = Page.stored(packed.newest, load)
        assert (page.newest, reads) == (1_700_000_000, [])
        assert (page.tasks, page.place(0).turn, reads) == (["abc123"], 3, [1])
        assert Postings(dict(packed.terms[TEXT])[b"skew"]).lists(page) == ([0], b"\x01")
        damaged = bytearray(packed.page)
        damaged[-1] ^= 1
        with pytest.raises(SearchTrouble):
            len(Page.stored(0, lambda: bytes(damaged)))


class TestQueries:
    @pytest.mark.parametrize(
        ("query", "root"),
        [
            ("sso", text("sso")),
            ("sso login", And((text("sso"), text("login")))),
            ("sso AND login", And((text("sso"), text("login")))),
            ("sso OR login", Or((text("sso"), text("login")))),
            ("a b OR c", Or((And((text("a"), text("b"))), text("c")))),
            ("a (b OR c)", And((text("a"), Or((text("b"), text("c")))))),
            ("NOT sso", Not(text("sso"))),
            ("agent:dev x", And((Field("agent", "dev"), text("x")))),
            ('file:"a b.py"', Field("file", "a b.py")),
            ("http://x.y", text("http://x.y")),
            ("std::vector", text("std::vector")),
            ("f(x)", text("f(x)")),
            ("foo() bar", And((text("foo()"), text("bar")))),
            ("profile:x", text("profile:x")),
            ("--no-verify", text("--no-verify")),
            ("or and not", And((text("or"), text("and"), text("not")))),
            ("... sso", text("sso")),
            ("", None),
            ("...", None),
        ],
    )
    def test_what_is_read(self, query: str, root: object) -> None:
        assert parse(query) == Query(root)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "query",
        ['"sso', "(sso", "sso)", "OR", "sso OR", "OR sso", "AND", "sso AND", "NOT", "a NOT", "()", "a ()", "(" * 5000],
    )
    def test_what_cannot_be_read_is_searched_for_literally(self, query: str) -> None:
        found = parse(query)
        assert found.hint or query in ("()", "a ()")
        assert found.root is None or isinstance(found.root, (Text, And))

    @given(st.text(alphabet='ab "()*:ANDORNOT\\-éß数', max_size=40))
    def test_any_text_is_a_query(self, query: str) -> None:
        found = parse(query)
        if found.root is not None and found.hint is None:
            assert parse(shown(found.root)).root == found.root or "*" in query or "(" in query or ")" in query

    def test_a_wrong_value_is_a_hint(self, store: FileStore) -> None:
        said(store, "status:bogus")
        answer = store.search("status:bogus")
        assert answer.hint is not None
        assert "Unknown status: 'bogus'" in answer.hint
        assert len(answer.hits) == 1


class TestMayOccur:
    """Whether a phrase may occur is told from the bytes of a turn, without parsing it: never "no" where it does occur."""

    @pytest.mark.parametrize(
        ("query", "said"),
        [
            ('"clock skew"', "the clock\nskew"),
            ('"clock skew"', "Clock_Skew and more"),
            ('"clock skew"', "clock\x1b[31m skew"),
            ('"clock skew"', "--- clock\n=== skew"),
            ('"größe ändern"', "GRÖSSE ändern"),
            ("getUserById", "get_user_by_id"),
            ("auth/sso.rs", "src/auth/sso.rs"),
            (f'"{"x" * 70} y"', f"{'x' * 70} y"),
        ],
    )
    def test_never_a_wrong_no(self, tmp_path: Path, query: str, said: str) -> None:
        with FileStore(tmp_path) as store:
            with store.start("another request") as task:
                task.add_turn(Turn(number=1, agent="dev", status="complete", content=said))
                task.add_turn(
                    Turn(
                        number=1,
                        agent="dev",
                        status="complete",
                        tools=(ToolCall("a", said, "ok", "10:30:00", output=said, more={"input": {"text": said}}),),
                    )
                )
                task.finish("success")
            store.flush()
            found = store.search(query, TaskFilter(sort="relevance"), turns=True)
            assert len([hit for hit in found.hits if hit.kind == "turn"]) == 2

    def test_words_of_one_log_that_are_lines_apart(self, tmp_path: Path) -> None:
        """The times and operations between them are not part of the text."""
        calls = (ToolCall("one", "clock", None, "10:30:00"), ToolCall("skew", "", None, "10:30:01"))
        files = (FileTouch("read", "a/clock"), FileTouch("write", "skew/b"))
        with FileStore(tmp_path) as store:
            with store.start("another request") as task:
                task.add_turn(Turn(number=1, agent="dev", status="complete", tools=calls))
                task.add_turn(Turn(number=1, agent="dev", status="complete", files=files))
                task.finish("success")
            store.flush()
            found = store.search('"clock skew"', TaskFilter(sort="relevance"), turns=True)
            assert sorted(hit.turn or 0 for hit in found.hits) == [1, 2]


class TestPhrases:
    def test_words_are_split_only_where_the_phrase_may_be(self, monkeypatch: pytest.MonkeyPatch) -> None:
        split: list[str] = []
        real = words.atoms_of

        def counted(identifier: str) -> tuple[str, ...]:
            split.append(identifier)
            return real(identifier)

        monkeypatch.setattr(words, "atoms_of", counted)
        sought = Sought((("clock",), ("skew",)), across=True)
        filler = "the skew of every clock_of_ours is known " * 200
        whole = f"{filler}(Clock-skew is 3 s) {filler}"
        assert [whole[first:last] for first, last in spans(sought, whole)] == ["Clock-skew"]
        assert len(split) < 10

    def test_positions_are_tried_only_where_the_first_word_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        called: list[int] = []
        sought = Sought((("clock",), ("skew",)), across=True)
        flow = [words._Word((word,), at, at + 1) for at, word in enumerate(["a", "b"] * 500 + ["clock", "skew"])]

        def count(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code.co_name == "end_of":
                called.append(1)

        sys.setprofile(count)
        try:
            assert list(words._spans_in(sought, flow)) == [(1000, 1002)]
        finally:
            sys.setprofile(None)
        assert len(called) == 1

    def test_one_that_begins_in_what_only_looks_like_it(self) -> None:
        sought = Sought((("a",), ("b",), ("a",), ("b",)), across=True)
        assert list(spans(sought, "xa b a b a b")) == [(5, 12)]

    def test_one_with_a_word_that_is_cut(self, store: FileStore) -> None:
        long = ("abcdefghijklm" * 6)[:70]
        said(store, f"before {long} after")
        assert len(ids(store, f'"{long} after"')) == 1

    def test_of_the_tail_only_what_may_match_is_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        counted: list[str] = []
        counts = Counts()
        real = counts.of

        def of(parts: list[tuple[int, str]]) -> dict[str, int]:
            counted.extend(each for _, each in parts)
            return real(parts)

        monkeypatch.setattr(counts, "of", of)
        filling = Filling(counts, {"clock"}, ("sk",))
        filling.own("abc123", 0, 0)
        for number, line in enumerate(["nothing here", "the CLOCK", "askew, no prefix", "skews", "c_lock"]):
            document = Document(number, 1, "turn")
            document.parts.append((1, line))
            filling.add(document)
        assert counted == ["the CLOCK", "askew, no prefix", "skews", "c_lock"]
        found = filling.postings(TEXT, "clock")
        assert found is not None
        assert found.lists(filling.done())[0] == [1, 4]


class TestOneLongWord:
    """No single call on it takes long: the other threads of a server wait for such a call."""

    @pytest.mark.parametrize("letters", ["x", "aB", "0f", "é", "a_", "語"])
    def test_it_is_cut(self, letters: str) -> None:
        long = letters * 100_000
        found = identifiers_of(long)
        assert len(found) > 20
        assert max(sum(map(len, atoms)) for atoms in found) <= 3 * words._LONG
        assert set(Counts().of([(1, f"a {long} b")])) == {"a", "b", *terms_of(long)}

    @pytest.mark.parametrize("letters", ["e\u0301", "e\u0301 ", "ﬁ\n", "\u1100\u1161\u11a8 a"])
    def test_a_long_text_is_normalised_in_parts(self, letters: str, monkeypatch: pytest.MonkeyPatch) -> None:
        text = letters * 2_000
        whole = normal(text)
        monkeypatch.setattr(words, "_SLICE", 1_000)
        assert normal(text) == whole
        assert len(list(words._parts(text))) > 3

    def test_parts_for_counting_end_at_spaces_however_far(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(words, "_SLICE", 10)
        text = "a bb " + "c" * 55 + " ddd " + "e" * 40
        assert " ".join(words._slices(text)) == text
        assert len(list(words._slices(text))) == 2
