"""rawko pick: what is typed finds tasks, also before a word is complete, and a key chooses what to do with one."""

from __future__ import annotations

import os
import pty
import select
import sys
import time
from pathlib import Path

import pytest
from wcwidth import wcwidth

pytest.importorskip("prompt_toolkit")

from rawko_state.backends.files.store import FileStore
from rawko_state.cli import pick_screen
from rawko_state.cli.pick_screen import Finder
from rawko_state.lazy import installing
from rawko_state.model.entries import Turn
from rawko_state.store import TaskFilter
from tests.support.machine import patience
from tests.support.processes import rawko


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path)
    for request, said in (
        ("Fix the login", "The token check ignores clock skew."),
        ("Port the prices", "Now Decimal."),
    ):
        with store.start(request) as task:
            task.add_turn(Turn(number=1, agent="dev", status="complete", content=said))
            task.finish("success")
    return store


def requests(finder: Finder) -> list[str | None]:
    return [task.request for task, _ in finder.found]


class TestFinder:
    def test_it_opens_with_the_newest_tasks(self, store: FileStore) -> None:
        finder = Finder(store)
        finder.ask("")
        assert requests(finder) == ["Port the prices", "Fix the login"]
        assert finder.total == 2

    def test_rows_are_aligned_whatever_the_ids(self, store: FileStore) -> None:
        store.start("Fix the footer", id="abcdefgh").close()
        finder = Finder(store)
        finder.ask("")
        rows = "".join(text for _, text in finder.rows(5, 80)).splitlines()
        starts = {row.index(str(task.request)) for row, (task, _) in zip(rows, finder.found, strict=True)}
        assert starts == {2 + 8 + 2 + 8 + 2 + 11 + 2}

    def test_the_preview_says_nothing_twice(self, store: FileStore) -> None:
        finder = Finder(store)
        for query in ("skew", "login"):
            finder.ask(query)
            shown = "".join(text for _, text in finder.preview(60))
            assert (shown.count("1 dev"), shown.count("Fix the login")) == (1, 1)
        assert not [text for _, text in finder.preview(60, tight=True) if text == "\n"]

    @pytest.mark.parametrize("typed", ["sk", "ske", "skew", "clock sk", "clock skew ", "deci"])
    def test_the_last_word_is_found_while_it_is_typed(self, store: FileStore, typed: str) -> None:
        finder = Finder(store)
        finder.ask(typed)
        assert requests(finder) == ["Port the prices" if typed == "deci" else "Fix the login"]
        assert finder.turn == 1

    @pytest.mark.parametrize("typed", ["status:", '"clock', "clock AND", "(", "*", "skewness"])
    def test_what_is_half_typed_is_no_error(self, store: FileStore, typed: str) -> None:
        finder = Finder(store)
        finder.ask(typed)
        finder.rows(10, 80)
        finder.preview(40)

    def test_the_choice_stays_within_the_list(self, store: FileStore) -> None:
        finder = Finder(store)
        finder.ask("")
        finder.move(5)
        assert finder.chosen is not None
        assert finder.chosen[0].request == "Fix the login"
        finder.move(-5)
        assert finder.chosen[0].request == "Port the prices"


class TestScreen:
    def test_keys_that_are_typed_quickly_cost_one_search(
        self, store: FileStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[str] = []
        search = FileStore.search
        monkeypatch.setattr(
            FileStore, "search", lambda self, query, *rest: asked.append(query) or search(self, query, *rest)
        )
        finder = Finder(store)
        for typed_so_far in ("c", "cl", "clo", "clock"):
            finder.ask(typed_so_far)
        assert requests(finder) == ["Fix the login"]
        assert finder.chosen is not None
        assert asked == ["clock"]

    @pytest.mark.parametrize("width", [16, 30, 49, 50, 80])
    def test_a_row_is_as_wide_as_the_list(self, store: FileStore, width: int) -> None:
        store.start("👩‍👩‍👧‍👦 ❤️ 👍🏽 🇩🇪 注文の丸めを直す " * 5).close()
        finder = Finder(store)
        finder.ask("")
        rows = "".join(text for _, text in finder.rows(5, width)).splitlines()
        assert len(rows) == 3
        assert {sum(map(wcwidth, row)) for row in rows} == {width}

    @pytest.mark.parametrize(("columns", "lines"), [(30, 8), (20, 5), (80, 11), (80, 24), (120, 40)])
    def test_it_fits_any_terminal(self, columns: int, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("LINES", str(lines))
        below = pick_screen._BELOW if columns < pick_screen._WIDE and pick_screen._has_room() else 0
        assert 1 <= pick_screen._list_height() <= lines - 2 - below

    def test_without_a_task_it_says_what_to_do_first(self, tmp_path: Path) -> None:
        (tmp_path / ".git").mkdir()
        code, out = typed(FileStore(tmp_path), b"")
        assert (code, "What to do first: rawko" in out) == (1, True)


def typed(store: FileStore, keys: bytes, *words: str) -> tuple[int, str]:
    """Runs `rawko pick` in a terminal. Its exit code, and what it printed."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(store.root)
        os.environ.update({"TERM": "xterm", "COLUMNS": "100", "LINES": "30"})
        os.execv(sys.executable, [sys.executable, "-m", "rawko_state", "pick", *words])
    output, sent, until = b"", False, time.monotonic() + patience(60)
    while time.monotonic() < until:
        if not select.select([terminal], [], [], 0.1)[0]:
            continue
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            break
        if not piece:
            break
        output += piece
        if b"\x1b[6n" in piece:  # where is the cursor?
            os.write(terminal, b"\x1b[1;1R")
        if not sent and b"Port the prices" in output:
            os.write(terminal, keys)
            sent = True
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output.decode("utf-8", "replace")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
class TestKeys:
    def test_enter_chooses_what_was_typed_for(self, store: FileStore) -> None:
        task = next(each.id for each in store.history(TaskFilter()) if each.request == "Fix the login")
        code, out = typed(store, b"clock sk\r", "--print")
        assert code == 0
        assert out.rstrip().endswith(task)

    def test_escape_leaves_without_a_word(self, store: FileStore) -> None:
        assert typed(store, b"\x03", "--print")[0] == 130


def test_without_a_terminal_it_says_what_a_script_does(store: FileStore) -> None:
    said = rawko(store.root, "pick", code=2).stderr
    assert said == "rawko: pick needs a terminal.\n  In a script: rawko search QUERY --ids\n"


@pytest.mark.parametrize(
    ("prefix", "made", "command"),
    [
        (
            "home/.local/share/pipx/venvs/rawko-state",
            "pyvenv.cfg",
            "pipx runpip rawko-state install 'rawko-state[pick]'",
        ),
        ("uv/tools/rawko-state", "uv-receipt.toml", "uv pip install --python /bin/py 'rawko-state[pick]'"),
        ("venv", "pyvenv.cfg", "/bin/py -m pip install 'rawko-state[pick]'"),
    ],
)
def test_what_is_missing_is_installed_where_rawko_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, made: str, command: str
) -> None:
    """Not into whatever environment `pip` belongs to."""
    (tmp_path / prefix).mkdir(parents=True)
    (tmp_path / prefix / made).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / prefix))
    monkeypatch.setattr(sys, "executable", "/bin/py")
    assert installing("pick") == command
