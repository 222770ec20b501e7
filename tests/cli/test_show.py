"""rawko show, as a person reads it: what stands out, what is folded, what is left out, and that nothing recorded is obeyed."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.cli.printing import width_of
from rawko_state.cli.reader import Reader, View
from rawko_state.cli.terminal_markdown import shown, wrap
from rawko_state.format.diffs import compared
from rawko_state.model.entries import Money, Question, ToolCall, Turn
from tests.support.processes import rawko


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


_PLAIN = View()


def told(store: FileStore, view: View = _PLAIN, **given: object) -> str:
    task = Turn(number=1, agent="dev", **{"status": "complete", **given})  # type: ignore[arg-type]
    return "\n".join(click.unstyle(line) for line in Reader(store, "abc123", view).turn(task))


def test_a_whole_task(store: FileStore) -> None:
    with store.start("Fix the login bug", by="ann", model="claude-opus-4-1", agent="developer") as task:
        task.decide(selected="planner", reason="needs a plan")
        task.add_turn(Turn(number=1, agent="planner", status="complete", content="**Plan**:\n\n1. allow 60 s"))
        edit = ToolCall("edit", "auth/sso.rs", "done", more={"diff": 1})
        task.add_turn(
            Turn(
                number=2, agent="developer", status="complete", duration_ms=33_000, content="Allowed a minute of skew.",
                tools=(edit, ToolCall("shell.exec", "cargo test", "exit 0", output="a\nb\nc\nd\n40 passed")),
                diffs=(compared("auth/sso.rs", "now\n", "now + leeway\nx\n"),),
                tokens={"in": 12_000, "out": 900, "cache_read": 8_000},
            )
        )  # fmt: skip
        task.finish("success", "Allowed a minute of skew.")
    out = rawko(store.root, "show").stdout  # without an id: the last active one
    lines = out.splitlines()
    assert lines[0] == f"{task.id}  completed  Fix the login bug"
    assert "3 turns · developer · claude-opus-4-1" in lines[1]
    assert lines[2].startswith("20k tokens in (8.0k cached), 900 out · ~$0.")
    assert lines[2].endswith("1 file changed")
    assert "┃ Fix the login bug" in lines
    assert "1 arbiter → planner: needs a plan" in lines
    assert "  Plan:" in lines
    assert "  Edit auth/sso.rs  +2 −1" in lines
    assert "      +now + leeway" in lines
    assert "  $ cargo test  → exit 0" in lines
    assert lines[lines.index("  $ cargo test  → exit 0") + 1] == "      … 2 lines"
    assert "      40 passed" in lines
    assert "      b" not in lines
    assert out.count("Allowed a minute of skew.") == 1  # the result does not repeat the answer
    assert all(width_of(line) <= 100 for line in lines)
    full = rawko(store.root, "show", task.id, "--full").stdout
    assert "\n      b\n" in full
    brief = rawko(store.root, "show", task.id, "--brief").stdout.splitlines()
    assert brief[1:] == [
        "",
        "┃ Fix the login bug",
        "",
        "  Allowed a minute of skew.",
        "",
        "✓ success",
        "  auth/sso.rs +2 −1",
    ]
    diff = rawko(store.root, "show", task.id, "--diff").stdout.splitlines()
    assert diff == [
        "# turn 3 · developer · Edit", "--- a/auth/sso.rs", "+++ b/auth/sso.rs", "@@ -1 +1,2 @@", "-now", "+now + leeway", "+x",
    ]  # fmt: skip
    assert rawko(store.root, "show", task.id, "3", "--diff").stdout.splitlines() == diff
    assert (
        rawko(store.root, "show", task.id, "9", code=2).stderr
        == f"rawko: Task {task.id} has 3 turns; there is no turn 9.\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--brief", "--diff"), "Use --brief or --diff, not both"),
        (("--raw", "--json", "--full"), "Use --full or --raw or --json, not all"),
        (("3", "--brief"), "--brief shows a whole task"),
        (("--follow", "--json"), "--follow can't be combined"),
    ],
)
def test_options_that_contradict_each_other(store: FileStore, words: tuple[str, ...], message: str) -> None:
    with store.start("x") as task:
        pass
    assert message in rawko(store.root, "show", task.id, *words, code=2).stderr


def test_output_is_folded_to_its_end_and_that_of_a_failed_call_to_more(store: FileStore) -> None:
    output = "\n".join(f"line {n}" for n in range(40))
    good = told(store, tools=(ToolCall("Bash", "make", "done", output=output),))
    assert "… 37 lines\n      line 37\n      line 38\n      line 39" in good
    bad = told(store, tools=(ToolCall("Bash", "make", "error", output=output),))
    assert "… 30 lines" in bad
    assert "line 30" in bad
    read = told(store, tools=(ToolCall("Read", "a.py", "9 bytes", output=output),))
    assert read.endswith("Read a.py · 40 lines")


def test_a_long_diff_names_the_command_that_shows_all_of_it(store: FileStore) -> None:
    diffs = (compared("a.py", None, "x\n" * 50),)
    assert "… 31 more lines: rawko show abc123 1 --diff" in told(store, diffs=diffs)


def test_thinking_is_folded_and_a_question_shows_its_choices(store: FileStore) -> None:
    out = told(store, thinking="\n".join("abcdefgh"), question=Question("Which?", ("sqlite", "postgres"), "sqlite"))
    assert "… 5 lines of thinking" in out
    assert "? Which?\n      1  sqlite (default)\n      2  postgres" in out


def test_colours_of_programs_are_written_again_and_nothing_else_is_obeyed(store: FileStore) -> None:
    output = "\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b[2J\x1b[5;1Hx\x9b1m\u202e"
    turn = Turn(number=1, agent="dev\x1b[2J", tools=(ToolCall("Bash", "x\x1b[2Jy", "done", output=output),))
    out = "\n".join(Reader(store, "abc123", View()).turn(turn))
    assert "\x1b[31mred\x1b[0m" in out
    assert "\x1b[2J" not in out
    assert "\x1b]" not in out
    assert not set("\x07\x9b\u202e") & set(out)


def test_a_cost_that_is_stated_is_not_an_estimate(store: FileStore) -> None:
    from decimal import Decimal

    with store.start("x") as task:
        task.add_turn(
            Turn(number=1, agent="a", status="complete", tokens={"in": 5, "out": 5}, cost=Money(Decimal("0.5")))
        )
    assert "5 tokens in, 5 out · $0.50" in rawko(store.root, "show", task.id).stdout


def test_times_are_of_one_zone(store: FileStore) -> None:
    with store.start("x") as task:
        pass
    out = rawko(store.root, "show", task.id, "--utc", TZ="Asia/Tokyo").stdout
    assert " UTC · " in out.splitlines()[1]
    exact = rawko(store.root, "show", task.id, "--iso").stdout.splitlines()[1]
    assert exact.startswith("20")
    assert "Z · " in exact


def test_markdown_in_the_terminal() -> None:
    text = "# Head\n- **bold** item that is long enough to wrap\n\n```py\n# not a head\n```\n> quoted\n| a | b |\n2 * 3 * 4 **"
    assert [click.unstyle(line) for line in shown(text, 24)] == [
        "Head", "- bold item that is", "  long enough to wrap", "", "    # not a head", "│ quoted", "| a | b |", "2 * 3 * 4 **",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["注文の丸めを直す小数をにしてテストを追加", "a" * 50, "🧮🧮🧮🧮🧮🧮🧮", "e\u0301" * 30, "ab 注文 " * 9]
)
def test_wrapped_lines_fit_by_display_width(text: str) -> None:
    lines = wrap(text, 13, 2)
    assert all(width_of(line) <= 13 for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_text_without_spaces_fills_the_line() -> None:
    """A person who writes Chinese or Japanese puts no spaces between words."""
    first, *_ = wrap("小数を Decimal にして、テストを追加してください", 30)
    assert width_of(first) > 28


def test_a_table_of_markdown_has_its_columns_below_one_another() -> None:
    text = "| 列 | n |\n|---|--:|\n| 価格 | **1** |\n| a \\| b | 2 |\n\nend"
    lines = [click.unstyle(line) for line in shown(text, 40)]
    assert lines == ["列     n", "─────  ─", "価格   1", "a | b  2", "", "end"]
    assert [click.unstyle(line) for line in shown(text, 7)] == text.split("\n")  # too wide: as it is
    assert list(shown("| a |\n| b | c |", 40)) == ["| a |", "| b | c |"]


def test_a_question_is_broken_at_spaces(store: FileStore) -> None:
    task = store.start("x")
    task.ask(
        "dev", Question("Which database should the session store use? It has to survive restarts of both machines.")
    )
    task.close()
    lines = [click.unstyle(line) for line in Reader(store, task.id, View(width=60)).task(store.summary(task.id))]
    assert "  ? Which database should the session store use? It has to" in lines
    assert "    survive restarts of both machines." in lines


def test_a_task_in_the_trash_is_said_to_be_there_even_if_another_looks_like_it(store: FileStore) -> None:
    for task_id in ("ab3f2c", "ab3f2d"):
        store.start("Fix the login bug", id=task_id).close()
    rawko(store.root, "task", "delete", "ab3f2d")
    missed = rawko(store.root, "show", "ab3f2d", code=1).stderr
    assert missed.startswith("rawko: Task ab3f2d is in the trash.")
    assert "Closest" not in missed


def test_perhaps_another_task_was_meant(store: FileStore) -> None:
    """The closest ids with their titles; of several that fit, when each was written to."""
    for task_id, request in (("ab3f2c", "Fix the login bug"), ("ab3f9k", "Write the notes")):
        store.start(request, id=task_id).close()
    missed = rawko(store.root, "show", "ab3f2d", code=1).stderr
    assert missed.startswith("rawko: No task starts with 'ab3f2d'. Closest: ab3f2c (Fix the login bug)")
    assert rawko(store.root, "cancel", "ab3f2d", code=1).stderr == missed
    first, *rows = rawko(store.root, "show", "ab3", code=1).stderr.splitlines()
    assert first == "rawko: 'ab3' matches 2 tasks:"
    assert [(row.split()[0], row.split("  ")[-1]) for row in rows] == [
        ("ab3f2c", "Fix the login bug"),
        ("ab3f9k", "Write the notes"),
    ]


class TestNarrow:
    """On a terminal, nothing runs over the edge, and what continues keeps its indent."""

    VIEW = View(width=60, edge=60)

    def test_a_long_error_is_cut_on_the_line_of_its_call_and_follows_below(self, store: FileStore) -> None:
        error = "Found 2 matches of the string to replace, but replace_all is false. To replace all, set it to true."
        call = ToolCall("Edit", "a/rather/long/path/to/calc.py", f"error: {error}", output=f"{error}\nString: return a")
        lines = told(store, self.VIEW, tools=(call,)).split("\n")
        assert [line for line in lines if "Edit a/rather" in line and line.endswith("…")]
        assert all(width_of(line) <= 60 for line in lines)
        below = [line.strip() for line in lines if line.startswith("      ")]
        assert " ".join(below) == f"{error} String: return a"

    @pytest.mark.parametrize("word", ["word ", "x", "注文の丸めを直す"])
    def test_long_lines_of_output_and_diffs_are_broken(self, store: FileStore, word: str) -> None:
        long = (word * 50).strip()
        diffs = (compared("a.py", "", f"{long}\n"),)
        lines = told(
            store, self.VIEW, tools=(ToolCall("shell.exec", "make", "exit 0", output=long),), diffs=diffs
        ).split("\n")
        assert all(width_of(line) <= 60 for line in lines)
        shown_text = "".join(line[6:] for line in lines if line.startswith("      ")).replace(" ", "")
        assert shown_text == f"{long}@@-0,0+1@@+{long}".replace(" ", "")

    def test_in_a_pipe_lines_are_left_as_they_are(self, store: FileStore) -> None:
        long = ("word " * 50).strip()
        assert f"      {long}\n" in told(store, tools=(ToolCall("shell.exec", "make", "exit 0", output=f"{long}\nok"),))


def test_a_fold_saves_more_than_the_line_it_takes(store: FileStore) -> None:
    def lines(count: int) -> list[str]:
        output = "\n".join(f"line {number}" for number in range(count))
        return told(store, tools=(ToolCall("shell.exec", "make", "exit 0", output=output),)).split("\n")[3:]

    assert lines(4) == [f"      line {number}" for number in range(4)]
    assert lines(5) == ["      … 2 lines", *(f"      line {number}" for number in (2, 3, 4))]


def test_a_result_that_repeats_the_answer_to_an_earlier_prompt_leaves_it_out(store: FileStore) -> None:
    with store.start("Fix it") as task:
        task.add_turn(Turn(number=1, agent="dev", status="complete", content="Fixed the rounding."))
        task.add_turn(Turn(number=2, agent="user", status="complete", content="And now the tests"))
        task.finish("cancelled", "Fixed the rounding.")
    for words in (("show", task.id), ("export", task.id, "--format", "md"), ("export", task.id, "--format", "html")):
        assert rawko(store.root, *words).stdout.count("Fixed the rounding.") == 1


def test_one_turn_names_files_as_the_whole_task_does(store: FileStore) -> None:
    with store.start("Fix it", cwd=str(store.root)) as task:
        task.add_turn(Turn(number=1, agent="dev", status="complete", tools=(ToolCall("Read", f"{store.root}/a/b.py"),)))
        task.finish("success")
    assert "  Read a/b.py" in rawko(store.root, "show", task.id, "1").stdout
