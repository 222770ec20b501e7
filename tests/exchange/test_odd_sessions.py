"""Other agents' sessions: everything comes in, once, as it was; what grows comes after; what is broken is told of."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.exchange.importing import Belonging, task_id
from rawko_state.exchange.sources import claude_code
from rawko_state.exchange.transcript import Step, in_order
from rawko_state.store import TaskFilter
from tests.exchange.sessions import _is_alive, agrees, bring, hook_event, payload, run_recorded, turns
from tests.support.faults import quiet
from tests.support.machine import patience, wait_for
from tests.support.processes import rawko


class TestOddOnes:
    """What a review came upon."""

    def lines(self, sessions: Path) -> list[str]:
        return (sessions / "claude-code/session-2.0.jsonl").read_text(encoding="utf-8").split("\n")[:-1]

    def test_growth_that_is_stopped_in_between_doubles_nothing(
        self, store: FileStore, sessions: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from rawko_state.tasks.task import Task

        path = sessions / "claude-code/session-2.0.jsonl"
        lines = self.lines(sessions)
        path.write_text("\n".join(lines[:4]) + "\n", encoding="utf-8")
        bring(store, "claude-code", path)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        real, left = Task.add, [0]

        def add(self: Task, entries: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise OSError("stopped")
            return real(self, entries)  # type: ignore[arg-type]

        monkeypatch.setattr(Task, "add", add)
        for allowed in (0, 1, 2, 1, 3, 99):
            left[0] = allowed
            bring(store, "claude-code", path)
        assert payload(store, task_id("claude-code", "session-2.0")) == "\n".join(lines)
        assert store.summary(task_id("claude-code", "session-2.0")).status == "completed"
        agrees(store)

    def test_several_at_once_double_nothing(self, project: Path, sessions: Path) -> None:
        (project / ".rawko").mkdir()
        path = sessions / "claude-code/session-2.0.jsonl"
        lines = self.lines(sessions)
        path.write_text("\n".join(lines[:4]) + "\n", encoding="utf-8")
        rawko(project, "import", "claude-code", str(path))
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "rawko_state", "-C", str(project), "import", "claude-code", str(path)]
        processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(4)]
        assert [process.wait(patience(60)) for process in processes] == [0] * 4
        store = quiet(project)
        assert payload(store, task_id("claude-code", "session-2.0")) == "\n".join(lines)
        agrees(store)

    @pytest.mark.parametrize(
        "record",
        ['{"type":["x"]}', '{"type":{"a":1}}', '{"type":"user","timestamp":1' + "0" * 400 + "}", '{"type":"user","timestamp":"9999-12-31T23:59:59-23:59"}',
         '{"type":"user","timestamp":"0001-01-01T00:00:00+23:59"}', '{"type":"user","version":"1\\ud800"}',
         '{"type":"assistant","message":{"id":"q","content":"x","usage":{"input_tokens":true,"output_tokens":1' + "0" * 30 + '}}}'],
    )  # fmt: skip
    def test_an_odd_record_stops_nobody(self, store: FileStore, sessions: Path, record: str) -> None:
        odd = sessions / "claude-code/odd.jsonl"
        odd.write_text(f'{{"type":"user","cwd":"{store.root}","message":{{"content":"hi"}}}}\n{record}\n')
        report = bring(store, "claude-code", sessions / "claude-code")
        assert report.wrong == []
        assert len(report.new) == 4
        assert payload(store, task_id("claude-code", "odd")) + "\n" == odd.read_text()
        assert bring(store, "claude-code", sessions / "claude-code").same == 4

    def test_what_comes_while_a_file_is_read_is_seen_the_next_time(
        self, store: FileStore, sessions: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from rawko_state.exchange import importing

        path = sessions / "claude-code/session-1.0.jsonl"
        real = importing._brought

        def brought(job: object) -> object:
            done = real(job)  # type: ignore[arg-type]
            with open(path, "a") as stream:
                stream.write('{"type":"user","message":{"content":"came meanwhile"}}\n')
            return done

        monkeypatch.setattr(importing, "_brought", brought)
        bring(store, "claude-code", path)
        assert bring(store, "claude-code", path).grown == [task_id("claude-code", "session-1.0")]
        assert payload(store, task_id("claude-code", "session-1.0")) + "\n" == path.read_text()

    def test_a_project_that_was_begun_anew_gets_them_again_and_one_in_the_trash_stays_there(
        self, project: Path, sessions: Path
    ) -> None:
        store = quiet(project)
        bring(store, "claude-code", sessions / "claude-code")
        store.delete(task_id("claude-code", "session-1.0"))
        assert bring(store, "claude-code", sessions / "claude-code").new == []
        store.close()
        shutil.rmtree(project / ".rawko")
        assert len(bring(quiet(project), "claude-code", sessions / "claude-code").new) == 3

    def test_another_file_under_the_same_key_is_not_mixed_in(self, store: FileStore, sessions: Path) -> None:
        other = sessions / "other" / "session-2.0.jsonl"
        other.parent.mkdir()
        other.write_text(
            (sessions / "claude-code/session-2.0.jsonl").read_text().replace("login", "LOGOUT page of the") + "{}\n"
        )
        bring(store, "claude-code", sessions / "claude-code/session-2.0.jsonl")
        before = payload(store, task_id("claude-code", "session-2.0"))
        report = bring(store, "claude-code", other)
        assert "This is not the file" in report.wrong[0].text
        assert payload(store, task_id("claude-code", "session-2.0")) == before

    def test_growth_in_another_project(self, project: Path, sessions: Path, tmp_path: Path) -> None:
        (project / ".rawko").mkdir()
        here = tmp_path / "here"
        here.mkdir()
        path = sessions / "claude-code/session-2.0.jsonl"
        lines = self.lines(sessions)
        path.write_text("\n".join(lines[:5]) + "\n", encoding="utf-8")
        everywhere = Belonging((str(here),), everywhere=True)
        bring(quiet(here), "claude-code", path, belonging=everywhere)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        assert bring(quiet(here), "claude-code", path, belonging=everywhere).grown == [
            task_id("claude-code", "session-2.0")
        ]
        assert payload(quiet(project), task_id("claude-code", "session-2.0")) == "\n".join(lines)
        assert quiet(here).history(TaskFilter()) == []

    def test_paths_below_a_worktree_and_projects_inside_projects(
        self, store: FileStore, sessions: Path, project: Path, tmp_path: Path
    ) -> None:
        path = sessions / "claude-code/session-1.0.jsonl"
        tree = tmp_path / "tree"
        path.write_text(path.read_text().replace(str(project), str(tree)))
        bring(store, "claude-code", path, belonging=Belonging((str(project), str(tree))))
        assert [f.path for f in turns(store, task_id("claude-code", "session-1.0"))[1].files] == ["sub/mod.py"]  # type: ignore[union-attr]
        (project / "sub" / ".rawko").mkdir(parents=True)
        path.write_text(path.read_text().replace(str(tree), str(project)).replace("session-1.0", "session-x"))
        path = path.rename(path.with_name("session-x.jsonl"))
        assert bring(store, "claude-code", path).elsewhere == 1

    def test_a_worker_that_is_killed_takes_nothing_with_it(
        self, store: FileStore, sessions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from rawko_state.exchange import importing

        if sys.platform != "linux":
            pytest.skip("NOT TESTED HERE: needs fork")
        for number in range(30):
            shutil.copy(sessions / "claude-code/session-2.0.jsonl", tmp_path / f"k{number}.jsonl")
        real, parent = importing._brought, os.getpid()

        def brought(job: importing._Job) -> importing._Done:
            if job.session.key == "k17" and os.getpid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(job)

        monkeypatch.setattr(importing, "_brought", brought)
        files = [tmp_path / f"k{number}.jsonl" for number in range(30)]
        bring(store, "claude-code", *files)
        bring(store, "claude-code", *files)
        assert len(store.history(TaskFilter(limit=None))) == 30
        agrees(store)

    def test_workers_end_with_an_import_that_is_killed(self, project: Path, sessions: Path, tmp_path: Path) -> None:
        if sys.platform != "linux" or (os.cpu_count() or 1) < 2:
            pytest.skip("NOT TESTED HERE: needs /proc, and cores enough for workers")
        (project / ".rawko").mkdir()
        folder = tmp_path / "many"
        folder.mkdir()
        for number in range(300):
            shutil.copy(sessions / "claude-code/session-2.0.jsonl", folder / f"k{number}.jsonl")
        words = [sys.executable, "-m", "rawko_state", "-C", str(project), "import", "claude-code", str(folder)]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(workers := children.read_text().split()) < 2:
            time.sleep(0.01)
        process.kill()
        process.wait()
        wait_for(lambda: not any(_is_alive(worker) for worker in workers))
        assert not [worker for worker in workers if _is_alive(worker)]

    def test_one_odd_event_does_not_keep_the_others_from_being_recorded(
        self, project: Path, sessions: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(sessions))
        (project / ".rawko").mkdir()
        path = sessions / "claude-code/session-2.0.jsonl"
        for transcript in ("", str(sessions), "/not/there"):
            event = {"session_id": "h", "transcript_path": transcript, "cwd": str(project), "hook_event_name": "Stop"}
            rawko(project, "hook", "run", "claude-code", given=json.dumps(event))
        rawko(project, "hook", "run", "claude-code", given=hook_event("Stop", path, project))
        store = quiet(project)
        wait_for(lambda: [s.status for s in store.history(TaskFilter())] == ["completed"] * 2)  # and its sub-agent
        rawko(project, "hook", "run", "claude-code", given=json.dumps({"cwd": str(project / "not" / "there")}))
        assert not (project / "not").exists()

    def test_a_stop_ends_a_run_of_which_nothing_is_new(self, project: Path, sessions: Path) -> None:
        from rawko_state.exchange.importing import grow, start

        store = quiet(project)
        path = sessions / "claude-code/session-2.0.jsonl"
        path.write_text("\n".join(self.lines(sessions)[:12]) + "\n", encoding="utf-8")
        (session,) = claude_code.found([path], path, [])
        task = start(store, session, [], ended=False)
        assert task is not None
        assert store.summary(task).status == "running"
        grow(store, task, session, [], ended=True)
        assert store.summary(task).status == "completed"
        assert grow(store, task, session, [], ended=True)[0] is False

    def test_run_goes_on_whatever_the_stream_holds(self, store: FileStore, project: Path) -> None:
        lines = ['{"type":"system","session_id":"s"}', '{"type":[1]}', '{"type":"assistant","message":{"id":"m","content":"x","usage":{"input_tokens":true}},"timestamp":1' + "0" * 400 + "}",
                 '{"type":"assistant","isSidechain":true,"agentId":"a\\nb","message":{"id":"n","content":"y"}}', '{"type":"item.completed","item":{"changes":5}}']  # fmt: skip
        out = run_recorded(project, "sh", "-c", 'printf "%s\\n" "$@"; exit 5', "sh", *lines, code=5)
        assert out.decode().splitlines() == lines
        only = ['{"type":"system","session_id":"s"}', '{"type":"result","session_id":"s"}']
        run_recorded(project, "printf", "%s\n", *only)
        (last,) = [summary for summary in store.history(TaskFilter()) if summary.turns == 0]
        assert payload(store, last.id).split("\n") == only

    def test_run_ends_when_nobody_reads_and_can_be_stopped_at_any_time(self, store: FileStore, project: Path) -> None:
        (project / ".rawko").mkdir()
        command = f"{sys.executable} -m rawko_state -C {project} run t -- yes | head -1"
        done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=patience(60))
        assert done.stdout == b"y\n"
        words_ = [
            sys.executable,
            "-m",
            "rawko_state",
            "-C",
            str(project),
            "run",
            "quiet one",
            "--",
            "sh",
            "-c",
            "exec >&-; sleep 30",
        ]
        process = subprocess.Popen(words_, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: store.history(TaskFilter(status=("running",))))
        rawko(project, "cancel", store.history(TaskFilter(status=("running",)))[0].id)
        process.communicate(timeout=patience(20))
        process = subprocess.Popen(
            [*words_[:-1], "trap 'exit 9' INT; echo up; while :; do sleep 0.1; done"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(patience(20)) == 9
        process.stdout.close()

    @pytest.mark.parametrize(
        "mine",
        [
            '{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "~/src/rawko/hook run tests"}]}]}}',
            '{\r\n\t"a": 1.10\r\n}',
            '{"x": "\\ud800"}',
        ],
    )
    def test_settings_come_back_as_they_were(self, project: Path, tmp_path: Path, mine: str) -> None:
        (project / ".rawko").mkdir()
        path = tmp_path / "settings.json"
        path.write_bytes(mine.encode())
        for word in ("install", "uninstall"):
            rawko(project, "hook", word, "claude-code", CLAUDE_CONFIG_DIR=str(tmp_path))
            assert b"\r\n" not in mine.encode() or b"\r\n" in path.read_bytes()
        assert json.loads(path.read_bytes()) == json.loads(mine)
        assert sorted(p.name for p in tmp_path.glob(".settings*")) == []

    @pytest.mark.parametrize("mine", ['{"a": 1e400}', '{"a": 1, "a": 2}', "[1]", '{"hooks": []}'])
    def test_settings_that_would_not_come_back_are_left(self, project: Path, tmp_path: Path, mine: str) -> None:
        (project / ".rawko").mkdir()
        path = tmp_path / "settings.json"
        path.write_text(mine)
        assert (
            "left unchanged"
            in rawko(project, "hook", "install", "claude-code", code=1, CLAUDE_CONFIG_DIR=str(tmp_path)).stderr
        )
        assert path.read_text() == mine

    @pytest.mark.skipif(sys.version_info < (3, 11), reason="NOT TESTED HERE: needs tomllib")
    @pytest.mark.parametrize(
        "mine",
        [
            'x = [\n[1]\n]\nnotify = ["mine"]\n',
            '"notify" = ["mine"]\n',
            'notify = ["my-rawko-wrapper", "hook", "x"]\n',
            "\ufeffa = 1\n",
            "not toml",
        ],
    )
    def test_toml_that_is_the_users_is_left(self, project: Path, tmp_path: Path, mine: str) -> None:
        (project / ".rawko").mkdir()
        path = tmp_path / "config.toml"
        path.write_text(mine, encoding="utf-8")
        # Codex's hooks.json is another file: where only ``notify`` is taken, the hooks are installed.
        code = 0 if "notify" in mine else 1
        rawko(project, "hook", "install", "codex", code=code, CODEX_HOME=str(tmp_path))
        assert path.read_text(encoding="utf-8") == mine
        rawko(project, "hook", "uninstall", "codex", code=None, CODEX_HOME=str(tmp_path))
        assert path.read_text(encoding="utf-8") == mine

    def test_options_that_would_do_nothing_are_refused(self, project: Path, tmp_path: Path) -> None:
        (project / ".rawko").mkdir()
        assert "no option" in rawko(project, "import", "rawko", "--since", "1d", "x.json", code=2).stderr


class TestOrder:
    def test_steps_in_order_come_without_a_look_ahead(self) -> None:
        """Also while a file grows: nothing waits for records that are not there yet."""
        read = 0

        def steps() -> Iterator[tuple[int, Step]]:
            nonlocal read
            for number in range(100):
                read += 1
                yield number + 1, Step("{}", key=str(number), follows=str(number - 1) if number else None)

        for count, (place, step) in enumerate(in_order(steps(), 0), 1):
            assert (read, place, step.key) == (count, count, str(count - 1))

    def test_a_step_that_came_early_waits_and_the_place_with_it(self) -> None:
        given = [("a", None), ("c", "b"), ("b", "a"), ("d", "c")]
        steps = ((number, Step("{}", key=key, follows=follows)) for number, (key, follows) in enumerate(given, 1))
        found = [(place, step.key) for place, step in in_order(steps, 0)]
        assert [key for _, key in found] == ["a", "b", "c", "d"]
        assert found[0] == (1, "a")
        assert [place for place, _ in found] == sorted(place for place, _ in found)
        assert found[-1] == (4, "d")
