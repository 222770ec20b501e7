"""Settings: layers, what is said of mistakes, and changes that leave the rest of a file alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rawko_state.config.change import changed, put
from rawko_state.config.schema import DURATION, SETTINGS, Wrong, read_duration, write_duration
from rawko_state.config.settings import files, load
from rawko_state.errors import InvalidValue, RawkoError
from tests.support.processes import rawko


def write(root: Path, layer: str, text: str) -> Path:
    path = files(root)[layer]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class TestLayers:
    def test_later_ones_win(self, tmp_path: Path) -> None:
        assert load(tmp_path)["search.fold"] == "auto"
        user = write(tmp_path, "user", "search:\n  fold: off\nuser:\n  name: kim\n")
        found = load(tmp_path)
        assert (found["search.fold"], found.value("search.fold").origin) == ("off", f"{user}:2")
        project = write(tmp_path, "project", "# shared\nuser: {name: team}\n")
        assert load(tmp_path).value("user.name").origin == f"{project}:2"
        write(tmp_path, "project-user", "user:\n  name: me here\n")
        assert load(tmp_path)["user.name"] == "me here"
        assert load(tmp_path, {"RAWKO_USER_NAME": "env"})["user.name"] == "env"
        assert load(tmp_path)["search.fold"] == "off"
        assert load(None)["user.name"] == "kim"

    def test_every_default_is_of_its_type(self) -> None:
        for setting in SETTINGS:
            if setting.default is not None:
                written = write_duration(setting.default) if setting.type is DURATION else setting.default
                written = list(written) if isinstance(written, tuple) else written
                assert setting.type.read(written) == setting.default

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("serach:\n  fold: off\n", ":1: unknown setting 'serach'. Did you mean search?"),
            ("search:\n  flod: off\n", ":2: unknown setting 'search.flod'. Did you mean search.fold?"),
            ("search:\n  fold: maybe\n", ":2: search.fold takes one of auto, off, not 'maybe'"),
            ("resume:\n  budget: many\n", ":2: resume.budget takes a whole number"),
            ("resume:\n  budget: -5\n", ":2: resume.budget takes a whole number"),
            ("search: off\n", ":1: 'search' must be a mapping"),
            ("- a\n", ":1: the file must be a mapping"),
            ("a: [\n", ":2: not valid YAML"),
            ("user: {name: a}\nuser: {name: b}\n", ":2: 'user' appears twice"),
            ("user:\n  name: !!python/object/apply:os.system ['touch /tmp/evil']\n", ":2: user.name takes one line of text"),
            ("user:\n  name: \"a\\nb\"\n", ":2: user.name takes one line of text"),
            ("redact:\n  env: [A, [B, C]]\n", ":2: redact.env takes a list of words, not ['A', None]"),
            ("runners: {dev: x}\n", ":1: runners is read only from your own settings"),
        ],
    )  # fmt: skip
    def test_what_is_wrong_is_said_with_its_line(self, tmp_path: Path, text: str, expected: str) -> None:
        path = write(tmp_path, "project", text)
        found = load(tmp_path)
        assert len(found.problems) == 1
        assert str(found.problems[0]).startswith(f"{path}{expected}"), found.problems[0]
        assert load(tmp_path)["search.fold"] == "auto"
        done = rawko(tmp_path, "config", "check", code=1)
        assert len(done.stderr.splitlines()) == 1

    def test_a_wrong_variable(self, tmp_path: Path) -> None:
        (problem,) = load(tmp_path, {"RAWKO_RESUME_BUDGET": "x"}).problems
        assert str(problem).startswith("RAWKO_RESUME_BUDGET: resume.budget takes a whole number")

    def test_a_variable_that_no_setting_has(self, tmp_path: Path) -> None:
        given = {"RAWKO_STATE_RETENTION_KEEP_FAILD": "yes", "RAWKO_DIR": "x", "RAWKO_TASK": "x"}
        (problem,) = load(tmp_path, given).problems
        assert str(problem) == (
            "RAWKO_STATE_RETENTION_KEEP_FAILD: unknown environment variable. Did you mean RAWKO_STATE_RETENTION_KEEP_FAILED?"
        )

    def test_runners_of_the_user(self, tmp_path: Path) -> None:
        write(tmp_path, "user", "runners:\n  dev: my-agent --x 'a b'\n")
        assert load(tmp_path)["runners"] == {"dev": "my-agent --x 'a b'"}

    @pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"a: b\0c", b"&a [*a]", b"{" * 5000, b"x" * 2_000_000])
    def test_rubbish_is_one_problem(self, tmp_path: Path, data: bytes) -> None:
        write(tmp_path, "project", "").write_bytes(data)
        assert len(load(tmp_path).problems) == 1

    def test_cue(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(tmp_path, "project", "").unlink()
        (tmp_path / ".rawko/config.cue").write_text('user: name: "kim"\n')
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        (problem,) = load(tmp_path).problems
        assert "cue export --out yaml config.cue > config.yaml" in str(problem)
        (tmp_path / "bin").mkdir()
        cue = tmp_path / "bin" / "cue"
        cue.write_text("#!/bin/sh\necho 'user: {name: from-cue}'\n")
        cue.chmod(0o755)
        assert load(tmp_path)["user.name"] == "from-cue"
        assert load(tmp_path).value("user.name").origin == f"{tmp_path / '.rawko/config.cue'} (exported):1"
        cue.write_text("no program\n")
        assert "cue: " in str(load(tmp_path).problems[0])
        cue.write_text("#!/bin/sh\necho 'some error' >&2; exit 1\n")
        assert "cue: some error" in str(load(tmp_path).problems[0])

    @pytest.mark.parametrize(
        ("text", "seconds"), [("30d", 2_592_000), ("12h", 43_200), ("2w", 1_209_600), ("45s", 45), ("90m", 5_400)]
    )
    def test_durations(self, text: str, seconds: int) -> None:
        assert read_duration(text) == seconds

    @pytest.mark.parametrize("text", ["30", "d", "1y", "-1d", "1.5d", "", None, 30, "1d "])
    def test_what_is_no_duration(self, text: object) -> None:
        with pytest.raises(Wrong, match="30d, 12h, 2w"):
            read_duration(text)


class TestChanges:
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("", "user:\n  name: kim\n"),
            ("# top\nsearch:\n  fold: off # why\n", "# top\nsearch:\n  fold: off # why\nuser:\n  name: kim\n"),
            ("user:\n  name: old # me\n# end\n", "user:\n  name: kim # me\n# end\n"),
            ("user: {name: old}\n", "user: {name: kim}\n"),
            ("user:\n    name: 'o l d'\nsearch:\n    fold: off", "user:\n    name: kim\nsearch:\n    fold: off"),
        ],
    )
    def test_the_rest_stays_as_it_is(self, tmp_path: Path, before: str, after: str) -> None:
        assert changed(before, ["user", "name"], "kim", tmp_path) == after

    def test_a_sibling_is_added_in_its_place(self, tmp_path: Path) -> None:
        text = "resume:\n  # how long\n  budget: 5\nuser:\n  name: x\n"
        assert changed(text, ["resume", "budget"], "7", tmp_path) == text.replace("5", "7")
        assert changed(text, ["user", "name"], None, tmp_path) == "resume:\n  # how long\n  budget: 5\n"

    @given(
        st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp", "Cn", "Co"]), min_size=1).filter(
            str.isprintable
        )
    )
    def test_any_text_comes_back(self, text: str) -> None:
        made = changed("", ["user", "name"], text, Path("x"))
        value = yaml.safe_load(made)["user"]["name"]
        assert str(value) == text or text.isdecimal()

    def test_what_cannot_be_changed_is_refused_and_left(self, tmp_path: Path) -> None:
        path = tmp_path / "c.yaml"
        for text in ("user: &a {name: x}\nsearch: *a\n", "a: [\n"):
            path.write_text(text)
            with pytest.raises(RawkoError):
                put(path, "search.fold", "off")
            assert path.read_text() == text
        with pytest.raises(InvalidValue, match=r"Did you mean search\.fold"):
            put(path, "search.flod", "off")
        with pytest.raises(InvalidValue, match="takes one of"):
            put(path, "search.fold", "x")


class TestCommand:
    def test_set_get_list_unset(self, tmp_path: Path) -> None:
        (tmp_path / ".rawko").mkdir()
        assert rawko(tmp_path, "config", "get", "user.name", code=1).stdout == ""
        rawko(tmp_path, "config", "set", "user.name", "Kim Ö")
        rawko(tmp_path, "config", "set", "--project", "resume.budget", "5000")
        assert rawko(tmp_path, "config", "get", "user.name").stdout == "Kim Ö\n"
        shown = rawko(tmp_path, "config", "list", "--origin").stdout
        assert re.search(r"resume.budget\t5000\t.*config.yaml:2\n", shown)
        assert "search.fold\tauto\tdefault\n" in shown
        assert json.loads(rawko(tmp_path, "config", "list", "--json").stdout)["version"] == 1
        assert json.loads(rawko(tmp_path, "config", "list", "--json").stdout)["resume.budget"]["value"] == 5000
        rawko(tmp_path, "config", "unset", "user.name")
        assert rawko(tmp_path, "config", "get", "user.name", code=1).stdout == ""
        assert "No problems" in rawko(tmp_path, "config", "check").stdout
        assert "Did you mean" in rawko(tmp_path, "config", "set", "user.nam", "x", code=2).stderr

    def test_a_project_is_not_given_what_it_would_not_be_asked_for(self, tmp_path: Path) -> None:
        path = write(tmp_path, "project", "")
        for layer in ("--project", "--project-user"):
            done = rawko(tmp_path, "config", "set", layer, "redact.off", "all", code=2)
            assert "read only from your own settings" in done.stderr
            assert "--user" in done.stderr
        assert path.read_text() == ""

    def test_one_entry_of_a_mapping(self, tmp_path: Path) -> None:
        path = write(tmp_path, "user", "redact:\n  patterns:\n    old: 'old_[0-9]+' # stays\nrunners:\n  dev: claude\n")
        rawko(tmp_path, "config", "set", "redact.patterns.acme-token", "acme_[0-9a-f]{32}")
        assert rawko(tmp_path, "config", "get", "redact.patterns.acme-token").stdout == "acme_[0-9a-f]{32}\n"
        assert rawko(tmp_path, "config", "get", "redact.patterns.none", code=1).stdout == ""
        text = path.read_text()
        assert "old: 'old_[0-9]+' # stays" in text
        assert "  dev: claude\n" in text
        rawko(tmp_path, "config", "unset", "redact.patterns.acme-token")
        assert rawko(tmp_path, "config", "get", "redact.patterns.old").stdout == "old_[0-9]+\n"
        assert "redact.patterns.NAME" in rawko(tmp_path, "config", "set", "redact.patterns", "x", code=2).stderr
        for name, pattern, said in (
            ("Acme", "x", "lower-case"),
            ("acme", "(", "acme: missing"),
            ("acme", "(a+)+$", "exponentially long"),
        ):
            assert said in rawko(tmp_path, "config", "set", f"redact.patterns.{name}", pattern, code=2).stderr
        assert "acme" not in path.read_text()

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("patterns: {acme: '(a+)+$'}", "acme is not applied"),
            (
                "patterns: {acme: 'acme_[0-9]+'}\n  samples: {match: {acme: acme_x}}",
                "does not match its sample 'acme_x'",
            ),
            ("patterns: {acme: 'acme_[0-9]+'}\n  samples: {never: {acme: acme_1}}", "must not match 'acme_1'"),
        ],
    )
    def test_own_patterns_are_checked_with_their_samples(self, tmp_path: Path, line: str, said: str) -> None:
        write(tmp_path, "user", f"redact:\n  {line}\n")
        done = rawko(tmp_path, "config", "check", code=1)
        assert said in done.stderr
        assert "No problems" not in done.stdout

    def test_edit_checks(self, tmp_path: Path) -> None:
        (tmp_path / ".rawko").mkdir()
        script = tmp_path / "editor.sh"
        script.write_text("#!/bin/sh\necho 'bogus: 1' > \"$1\"\n")
        script.chmod(0o755)
        done = rawko(tmp_path, "config", "edit", "--project", code=1, EDITOR=str(script), VISUAL="")
        assert "unknown setting 'bogus'" in done.stderr
        assert "Can't run" in rawko(tmp_path, "config", "edit", code=1, VISUAL="/nonexistent").stderr

    def test_the_name_and_the_runner_are_used(self, tmp_path: Path) -> None:
        from rawko_state.backends.files.store import FileStore

        store = FileStore(tmp_path)
        task = store.start("x")
        task.decide(selected="dev", reason="r")
        task.close()
        write(tmp_path, "user", "user:\n  name: kim\nrunners:\n  dev: echo did it\n")
        assert "did it" not in rawko(tmp_path, "resume", task.id, "--print").stdout
        assert rawko(tmp_path, "resume", task.id).stdout == "did it\n"
        assert b"\nBy: kim\n" in store.journal.layout.path(store.find(task.id)).read_bytes()
        assert store.status(task.id) == "completed"
        # A runner that came with the project is not run.
        write(tmp_path, "user", "")
        write(tmp_path, "project", "runners:\n  arbiter: touch evil\n")
        done = rawko(tmp_path, "resume", task.id)
        assert "may come from anyone" in done.stderr
        assert not (tmp_path / "evil").exists()
        store.close()
