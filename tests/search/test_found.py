"""Search: what counts as a match, that folding changes nothing but the time, and that nothing can break it."""

from __future__ import annotations

import random
from pathlib import Path

import rawko_state
from rawko_state.backends.files.store import FileStore
from rawko_state.model.entries import Diff, FileTouch, Question, ToolCall, Turn
from rawko_state.store import TIME, TaskFilter
from tests.search.searching import (
    WORDS,
    ids,
    said,
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

    def test_an_excerpt_does_not_begin_in_a_line_that_only_the_format_needs(self, store: FileStore) -> None:
        """Such as the JSON under a tool's line, and the head of a diff."""
        call = ToolCall(
            "Bash", "pytest", "error", output="needle one", more={"id": "toolu_0123456789abcdef", "error": True}
        )
        diff = Diff("a.py", "a.py", "@@ -1,2 +1,2 @@\n-old\n+haystack\n")
        with store.start("x") as task:
            task.add_turn(Turn(agent="dev", tools=(call,)))
            task.add_turn(Turn(agent="dev", content="y", diffs=(diff,)))
        (hit,) = store.search("needle").hits
        assert "toolu" not in hit.excerpt
        assert hit.excerpt.endswith("needle one")
        (hit,) = store.search("added:haystack").hits
        assert hit.excerpt.lstrip("…") == "-old +haystack"

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

    def test_a_misspelt_field_is_suggested(self, store: FileStore) -> None:
        said(store, "one: two")
        assert store.search("stauts:failed login").suggestion == "status:failed login"
        assert store.search("(lable:team=auth)").suggestion == "(label:team=auth)"
        assert store.search("http://x").suggestion is None

    def test_hostile_content(self, store: FileStore) -> None:
        said(store, "\x1b[31mevil\x1b[0m \x00nul \ud800surrogate needle")
        for _ in range(2):
            (hit,) = store.search("needle").hits
            assert hit.turn == 1
            store.flush()


def test_the_data_of_a_program_is_not_searched(tmp_path: Path) -> None:
    (tmp_path / ".rawko").mkdir()
    with rawko_state.open(tmp_path) as store:
        with store.start("Fix the login") as task:
            task.note("seen wombat", kind="adapter-data", data={"state": "hidden okapi"})
            task.note(kind="plan", data={"state": "visible quokka"})
        for word, found in (("wombat", 1), ("okapi", 0), ("quokka", 1)):
            assert len(store.search(word).hits) == found
