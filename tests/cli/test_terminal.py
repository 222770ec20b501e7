"""What fits a terminal: tables by display width, the front door on a small screen, messages broken at spaces."""

from __future__ import annotations

import shutil
import subprocess
from decimal import Decimal
from pathlib import Path

import click
import pytest
from wcwidth import wcswidth

from rawko_state.backends.files.store import FileStore
from rawko_state.cli import front, history_cmd, history_search, printing, stats_cmd
from rawko_state.model.entries import Money, Question, Turn
from rawko_state.store import TaskFilter
from tests.support.processes import rawko

REQUESTS = (
    "Fix the login: users with clock skew can't sign in with SSO, and the retry button does nothing at all",
    "注文の丸めを直す 🧮 小数を Decimal にして、テストを追加してください。それからドキュメントも更新してください",
    "❤️ hearts 1️⃣ keycaps 👍🏽 tones 👩‍👩‍👧‍👦 families 🇩🇪 flags ☕️ and e\u0301\u0301\u0301 marks, as often as it takes",
    "x" * 200,
)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path)
    for request in REQUESTS:
        store.start(request).close()
    return store


@pytest.fixture
def on_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (front, history_cmd, history_search, printing, stats_cmd):
        monkeypatch.setattr(module, "is_terminal", lambda: True)


def sized(monkeypatch: pytest.MonkeyPatch, columns: int, lines: int = 24) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(lines))


@pytest.mark.usefixtures("on_screen")
class TestNothingIsWiderThanTheTerminal:
    @pytest.mark.parametrize("columns", [16, 20, 29, 30, 59, 60, 80, 99, 100, 120])
    def test_a_list(self, store: FileStore, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
        sized(monkeypatch, columns)
        lines = [click.unstyle(line) for line in history_cmd.listed(store.history(TaskFilter()))]
        assert len(lines) == 1 + len(REQUESTS)
        assert [line for line in lines if wcswidth(line) > columns] == []

    @pytest.mark.parametrize("columns", [20, 40, 80, 120])
    def test_the_front_door(self, store: FileStore, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
        sized(monkeypatch, columns, 60)
        lines = [click.unstyle(line) for line in front._Overview(store, store.history(TaskFilter(limit=5))).fitting()]
        tasks = [line for line in lines if not line.startswith("  rawko ")]  # a command is never broken
        assert [line for line in tasks if wcswidth(line) > max(columns, 46)] == []

    @pytest.mark.parametrize("columns", [20, 40, 80])
    def test_a_search(self, store: FileStore, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
        sized(monkeypatch, columns)
        for hit in store.search("login OR xxx* OR hearts").hits:
            for line in (history_search._task_line(hit, columns), history_search.hit_line(hit, columns)):
                assert wcswidth(click.unstyle(line)) <= columns


@pytest.mark.usefixtures("on_screen")
@pytest.mark.parametrize("rows", [13, 16, 24, 40])
def test_the_front_door_fits_the_screen_and_names_each_group(
    tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FileStore(tmp_path) as store:
        for number in range(9):
            with store.start(f"done {number}") as task:
                task.finish("success")
            store.start(f"left {number}").close()
        sized(monkeypatch, 80, rows)
        lines = front._Overview(store, store.history(TaskFilter(limit=5))).fitting()
    shown = [click.unstyle(line) for line in lines]
    assert len(lines) < rows
    assert {"Interrupted", "Recent"} <= set(shown)
    assert "  rawko resume" in "\n".join(shown)


@pytest.mark.usefixtures("on_screen")
def test_requests_begin_in_one_column_whatever_the_ids(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imported tasks have longer ids."""
    sized(monkeypatch, 80, 40)
    store.start("Fix it", id="abcdefgh").close()
    lines = [click.unstyle(line) for line in front._Overview(store, store.history(TaskFilter(limit=5))).fitting()]
    (row,) = (line for line in lines if "Fix it" in line)
    (other,) = (line for line in lines if "xxx" in line)
    assert row.index("Fix it") == other.index("xxx") == 12


@pytest.mark.usefixtures("on_screen")
def test_a_task_is_not_replaced_by_a_line_that_counts_it(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        store.start(f"left {number}").close()
    sized(monkeypatch, 80, 40)
    shown = "\n".join(front._Overview(store, store.history(TaskFilter(limit=5))).fitting())
    assert "more: rawko history" not in shown
    assert shown.count("left") == 2


def test_a_message_is_broken_at_spaces_and_its_command_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    sized(monkeypatch, 30)
    monkeypatch.setattr(printing.sys.stderr, "isatty", lambda: True, raising=False)
    command = "  Start one here: rawko init · Use another: rawko -C DIR …"
    first, *more, last = printing.message_text(f"Not in a project: ~/Downloads has none.\n{command}").split("\n")
    assert (first, more, last) == ("rawko: Not in a project:", ["  ~/Downloads has none."], command)


class TestStats:
    def test_a_day_without_tasks_has_its_place(self) -> None:
        """Otherwise four days of a month look like four days in a row."""
        days = {"2026-10-16": 1, "2026-11-14": 1, "2026-11-18": 1, "2026-11-19": 7, "unknown": 2}
        _, line, busiest = stats_cmd._days(days, 30)
        first, bars, last = line.split(" ")
        assert (first, last, len(bars)) == ("2026-10-21", "2026-11-19", 30)
        assert [place for place, bar in enumerate(bars) if bar != "·"] == [24, 28, 29]
        assert busiest == "Busiest day: 2026-11-19, 7 tasks."

    @pytest.mark.usefixtures("on_screen")
    @pytest.mark.parametrize("columns", [40, 80])
    def test_no_line_is_broken_in_a_word(self, store: FileStore, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
        sized(monkeypatch, columns)
        for tokens, cost in (
            ({"in": 123456, "out": 1, "cache_read": 99}, Money(Decimal("0.42"))),
            ({"in": 1, "out": 1}, None),
        ):
            with store.start("x") as task:
                task.add_turn(Turn(agent="dev", model="claude-opus-4", tokens=tokens, cost=cost))
        lines = stats_cmd._lines(store.stats(TaskFilter()), "shop", 30, 10, {})
        assert all(wcswidth(click.unstyle(line)) <= columns for line in lines[:4])
        assert "without a known price" not in "\n".join(lines)


class TestNothingFound:
    """Says what was looked for, where, and what to do."""

    @pytest.mark.parametrize(
        ("words", "advice"),
        [
            (("search", "nosuch"), "Look in every project: rawko search nosuch --all-projects"),
            (("search", "nosuch", "--agent", "x y"), "Try: rawko search nosuch"),
            (("search", "stauts:failed"), "Did you mean: rawko search status:failed"),
            (("history", "--status", "failed"), "Try: rawko history"),
            (("history", "--agent", "a b", "--file", "x"), "Try: rawko history --agent 'a b'"),
            (("stats", "--agent", "nobody"), "Try: rawko stats"),
        ],
    )
    def test_in_a_project_with_tasks(self, store: FileStore, words: tuple[str, ...], advice: str) -> None:
        first, second = rawko(store.root, *words).stderr.splitlines()
        assert first.startswith("No task")
        assert store.root.name in first
        assert second == f"  {advice}"

    @pytest.mark.parametrize("words", [("history",), ("history", "--status", "failed"), ("stats",)])
    def test_in_a_new_project(self, tmp_path: Path, words: tuple[str, ...]) -> None:
        said = rawko(tmp_path, *words).stderr
        assert said == f"No tasks in {tmp_path.name} yet.\n  What to do first: rawko\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("hook", "install"), "Missing argument: claude-code or codex."),
        (("token", "create"), "Missing option: --role (read, write or admin)."),
        (("history", "--sort"), "--sort needs a value."),
        (("history", "--reverse=1"), "--reverse takes no value."),
        (("show", "a", "1", "x"), "Unexpected argument: x."),
        (("cancel",), "Missing argument: ID."),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line_and_where_the_help_is(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    command = " ".join(words[:2]) if words[0] in ("hook", "token") else words[0]
    assert rawko(tmp_path, *words, code=2).stderr == f"rawko: {said}\n  Help: rawko {command} --help\n"


class TestCompletion:
    """What the shell offers is what the command can use."""

    def offered(self, root: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> set[str]:
        from click.shell_completion import ShellComplete

        from rawko_state.cli import cli

        monkeypatch.chdir(root)
        found = ShellComplete(cli, {}, "rawko", "_RAWKO_COMPLETE").get_completions(list(words[:-1]), words[-1])
        return {each.value for each in found}

    def test_a_zsh_without_settings_of_its_own_is_not_in_the_way(self, tmp_path: Path) -> None:
        script = rawko(tmp_path, "completion", "zsh").stdout
        assert script.startswith("#compdef rawko\n")
        assert script.index("|| { autoload -Uz compinit && compinit }") < script.index("compdef _rawko")
        if zsh := shutil.which("zsh"):
            (tmp_path / "rc").write_text(script + "\nwhence -w _rawko_completion; print -r -- $_comps[rawko]\n")
            done = subprocess.run([zsh, "-f", "rc"], cwd=tmp_path, capture_output=True, text=True, check=False)
            assert (done.stdout, done.stderr) == ("_rawko_completion: function\n_rawko_completion\n", "")

    def test_ids_fit_the_command(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with FileStore(tmp_path) as store:
            with store.start("done") as done:
                done.finish("success")
            with store.start("gone") as gone:
                gone.finish("success")
            store.delete(gone.id)
            asking = store.start("asks")
            asking.ask("dev", Question("Which?", ("a", "b")))
            asking.close()
        assert self.offered(tmp_path, monkeypatch, "answer", "") == {asking.id}
        assert self.offered(tmp_path, monkeypatch, "cancel", "") == {asking.id}
        assert self.offered(tmp_path, monkeypatch, "show", "") == {asking.id, done.id}
        assert self.offered(tmp_path, monkeypatch, "cleanup", "--restore", "") == {gone.id}
        assert self.offered(tmp_path, monkeypatch, "history", "--agent", "d") == {"dev"}
        assert "claude" in self.offered(tmp_path, monkeypatch, "resume", "--with", "c")

    def test_an_old_task_is_offered_once_its_id_begins(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with FileStore(tmp_path) as store:
            for number in range(4):
                store.start("x", id=f"zzzzz{number}").close()
        monkeypatch.setattr("rawko_state.cli.completing._OFFERED", 1)
        assert len(self.offered(tmp_path, monkeypatch, "show", "")) == 1
        assert self.offered(tmp_path, monkeypatch, "show", "zzzzz0") == {"zzzzz0"}
