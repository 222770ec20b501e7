"""Search: what counts as a match, that folding changes nothing but the time, and that nothing can break it."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import threading
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rawko_state.backends.files import flush
from rawko_state.backends.files.store import FileStore
from rawko_state.errors import SearchTrouble
from rawko_state.index import flushed
from rawko_state.model.entries import FileTouch, Question, ToolCall, Turn
from rawko_state.search import engine
from rawko_state.search import whoosh_index as shelf
from rawko_state.search.pages import pack, unpack
from rawko_state.search.query import And, Field, Not, Or, Query, Text, parse, shown
from rawko_state.search.words import Sought, identifiers_of, normal, occurs, spans, terms_of
from rawko_state.store import RELEVANCE, TIME, TaskFilter
from tests.faults import needs_strace
from tests.support.machine import patience, wait_for


@pytest.fixture(autouse=True)
def _no_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWKO_SEARCH_FOLD", "off")


@pytest.fixture
def store(tmp_path: Path):  # type: ignore[no-untyped-def]
    opened = FileStore(tmp_path)
    yield opened
    opened.close()


def said(store: FileStore, *contents: str, request: str = "do it", **more: object) -> str:
    """A finished task with a turn for each text."""
    with store.start(request, **more) as task:  # type: ignore[arg-type]
        for content in contents:
            task.add_turn(Turn(number=1, agent="developer", status="complete", content=content))
        task.finish("success", "done")
        return task.id


def ids(store: FileStore, query: str, **filters: object) -> list[str]:
    return [hit.task.id for hit in store.search(query, TaskFilter(sort=RELEVANCE, **filters)).hits]  # type: ignore[arg-type]


class TestWords:
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

    @given(st.lists(st.integers(1, 3000), max_size=50), st.data())
    def test_postings_come_back(self, steps: list[int], data: st.DataObject) -> None:
        documents = list(itertools.accumulate(steps))
        times = bytes(data.draw(st.lists(st.integers(1, 255), min_size=len(steps), max_size=len(steps))))
        documents = [document for document in documents if document < 65_536]
        times = times[: len(documents)]
        back, numbers = unpack(pack(documents, times))
        assert (list(back), numbers) == (documents, times)


def text(word: str) -> Text:
    return Text(Sought(tuple(identifiers_of(word))), word)


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
        assert "no status 'bogus'" in answer.hint
        assert len(answer.hits) == 1


# The plain meaning, once more and in another way: every reading of the text against every reading of the query.


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


class TestAgainstAPlainScan:
    @settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
    @given(tasks, st.lists(queries, min_size=1, max_size=6), st.lists(st.integers(0, 2), min_size=5, max_size=5))
    def test_the_same_is_found_whatever_part_is_folded(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        made: list[list[str]],
        asked: list[tuple[str, object]],
        folds: list[int],
    ) -> None:
        root = tmp_path_factory.mktemp("p")
        store = FileStore(root)
        texts: dict[str, list[str]] = {}
        half: list[tuple[str, list[str]]] = []
        for number, contents in enumerate(made):
            with store.start("please", detached=True) as task:
                texts[task.id] = ["please", "developer"]
                cut = len(contents) // 2 if folds[number] == 2 else len(contents)
                for content in contents[:cut]:
                    task.add_turn(Turn(number=1, agent="developer", status="complete", content=content))
                    texts[task.id].append(content)
                half.append((task.id, contents[cut:]))
            if folds[number]:
                store.flush()
        for task_id, rest in half:
            with store.attach(task_id) as task:
                for content in rest:
                    task.add_turn(Turn(number=1, agent="developer", status="complete", content=content))
                    texts[task_id].append(content)
        self._compare(store, texts, asked)
        shutil.rmtree(root / ".rawko/state/search", ignore_errors=True)
        before = [self._hits(store, query) for query in asked]
        store.close()
        store = FileStore(root, warn=lambda message: None)
        assert before == [self._hits(store, query) for query in asked]
        store.flush()
        assert store.unflushed() == 0
        self._compare(store, texts, asked)
        store.close()
        shutil.rmtree(root)

    def _hits(self, store: FileStore, query: tuple[str, object]) -> list[tuple[str, int | None]]:
        store._warn = lambda message: None
        return sorted((h.task.id, h.offset or 0) for h in store.search(written(query), turns=True).hits)

    def _compare(self, store: FileStore, texts: dict[str, list[str]], asked: list[tuple[str, object]]) -> None:
        for query in asked:
            answer = store.search(written(query), turns=True)
            assert answer.hint is None
            wanted = {task_id for task_id, said in texts.items() if holds(query, said)}
            assert {hit.task.id for hit in answer.hits} == wanted, written(query)
            turns = sorted((hit.task.id, hit.turn) for hit in answer.hits if hit.turn is not None)
            assert turns == sorted(
                (task_id, number)
                for task_id in wanted
                for number, content in enumerate(texts[task_id][2:], 1)
                if any(plain_match(word, content) for word in words_in(query))
            ), written(query)
            assert [hit.task.id for hit in store.search(written(query)).hits] == list(
                dict.fromkeys(hit.task.id for hit in answer.hits)
            )


class TestWhatIsFound:
    def test_all_that_a_task_says(self, store: FileStore) -> None:
        with store.start("the requestword", title="a titleword", labels={"team": "labelword"}) as task:
            task.decide(selected="planner", reason="the reasonword", guidance="a guidanceword")
            turn = Turn(
                number=1,
                agent="plannername",
                status="complete",
                content="the contentword",
                tools=(
                    ToolCall(
                        "shell.exec", "cargo argword", "exit resultword", "10:30:05", output="some\noutputword\nhere"
                    ),
                    ToolCall("db.query", "select\nnewlineword", "ok", "10:30:06"),
                ),
                files=(FileTouch("write", "src/fileword.rs"),),
                payload='{"x": "payloadword"}',
            )
            task.add_turn(turn)
            task.ask("developer", Question("which questionword?", choices=("one", "choiceword")))
            task.answer("choiceword")
            task.ask("developer", Question("and now?"))
            task.answer("the answerword", by="me")
            task.note("a noteword")
            task.finish("success", "the summaryword", files=["src/modifiedword.rs"])
        words = "request title label reason guidance plannername content arg result output newline file question choice answer note summary modified"
        for _ in range(2):
            for word in words.split():
                word = word if word.endswith("name") else f"{word}word"
                assert ids(store, word) == [task.id], word
            assert ids(store, "payloadword") == []
            assert ids(store, "30") == []  # a tool's time
            assert ids(store, "tool:shell.exec") == [task.id]
            assert ids(store, "tool:shell") == [task.id]
            assert ids(store, "tool:SHELL*") == [task.id]
            assert ids(store, "tool:exec") == []
            store.flush()

    def test_fields_and_filters(self, store: FileStore) -> None:
        old = said(store, "sso here", labels={"team": "auth"}, model="opus", branch="main")
        new = said(store, "sso there")
        with store.start("sso too") as task:
            task.add_turn(Turn(number=1, agent="tester", status="complete", files=(FileTouch("write", "auth/sso.rs"),)))
            task.finish("failure", "no")
        failed = task.id
        with store.attach(new) as task:
            task.note(pinned=True)
        for _ in range(2):
            everything = {old, new, failed}
            assert set(ids(store, "sso")) == everything
            assert ids(store, "sso status:failed") == [failed]
            assert set(ids(store, "sso NOT status:failed")) == {old, new}
            assert ids(store, "sso agent:tester") == [failed]
            assert ids(store, "agent:test*") == [failed]
            assert ids(store, "sso file:auth/*") == [failed]
            assert ids(store, "sso is:pinned") == [new]
            assert ids(store, "is:failed") == [failed]
            assert ids(store, "sso label:team=auth") == [old]
            assert ids(store, "sso label:team model:opus branch:ma*") == [old]
            assert ids(store, f"id:{old}") == [old]
            assert ids(store, "sso after:2999-01-01") == []
            assert set(ids(store, "sso before:2999-01-01")) == everything
            assert set(ids(store, "after:1d")) == everything
            assert ids(store, "sso", status=("failed",)) == [failed]
            assert ids(store, "sso", agent="tester") == [failed]
            assert set(ids(store, "(status:failed OR is:pinned) sso")) == {failed, new}
            store.flush()

    def test_ranking(self, store: FileStore) -> None:
        weak = said(store, "sso " + "filler " * 200)
        strong = said(store, "sso sso sso")
        titled = said(store, "nothing", title="sso")
        both = said(store, "login", "sso login")
        for _ in range(2):
            found = ids(store, "sso")
            assert found.index(strong) < found.index(weak)
            assert found.index(titled) < found.index(weak)
            assert ids(store, "sso OR login")[0] == both
            answer = store.search("sso login")
            assert [(hit.task.id, hit.turn, hit.words) for hit in answer.hits] == [(both, 2, 2)]
            every = store.search("sso login", turns=True)
            assert [(hit.turn, hit.words) for hit in every.hits] == [(2, 2), (1, 1)]
            assert ids(store, "sso") == found, "the same whatever is folded"
            store.flush()

    def test_folding_changes_no_score(self, store: FileStore) -> None:
        chance = random.Random(3)
        for _ in range(20):
            said(store, *(" ".join(chance.choices(WORDS, k=chance.randint(1, 40))) for _ in range(3)))
        said(store, "nothing of the kind")

        def found() -> list[tuple[str, int | None, int, float]]:
            hits = store.search("sso get_user login*", turns=True).hits
            return [(hit.task.id, hit.turn, hit.words, round(hit.score, 3)) for hit in hits]

        before = found()
        store.flush()
        assert before == found()
        assert len(before) > 20

    def test_newer_first_when_all_else_is_equal(self, store: FileStore) -> None:
        from datetime import datetime, timezone

        old = said(store, "sso", created=datetime(2020, 1, 1, tzinfo=timezone.utc))
        new = said(store, "sso", created=datetime(2024, 1, 1, tzinfo=timezone.utc))
        middle = said(store, "sso sso sso", created=datetime(2022, 1, 1, tzinfo=timezone.utc))
        assert ids(store, "sso")[1:] == [new, old]
        answer = store.search("sso", TaskFilter(sort=TIME))
        assert [hit.task.id for hit in answer.hits] == [new, middle, old]
        answer = store.search("sso", TaskFilter(sort="created", reverse=True, limit=2))
        assert [hit.task.id for hit in answer.hits] == [old, middle]

    def test_an_excerpt_shows_why(self, store: FileStore) -> None:
        said(store, "x " * 500 + "\n\nthe token\tvalidation of\nSSO tokens " + "y " * 500)
        for _ in range(2):
            (hit,) = store.search('sso "token validation"').hits
            assert [hit.excerpt[a:b] for a, b in hit.highlights] == ["token validation", "SSO"]
            assert len(hit.excerpt) < 300
            assert hit.excerpt.startswith("…")
            assert "\n" not in hit.excerpt
            with store.reader(hit.task.id) as reader:
                assert hit.offset is not None
                assert hit.length is not None
                assert reader.fetch(hit.offset, hit.length).startswith(b"--- Turn 1: developer ---\n")
            store.flush()

    def test_found_the_moment_it_is_appended(self, store: FileStore) -> None:
        task = store.start("x")
        other = FileStore(store.root)
        for number in range(20):
            task.add_turn(Turn(number=1, agent="d", status="complete", content=f"needle{number}"))
            assert [hit.turn for hit in other.search(f"needle{number}").hits] == [number + 1]
            if number % 7 == 0:
                other.flush()
        task.close()
        other.close()

    def test_suggestions(self, store: FileStore) -> None:
        said(store, "the authentication callback")
        for _ in range(2):
            answer = store.search("authentcation callback")
            assert answer.hits == ()
            assert answer.suggestion == "authentication callback"
            assert len(store.search(answer.suggestion).hits) == 1
            assert store.search("zzzzqqqq").suggestion is None
            store.flush()

    def test_hostile_content(self, store: FileStore) -> None:
        said(store, "\x1b[31mevil\x1b[0m \x00nul \ud800surrogate needle")
        for _ in range(2):
            (hit,) = store.search("needle").hits
            assert hit.turn == 1
            store.flush()


class TestEdits:
    def test_a_file_edited_by_hand(self, store: FileStore) -> None:
        task_id = said(store, "needle one", "needle two")
        store.flush()
        path = store.journal.layout.path(store.find(task_id))
        path.write_bytes(path.read_bytes().replace(b"needle two", b"thimble 22"))
        store.summary(task_id)  # looks at the file
        for _ in range(2):
            assert [hit.turn for hit in store.search("needle", turns=True).hits] == [1]
            assert [hit.turn for hit in store.search("thimble").hits] == [2]
            store.flush()

    def test_an_edit_while_it_is_being_folded(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        task_id = said(store, "needle")
        path = store.journal.layout.path(store.find(task_id))
        write = shelf.write

        def edited(*arguments: object) -> None:
            write(*arguments)  # type: ignore[arg-type]
            path.write_bytes(path.read_bytes().replace(b"needle", b"thimbl"))
            other = FileStore(store.root)
            other.summary(task_id)
            other.close()

        with monkeypatch.context() as patched:
            patched.setattr(shelf, "write", edited)
            store.flush()
        for _ in range(2):
            assert ids(store, "needle") == []
            assert ids(store, "thimbl") == [task_id]
            store.flush()

    def test_a_task_that_is_gone(self, store: FileStore) -> None:
        gone, stays = said(store, "needle"), said(store, "needle")
        store.flush()
        store.journal.layout.path(store.find(gone)).unlink()
        assert ids(store, "needle") == [stays]

    def test_a_task_that_grows(self, store: FileStore) -> None:
        with store.start("x", detached=True) as task:
            for number in range(30):
                task.add_turn(Turn(number=1, agent="d", status="complete", content=f"needle n{number}"))
                store.flush()
        assert [hit.turn for hit in store.search("needle", TaskFilter(sort=TIME), turns=True).hits] == list(
            range(1, 31)
        )

    def test_many_small_segments_become_one(self, store: FileStore) -> None:
        for number in range(20):
            said(store, f"needle n{number}")
            store.flush()
        index = store.sync.fresh()
        where = flush.place(index, store.root)
        assert where is not None
        assert where.name is not None
        opened = shelf.WhooshIndex.open(where.folder, where.name)
        assert len(opened.segments) < 10
        opened.close()
        assert len(ids(store, "needle")) == 20

    def test_a_damaged_record_and_a_torn_one(self, store: FileStore) -> None:
        task_id = said(store, "needle one", "needle two", "needle three")
        path = store.journal.layout.path(store.find(task_id))
        path.write_bytes(
            path.read_bytes().replace(b"needle two", b"needle 222") + b"--- Turn 9: x ---\n\n[Content]\nneedle torn"
        )
        store.summary(task_id)
        for _ in range(2):
            assert [hit.turn for hit in store.search("needle", TaskFilter(sort=TIME), turns=True).hits] == [1, 2, 3]
            assert ids(store, "torn") == []
            store.flush()

    def test_a_very_large_turn(self, store: FileStore) -> None:
        large = "filler text " * 300_000 + " needle at the end"
        task_id = said(store, large, "thimble")
        for _ in range(2):
            (hit,) = store.search("needle").hits
            assert (hit.task.id, hit.turn) == (task_id, 1)
            assert [hit.excerpt[a:b] for a, b in hit.highlights] == ["needle"]
            store.flush()


class TestOddThings:
    """Found by trying to break it."""

    @pytest.mark.parametrize(
        ("content", "query"),
        [
            ("test_" + "_".join(f"part{n}" for n in range(60)), "part7"),
            ("数据库连接失败" * 40, "连接"),
            (" ".join(f"w{n}" for n in range(80)), '"' + " ".join(f"w{n}" for n in range(45)) + '"'),
        ],
    )
    def test_a_match_longer_than_an_excerpt(self, store: FileStore, content: str, query: str) -> None:
        said(store, content)
        for _ in range(2):
            (hit,) = store.search(query).hits
            assert hit.highlights
            assert all(0 <= first < last <= len(hit.excerpt) for first, last in hit.highlights)
            store.flush()

    def test_phrases_take_no_exponential_time(self, store: FileStore) -> None:
        said(store, "foo_bar " * 60 + "end zzz")
        began = time.process_time()
        for _ in range(2):
            assert ids(store, '"' + "foo_bar " * 40 + 'zzz"') == []
            assert len(ids(store, '"' + "foo_bar " * 40 + '"')) == 1
            store.flush()
        assert time.process_time() - began < 20

    def test_long_and_deep_queries(self, store: FileStore) -> None:
        task_id = said(store, "the quick fox " * 1_000)
        assert ids(store, '"' + "the quick fox " * 700 + '"') == [task_id]
        assert ids(store, "NOT " * 700 + "fox") == [task_id]
        assert ids(store, "NOT " * 701 + "fox") == []
        assert store.search("NOT " * 700 + "quicj").hits == ()
        assert ids(store, "(" * 40 + "fox" + ")" * 40) == [task_id]
        assert store.search("(" * 400 + "fox" + ")" * 400).hint is not None
        assert ids(store, " ".join(["fox"] * 3_000)) == [task_id]

    def test_text_that_the_file_holds_escaped(self, store: FileStore) -> None:
        task_id = said(store, "größe\x00 数据库 kaffee")
        with store.start("x") as task:
            task.finish("failure", error="\x1b[31mungültige größe\x1b[0m")
        for _ in range(2):
            assert set(ids(store, "größe")) == {task_id, task.id}
            assert ids(store, "数据库") == [task_id]
            assert ids(store, "ungültige") == [task.id]
            store.flush()

    def test_words_behind_colours(self, store: FileStore) -> None:
        output = (
            "\x1b[0m\x1b[1m\x1b[38;5;9merror[E0308]\x1b[0m: \x1b[1mmismatched types\x1b]8;;http://x\x07link\x1b]8;;\x07"
        )
        with store.start("x") as task:
            task.add_turn(
                Turn(
                    number=1,
                    agent="d",
                    tools=(ToolCall("shell.exec", "cargo\nbuild", "ok", "10:30:05", output=output),),
                )
            )
        for _ in range(2):
            for word in ("error", "mismatched", "error[E0308]", "types", "link"):
                assert ids(store, word) == [task.id], word
            store.flush()

    def test_signs_on_letters_are_letters(self, store: FileStore) -> None:
        task_id = said(store, "दान İstanbul SHA256sum")
        for _ in range(2):
            assert ids(store, "दिन") == []
            assert ids(store, "दान") == [task_id]
            assert ids(store, "İSTANBUL") == [task_id]
            assert ids(store, "sha256") == [task_id]
            store.flush()

    def test_many_unknown_words_read_the_tail_once(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        said(store, "needle")
        looks = []
        from rawko_state.search.turn_text import Documents

        real = Documents.vocabulary
        monkeypatch.setattr(Documents, "vocabulary", lambda *given: (looks.append(1), real(*given))[1])
        assert store.search(" ".join(f"unknown{n}" for n in range(50))).suggestion is None
        assert len(looks) <= 1

    def test_a_folded_file_that_is_edited_in_place(self, store: FileStore) -> None:
        task_id = said(store, "needle here")
        store.flush()
        path = store.journal.layout.path(store.find(task_id))
        with open(path, "r+b") as stream:
            data = stream.read().replace(b"needle", b"poodle")
            stream.seek(0)
            stream.write(data)
        assert ids(store, "needle") == []
        assert ids(store, "here") == [task_id]
        assert ids(store, "poodle") == [task_id]

    def test_a_file_that_cannot_be_read_is_not_taken_for_folded(
        self, store: FileStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from rawko_state.errors import StorageError

        found, lost = said(store, "needle"), said(store, "needle")
        real = flush.open_reader

        def refuses(path: Path) -> object:
            if lost in path.name:
                raise StorageError("no", str(path))
            return real(path)

        with monkeypatch.context() as patched:
            patched.setattr(flush, "open_reader", refuses)
            store.flush()
        assert store.unflushed() > 0
        assert sorted(ids(store, "needle")) == sorted([found, lost])
        store.flush()
        assert store.unflushed() == 0
        assert sorted(ids(store, "needle")) == sorted([found, lost])

    def test_an_unreadable_file_is_told_of(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        from rawko_state.errors import StorageError

        said(store, "needle")

        def refuses(path: str) -> object:
            raise StorageError("no", path)

        monkeypatch.setattr(store.journal, "reader_at", refuses)
        with pytest.warns(RuntimeWarning, match="could not be read, and were not searched"):
            assert ids(store, "needle") == []

    def test_two_homes_leave_each_other_alone(
        self, store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = said(store, "needle")
        store.flush()
        before = sorted(path.name for path in (store.root / ".rawko/state/search").iterdir())
        with monkeypatch.context() as patched:
            patched.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
            assert ids(store, "needle") == [found]
            assert store.flush() == 0
        assert store.unflushed() == 0
        assert ids(store, "needle") == [found]
        assert before == sorted(path.name for path in (store.root / ".rawko/state/search").iterdir())

    def test_a_search_folder_in_the_way_of_a_reindex(self, store: FileStore) -> None:
        found = said(store, "needle")
        (store.root / ".rawko/state/search").mkdir()
        (store.root / ".rawko/state/search/fold.lock").mkdir()
        with pytest.warns(RuntimeWarning, match="searches read the task files"):
            assert store.reindex() == []
        assert ids(store, "needle") == [found]

    @pytest.mark.parametrize(
        "query", ["label:=x", 'label:"a b=c"', "label:ä=b", "agent:\udcff", "file:a\x00b", "id:\x1b"]
    )
    def test_a_field_with_a_value_that_nothing_can_have(self, store: FileStore, query: str) -> None:
        said(store, "needle")
        answer = store.search(query)
        assert answer.hits == ()
        assert answer.hint is not None

    def test_the_oldest_of_many(self, store: FileStore) -> None:
        from datetime import datetime, timezone

        made = [said(store, "needle", created=datetime(2020 + n, 1, 1, tzinfo=timezone.utc)) for n in range(5)]
        answer = store.search("needle", TaskFilter(sort=TIME, reverse=True, limit=2))
        assert [hit.task.id for hit in answer.hits] == made[:2]

    def test_a_word_late_in_a_long_turn(self, store: FileStore) -> None:
        said(store, "lesson " + "filler " * 30_000 + "the sso callback")
        (hit,) = store.search("sso").hits
        assert [hit.excerpt[first:last] for first, last in hit.highlights] == ["sso"]

    def test_a_phrase_in_a_very_large_turn(self, store: FileStore) -> None:
        import tracemalloc

        said(store, "lazy dogs and a quick fox " * 200_000 + " lazy fox")
        store.flush()
        tracemalloc.start()
        assert len(ids(store, '"lazy fox"')) == 1
        assert ids(store, '"fox and"') == []
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 150e6


class TestBroken:
    """Whatever is in the folder: the answer is right, one line says so, and it is made anew."""

    def _told(self, root: Path) -> tuple[FileStore, list[str]]:
        lines: list[str] = []
        return FileStore(root, warn=lines.append), lines

    @pytest.mark.parametrize("what", ["gone", "empty", "cut", "garbage", "no toc", "zeroes", "a file", "newer"])
    def test_a_broken_folder(self, store: FileStore, what: str) -> None:
        found = [said(store, f"needle n{number}") for number in range(5)]
        store.flush()
        store.close()
        folder = store.root / ".rawko/state/search"
        files = sorted(path for path in folder.iterdir() if path.is_file())
        if what in ("gone", "a file"):
            shutil.rmtree(folder)
        if what == "a file":
            folder.write_text("not a folder")
        for path in files if what not in ("gone", "a file") else ():
            size = path.stat().st_size
            if what == "empty":
                path.write_bytes(b"")
            elif what == "cut":
                path.write_bytes(path.read_bytes()[: size // 2])
            elif what == "garbage":
                path.write_bytes(random.Random(1).randbytes(size))
            elif what == "zeroes":
                path.write_bytes(bytes(size))
            elif what == "no toc" and path.name.endswith(".toc"):
                path.unlink()
            elif what == "newer" and path.name.endswith(".toc"):
                path.write_bytes(path.read_bytes().replace(b"rawko_state", b"rawko_later"))
        broken, lines = self._told(store.root)
        assert sorted(ids(broken, "needle")) == sorted(found)
        if what != "a file":
            assert len(lines) == 1
            assert "answering from the task files" in lines[0]
            assert "\n" not in lines[0]
            broken.flush()
            assert broken.unflushed() == 0
        assert sorted(ids(broken, "needle")) == sorted(found)
        assert len(lines) == (0 if what == "a file" else 1)
        broken.close()

    def test_one_flipped_byte_anywhere(self, store: FileStore) -> None:
        found = sorted(said(store, f"needle n{number} getUserById") for number in range(5))
        store.flush()
        store.close()
        folder = store.root / ".rawko/state/search"
        kept = {path: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.stat().st_size}
        chance = random.Random(7)
        for _ in range(60):
            path = chance.choice(sorted(kept))
            at = chance.randrange(len(kept[path]))
            data = bytearray(kept[path])
            data[at] ^= 1 << chance.randrange(8)
            path.write_bytes(data)
            broken, lines = self._told(store.root)
            answer = sorted(ids(broken, "needle"))
            # A flipped bit inside a packed list can hide a document; it can neither crash nor invent one.
            assert set(answer) <= set(found)
            broken.close()
            if lines:  # it has been given up, and a new one must be made
                broken, _ = self._told(store.root)
                broken.flush()
                assert sorted(ids(broken, "needle")) == found
                broken.close()
                kept = {path: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.stat().st_size}
            else:
                path.write_bytes(kept[path])

    def test_a_folder_that_others_can_write_to_is_not_read(self, store: FileStore) -> None:
        found = said(store, "needle")
        store.flush()
        os.chmod(store.root / ".rawko/state/search", 0o777)
        assert ids(store, "needle") == [found]
        assert store.flush() == 0

    def test_a_pickle_that_came_with_the_repository_is_not_loaded(self, store: FileStore, tmp_path: Path) -> None:
        found = said(store, "needle")
        store.flush()
        store.close()
        evidence = tmp_path / "loaded"

        class Bomb:
            def __reduce__(self) -> tuple[object, ...]:
                return (os.mkdir, (str(evidence),))

        folder = store.root / ".rawko/state/search"
        bomb = pickle.dumps(Bomb())
        for path in list(folder.iterdir()):
            if path.is_file():
                path.write_bytes(path.read_bytes() + bomb)
        # As if all of .rawko had been checked out by somebody else: another user's secret.
        (Path(os.environ["XDG_STATE_HOME"]) / "rawko" / "secret").unlink()
        for name in ("MAIN", "x"):
            (folder / f"_{name}_1.toc").write_bytes(bomb)
        broken, _ = self._told(store.root)
        assert ids(broken, "needle") == [found]
        broken.flush()
        assert ids(broken, "needle") == [found]
        broken.close()
        assert not evidence.exists()

    def test_no_secret_no_index(self, store: FileStore) -> None:
        found = said(store, "needle")
        home = Path(os.environ["XDG_STATE_HOME"]) / "rawko"
        home.mkdir(exist_ok=True)
        (home / "secret").write_bytes(b"x" * 32)
        os.chmod(home / "secret", 0o644)
        assert store.flush() == 0
        assert ids(store, "needle") == [found]

    def test_without_an_index_db(self, store: FileStore) -> None:
        found = said(store, "needle")
        store.flush()
        store.close()
        for path in (store.root / ".rawko/state").glob("index.db*"):
            path.unlink()
        again = FileStore(store.root)
        assert ids(again, "needle") == [found]
        again.flush()
        assert ids(again, "needle") == [found]
        again.close()

    def test_reindex_rebuilds_it_and_leaves_nothing_behind(self, store: FileStore) -> None:
        found = said(store, "needle")
        store.flush()
        folder = store.root / ".rawko/state/search"
        before = {path.name for path in folder.iterdir()}
        store.reindex()
        assert store.unflushed() == 0
        assert ids(store, "needle") == [found]
        said(store, "another")
        store.flush()
        names = {path.name.split("_")[1 if path.name.startswith("_") else 0] for path in folder.iterdir()}
        assert len(names) == 1, names
        assert before.isdisjoint(path.name for path in folder.iterdir())

    def test_a_full_disk_while_folding(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        found = said(store, "needle")
        store.flush()
        more = said(store, "needle")

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(shelf.FileStorage, "create_file", full)
            with pytest.raises(SearchTrouble, match="No space left"):
                store.flush()
        assert sorted(ids(store, "needle")) == sorted([found, more])
        store.flush()
        assert store.unflushed() == 0


DRIVER = str(Path(__file__).parent / "search_driver.py")


class TestKilled:
    @needs_strace
    @pytest.mark.parametrize(
        "call", ["openat", "write", "rename", "unlink", "unlinkat", "pwrite64", "mkdir", "flock", "close"]
    )
    def test_a_fold_killed_anywhere(self, tmp_path: Path, every: bool, call: str) -> None:
        project = tmp_path / "p"
        project.mkdir()
        store = FileStore(project, warn=lambda message: None)
        found = [said(store, f"needle n{number}") for number in range(3)]
        log = tmp_path / "trace"
        count = subprocess.run(
            ["strace", "-f", "-c", "-o", str(log), "-e", f"trace={call}", sys.executable, DRIVER, "fold", str(project)],
            capture_output=True,
            text=True,
        )
        assert count.stdout == "folded\n", count.stderr
        total = sum(int(line.split()[3]) for line in log.read_text().splitlines() if line.split()[-1:] == [call])
        found.append(said(store, "needle and more"))
        # The fold is what the process does last; most of what comes before are imports.
        points = range(max(1, total - 120), total + 1)
        points = points if every else sorted(random.Random(call).sample(list(points), min(4, len(points))))
        killed = 0
        for point in points:
            found.append(said(store, f"needle p{point}"))
            subprocess.run(
                [
                    "strace", "-f", "-o", str(log), "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={point}",
                    sys.executable, DRIVER, "fold", str(project),
                ],
                capture_output=True,
            )  # fmt: skip
            killed += "killed by SIGKILL" in log.read_text()
            assert sorted(ids(store, "needle")) == sorted(found)
        assert killed or not total
        store.flush(wait=True)
        assert store.unflushed() == 0
        assert sorted(ids(store, "needle")) == sorted(found)
        assert not list((project / ".rawko/state/search").glob("*.tmp"))
        store.close()

    def test_two_folds_writers_and_searches_at_once(self, tmp_path: Path) -> None:
        project = tmp_path / "p"
        project.mkdir()
        FileStore(project).start("x").close()
        running = [
            subprocess.Popen(
                [sys.executable, DRIVER, what, str(project), str(seed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            for what, seed in (("write", 1), ("write", 2), ("folds", 1), ("folds", 2), ("searches", 1))
        ]
        for process in running:
            _, err = process.communicate(timeout=patience(200))
            assert process.returncode == 0, err.decode()
            assert err == b"", err.decode()
        store = FileStore(project)
        for _ in range(2):
            assert len(store.search("needle", turns=True).hits) == 60
            store.flush(wait=True)
        store.close()


class TestCommand:
    def _run(self, root: Path, *words: str, fold: str = "off") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", "from rawko_state.cli import main; main()", "-C", str(root), *words],
            capture_output=True,
            text=True,
            env={**os.environ, "RAWKO_SEARCH_FOLD": fold, "COLUMNS": "100"},
            timeout=patience(120),
        )
        assert "Traceback" not in done.stderr
        return done

    def test_what_it_prints(self, store: FileStore) -> None:
        task_id = said(store, "first", "the SSO callback \x1b[31m fails", title="Login")
        done = self._run(store.root, "history", "--search", "sso")
        lines = done.stdout.splitlines()
        assert lines[0].startswith(task_id)
        assert lines[0].endswith("Login")
        assert lines[1].strip().startswith("turn 2 developer  the SSO callback")
        assert "\x1b" not in done.stdout
        assert all(len(line) <= 100 for line in lines)

    def test_json(self, store: FileStore) -> None:
        task_id = said(store, "first sso", "second sso")
        whole = json.loads(self._run(store.root, "history", "--search", "sso", "--json").stdout)
        assert [task["id"] for task in whole["tasks"]] == [task_id]
        hit = whole["tasks"][0]["hit"]
        assert set(hit) == {"kind", "turn", "agent", "offset", "length", "score", "words", "excerpt", "highlights"}
        (start, end) = hit["highlights"][0]
        assert hit["excerpt"][start:end] == "sso"
        lines = self._run(store.root, "history", "--search", "sso", "--jsonl", "--turns").stdout.splitlines()
        assert sorted(json.loads(line)["hit"]["turn"] for line in lines) == [1, 2]
        assert self._run(store.root, "history", "--search", "sso", "--ids", "--turns").stdout == f"{task_id}\n"

    def test_nothing_found(self, store: FileStore) -> None:
        said(store, "authentication")
        done = self._run(store.root, "history", "--search", "authentcation")
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr == "no task matches; did you mean: authentication\n"
        done = self._run(store.root, "history", "--search", "(authentication")
        assert done.stderr == "rawko: a ( without its ): searched for the words as they stand\n"
        assert len(done.stdout.splitlines()) == 2

    def test_used_wrongly(self, store: FileStore) -> None:
        for words in (["--turns"], ["--sort", "time"], ["--sort", "relevance"]):
            done = self._run(store.root, "history", *words)
            assert done.returncode == 2
            assert "go with --search" in done.stderr

    def test_a_long_tail_is_folded_on_the_way(self, store: FileStore) -> None:
        said(store, "needle " + "filler " * 250_000)
        before = store.unflushed()
        assert flush.WORTH_IT < before < flush.CHEAP
        assert "needle" in self._run(store.root, "history", "--search", "needle", fold="auto").stdout
        assert store.unflushed() == 0

    def test_a_very_long_one_in_the_background(self, store: FileStore) -> None:
        said(store, *("needle " + "filler " * 300_000 for _ in range(3)))
        assert store.unflushed() > flush.CHEAP
        done = self._run(store.root, "history", "--search", "needle", fold="auto")
        assert "in the background" in done.stderr
        wait_for(lambda: not store.unflushed())
        assert store.unflushed() == 0

    def test_finishing_a_task_folds_when_that_is_cheap(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAWKO_SEARCH_FOLD", "auto")
        said(store, "needle " + "filler " * 250_000)
        assert store.unflushed() == 0
        said(store, "needle")
        assert store.unflushed() > 0

    def test_the_doctor_looks_at_it(self, store: FileStore) -> None:
        said(store, "needle")
        assert "unflushed" in self._run(store.root, "doctor").stdout
        store.flush()
        assert self._run(store.root, "doctor").returncode == 0
        for path in (store.root / ".rawko/state/search").glob("*.toc"):
            path.write_bytes(b"rubbish")
        done = self._run(store.root, "doctor")
        assert done.returncode == 1
        assert "the search index" in done.stdout

    def test_reindex_search(self, store: FileStore) -> None:
        said(store, "needle")
        done = self._run(store.root, "reindex", "--search")
        assert done.stdout.endswith("bytes taken into the search index\n")
        assert store.unflushed() == 0
        assert self._run(store.root, "reindex", "--search", "--quiet").stdout == ""


def test_threads_may_search_at_once(store: FileStore) -> None:
    for number in range(5):
        said(store, f"needle n{number}")
    store.flush()
    found: list[int] = []

    def ask() -> None:
        own = FileStore(store.root)
        found.append(len(own.search("needle").hits))
        own.close()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [5] * 4


def test_only_what_is_shown_is_settled(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty of many are wanted, so not all files are opened."""
    for number in range(40):
        said(store, f"getUser n{number}")
    store.flush()
    settled = []
    real = engine._Settler.documents

    def counted(self: engine._Settler, task: engine._Task) -> list[engine.Found]:
        settled.append(task.id)
        return real(self, task)

    monkeypatch.setattr(engine._Settler, "documents", counted)
    assert len(ids(store, "getUser", limit=3)) == 3
    assert len(settled) == 3


def test_what_is_folded_is_no_part_of_what_is_derived(store: FileStore) -> None:
    said(store, "needle")
    before = store.sync.fresh().dump()
    store.flush()
    assert flushed.pending(store.sync.index()) == []
    assert store.sync.index().dump() == before
