"""Secrets: every rule finds its samples wherever they stand, leaves alone what it must, and nothing reaches the disk."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawko_state.backends.files.store import FileStore
from rawko_state.backends.redaction import redactor_for
from rawko_state.errors import InvalidValue
from rawko_state.model.entries import Question, ToolCall, Turn
from rawko_state.redact.patterns import Pattern
from rawko_state.redact.redactor import Redactor
from rawko_state.redact.rule import Rule
from rawko_state.redact.rules import RULES
from rawko_state.redact.stream import Stream
from rawko_state.store import TaskFilter
from tests.support.processes import ROOT

WRAPPED = {
    "alone": "%s",
    "paragraph": "The log of Monday says that %s was used, which we did not expect to see there.",
    "JSON string": '{"role": "user", "content": "%s", "n": 1}',
    "URL": "https://example.org/v1/run?q=%s&page=2",
    "lines": "first\n%s\nlast",
    "code": "`%s`",
}
SAMPLES = [(rule, sample) for rule in RULES for sample in rule.samples]


def redactor(**more: object) -> Redactor:
    return Redactor(lambda secret: hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()[:4], **more)  # type: ignore[arg-type]


ALL = redactor()


def plain_and_secret(sample: str) -> tuple[str, str]:
    return sample.replace("«", "").replace("»", ""), sample[sample.index("«") + 1 : sample.index("»")]


def all_samples(every: bool = True) -> tuple[str, list[str]]:
    """The samples of all rules, or a random quarter of them."""
    chosen = SAMPLES if every else random.sample(SAMPLES, len(SAMPLES) // 4)
    pairs = [plain_and_secret(sample) for _, sample in chosen]
    return "\n\n".join(plain for plain, _ in pairs), [secret.strip() for _, secret in pairs]


class TestRules:
    def test_every_rule_has_samples_and_a_name_of_its_own(self) -> None:
        names = [rule.name for rule in RULES]
        for rule in RULES:
            assert rule.samples, rule.name
            assert all(re.fullmatch("[a-z0-9-]+", name) for name in names)

    @pytest.mark.parametrize(
        ("rule", "sample"), SAMPLES, ids=lambda value: value.name if isinstance(value, Rule) else ""
    )
    def test_a_sample_is_found_under_its_name_and_nothing_else_is_taken(self, rule: Rule, sample: str) -> None:
        plain, secret = plain_and_secret(sample)
        tag = hashlib.sha256(secret.encode()).hexdigest()[:4]
        assert ALL.text(plain) == plain.replace(secret, f"[redacted:{rule.name}:{tag}]")

    @pytest.mark.parametrize("where", WRAPPED)
    def test_a_sample_is_found_wherever_it_stands(self, where: str) -> None:
        for rule, sample in SAMPLES:
            plain, secret = plain_and_secret(sample)
            shown = ALL.text(WRAPPED[where] % plain)
            assert secret.strip() not in shown, (rule.name, shown)

    def test_what_only_looks_like_one_is_left_alone(self) -> None:
        for rule in RULES:
            for text in rule.never:
                for wrapping in ("%s", WRAPPED["paragraph"], WRAPPED["JSON string"]):
                    assert ALL.spans(wrapping % text) == [], (rule.name, text)

    @pytest.mark.parametrize(
        "text",
        [
            "commit 3f786850e387550fdab836ed7e6dc881de23001b",
            "git diff 9fceb02..8e2b7c1d9f3a4056b8c7d2e1f0a93b548e2b7c1d",
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "md5 d41d8cd98f00b204e9800998ecf8427e",
            "id 123e4567-e89b-12d3-a456-426614174000",
            "integrity sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg==",
            "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
            "[redacted:github-token:3f2a]",
            "usage: 18230 input tokens, 912 output tokens; token budget 4096",
            "def token(self, password: str, secret: bytes | None = None) -> str:",
        ],
    )  # fmt: skip
    def test_hashes_ids_images_and_prose_are_left_alone(self, text: str) -> None:
        assert ALL.text(text) is text

    def test_the_tag_is_the_same_for_the_same_secret_and_keyed(self, tmp_path: Path) -> None:
        plain, _ = plain_and_secret(next(rule for rule in RULES if rule.name == "github-token").samples[0])
        store = FileStore(tmp_path)
        first, second = (re.search(r"github-token:([0-9a-f]{4})", store.redactor.text(f"{x} {plain}")) for x in "ab")
        assert first is not None
        assert second is not None
        assert first[1] == second[1]
        other = Redactor(lambda secret: "beef").text(plain)
        assert "beef" in other
        assert first[1] != hashlib.sha256(plain.encode()).hexdigest()[:4]

    @given(
        st.lists(
            st.sampled_from(
                [*(plain_and_secret(sample)[0] for _, sample in SAMPLES), " ", "\n", '"', "x=", "é", "://", "token="]
            ),
            max_size=8,
        ),
        st.text(max_size=20),
    )
    def test_a_redacted_text_has_nothing_left_to_redact(self, pieces: list[str], more: str) -> None:
        once = ALL.text("".join(pieces) + more)
        assert ALL.text(once) == once


class TestStreams:
    @pytest.mark.parametrize(
        ("rule", "sample"), SAMPLES, ids=lambda value: value.name if isinstance(value, Rule) else ""
    )
    def test_split_anywhere(self, rule: Rule, sample: str, every: bool) -> None:
        plain, secret = plain_and_secret(sample)
        text = f"it said {plain} and went on"
        places = range(1, len(text))
        for at in places if every else random.sample(places, 12):
            stream = Stream(ALL)
            shown = stream.feed(text[:at]) + stream.feed(text[at:]) + stream.flush()
            assert secret.strip() not in shown
            assert secret.strip()[-8:] not in shown, (at, shown)
            assert shown.endswith("and went on")

    @pytest.mark.parametrize("step", [1, 2, 3, 7])
    def test_in_small_pieces(self, step: int, every: bool) -> None:
        text, secrets = all_samples(every)
        stream = Stream(ALL)
        shown = "".join(stream.feed(text[at : at + step]) for at in range(0, len(text), step)) + stream.flush()
        for secret in secrets:
            assert secret not in shown

    def test_ordinary_text_is_not_held_back(self) -> None:
        stream = Stream(ALL)
        for word in ("Looking ", "at the", " parser; ", "it takes to", "kens one", " by one.\n", "Task sk", "ipped"):
            assert stream.feed(word) == word

    @given(st.lists(st.text(alphabet="abgh p_=:\"'\n-skeytoken./@", max_size=12), max_size=12))
    def test_nothing_is_lost_or_doubled(self, pieces: list[str]) -> None:
        stream = Stream(Redactor(lambda secret: "0000", off=[rule.name for rule in RULES]))
        assert "".join(map(stream.feed, pieces)) + stream.flush() == "".join(pieces)


class TestTheUsersOwn:
    def test_patterns_and_values_of_variables(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DEPLOY_VALUE", "blue-zebra-hat")
        (tmp_path / ".rawko").mkdir()
        (tmp_path / ".rawko" / "config.yaml").write_text("redact:\n  env: [DEPLOY_VALUE]\n")
        home = Path(os.environ["XDG_CONFIG_HOME"]) / "rawko"
        home.mkdir(parents=True)
        (home / "config.yaml").write_text("redact:\n  patterns:\n    acme: 'acme_[0-9]{6}'\n  off: [aws-access-key]\n")
        shown = FileStore(tmp_path).redactor.text("x blue-zebra-hat acme_123456 AKIAQYLPMN5HHHFPZAM2")
        assert re.fullmatch(r"x \[redacted:deploy-value:....\] \[redacted:acme:....\] AKIA\w+", shown)

    def test_a_settings_file_that_cannot_be_read_is_told_of(self, tmp_path: Path) -> None:
        home = Path(os.environ["XDG_CONFIG_HOME"]) / "rawko"
        home.mkdir(parents=True)
        told: list[str] = []
        for text, count in (("user: {name: 1}\n", 0), ("redact: [\n", 1), ("redact: {off: [nonesuch]}\n", 1)):
            (home / "config.yaml").write_text(text)
            told.clear()
            redactor_for(tmp_path, told.append)
            assert len(told) == count, told
        assert "docs/reference/redaction-rules.md" in told[0]
        assert (ROOT / "docs/reference/redaction-rules.md").exists()

    def test_a_projects_file_cannot_turn_rules_off(self, tmp_path: Path) -> None:
        (tmp_path / ".rawko").mkdir()
        (tmp_path / ".rawko" / "config.yaml").write_text("redact:\n  off: [all]\n")
        told: list[str] = []
        store = FileStore(tmp_path, warn=told.append)
        assert "redacted" in store.redactor.text("AKIAQYLPMN5HHHFPZAM2")
        assert "read only from your own settings" in told[0]


class TestNothingReachesTheDisk:
    def test_wherever_it_is_written(self, tmp_path: Path, every: bool) -> None:
        text, secrets = all_samples(every)
        # One command or setting does not run into the next.
        line, much = text.replace("\n\n", " ; ").replace("\n", " "), f"{text}\n" * 20
        values = {"password": "hunter2Zebra", "nested": [{"api_key": "k2JdQ8sLZxYv7WbNm2Pt"}, text]}
        secrets += ["hunter2Zebra", "k2JdQ8sLZxYv7WbNm2Pt"]
        with FileStore(tmp_path).start(
            text,
            title=f"t {text}",
            labels={"a": line},
            fields={"Note": text},
            sections={"Extra": text},
            cwd=text,
            by=line,
        ) as task:
            task.decide(selected="dev", reason=text, guidance=text)
            with task.turn("dev") as turn:
                for at in range(0, len(text), 11):
                    turn.say(text[at : at + 11])
                turn.tool("shell.exec", text, "ok", output=text, more={"input": values})
                turn.tool("shell.exec", "long", "ok", output=much)
                key = turn.begin_tool("shell.exec", text)
                self.nowhere(tmp_path, secrets)
                turn.end_tool(key, text, output=text)
                turn.progress(text)
                turn.touch("write", line)
                turn.end(state=values, payload=json.dumps(values), sections={"More": text})
            task.add_turn(
                Turn(
                    number=1,
                    agent="dev",
                    content=text,
                    tools=(ToolCall("x", text, output=much), line),
                )
            )
            task.ask("dev", Question(text, (text, "no"), default=text))
            task.answer("no", by=line)
            task.note(text, title=line, data=values, kind="k")
            task.finish("failure", text, error=text, output=values, files=[line])
        store = FileStore(tmp_path)
        assert store.search("redacted", TaskFilter(sort="relevance")).hits
        store.reindex()
        self.nowhere(tmp_path, secrets)

    def test_a_draft_of_a_killed_writer(self, tmp_path: Path) -> None:
        """Also one that was written by a version which did not redact."""
        plain, secret = plain_and_secret(RULES[1].samples[0])
        task = FileStore(tmp_path).start("x")
        turn = task.turn("dev")
        turn._draft.add({"kind": "text", "text": plain})
        turn._draft.add({"kind": "tool", "tool": "x", "args": plain, "output": plain + " y" * 20_000})
        task.close()
        with FileStore(tmp_path).resume(task.id):
            pass
        self.nowhere(tmp_path, [secret])

    @staticmethod
    def nowhere(root: Path, secrets: list[str]) -> None:
        for path in (root / ".rawko").rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                unescaped = data.replace(b"\\\\", b"\\").replace(b"\n    | ", b"\n").replace(b"\n  | ", b"\n")
                for secret in secrets:
                    assert secret.encode() not in data, (path, secret)
                    assert secret.encode() not in unescaped, (path, secret)


class TestOddText:
    GITHUB = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"

    @pytest.mark.parametrize(
        "before",
        ["\x1b[32m", "\x1b[0m", "\x1b[1;32m", "\\u003c", "\\u0022", "%3D", "\\x00", "\x00", "\\n", "\\t", "é", "_"],
    )
    def test_what_stands_before_a_token_does_not_hide_it(self, before: str) -> None:
        assert self.GITHUB not in ALL.text(f"x{before}{self.GITHUB} y")

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            (r'password: "hunter2\"Zebra9", x', 'password: "[redacted]", x'),
            (r"password='hunter2\'Zebra9' x", "password='[redacted]' x"),
            (r'{"password": "bob\\hunter2Zebra", "n": 1}', '{"password": "[redacted]", "n": 1}'),
            (r"{\"password\": \"hunter2Zebra\", \"n\": 1}", r"{\"password\": \"[redacted]\", \"n\": 1}"),
            (r'"say password=\"hunter2Zebra\" aloud"', r'"say password=\"[redacted]\" aloud"'),
            (r'"password = \'hunter2Zebra\nand so on\'"', r'"password = \'[redacted]\nand so on\'"'),
        ],
    )
    def test_escapes_in_a_value_are_part_of_it(self, text: str, shown: str) -> None:
        assert re.sub(r"\[redacted:[^]]*\]", "[redacted]", ALL.text(text)) == shown
        for at in range(1, len(text)):
            stream = Stream(ALL)
            pieces = stream.feed(text[:at]) + stream.feed(text[at:]) + stream.flush()
            assert re.sub(r"\[redacted:[^]]*\]", "[redacted]", pieces) == shown, at

    def test_tokens_side_by_side_take_no_longer_each(self) -> None:
        token = "nfp_k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOpAsDfG"
        shown = ALL.text(token * 2000)
        assert "nfp_" not in shown

    @settings(max_examples=30)
    @given(st.sampled_from(SAMPLES), st.lists(st.integers(1, 9), min_size=60, max_size=60))
    def test_streams_in_any_pieces(self, chosen: tuple[Rule, str], sizes: list[int]) -> None:
        plain, secret = plain_and_secret(chosen[1])
        text, at, stream, shown = f"it said {plain} and\nwent on", 0, Stream(ALL), ""
        for size in sizes * 20:
            if at >= len(text):
                break
            shown += stream.feed(text[at : at + size])
            at += size
        shown += stream.flush()
        core = secret.strip()
        for start in range(16, len(core) - 12):
            assert core[start : start + 12] not in shown, shown

    def test_a_token_without_end_is_not_held_without_end(self) -> None:
        stream = Stream(ALL)
        shown = (
            "".join(stream.feed("sk-ant-" if not n else "abcd1234") for n in range(2000))
            + stream.feed(" after")
            + stream.flush()
        )
        assert shown.count("abcd1234") == 0
        assert shown.endswith(" after")

    @pytest.mark.parametrize("payload", [1_900, 2_100, 6_000])
    @pytest.mark.parametrize("step", [7, 400])
    def test_a_long_web_token_is_never_let_through(self, payload: int, step: int) -> None:
        middle = "".join(f"{number:x}Q" for number in range(payload))[:payload]
        text = f"it said eyJhbGciOiJIUzI1NiJ9.eyJ{middle}.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P and went on"
        stream = Stream(ALL)
        shown = "".join(stream.feed(text[at : at + step]) for at in range(0, len(text), step)) + stream.flush()
        assert not re.search(r"[A-Za-z0-9_]{16}", shown.replace("redacted:jwt:", "")), shown
        assert shown.startswith("it said [redacted:jwt:")
        assert shown.endswith(" and went on")

    @pytest.mark.parametrize("own", [False, True])
    @pytest.mark.parametrize("padding", range(2_000, 2_060, 4))
    def test_what_was_held_for_long_takes_nothing_with_it(self, padding: int, own: bool) -> None:
        """A line without a space that looks like a secret early on; one of a user with patterns, which are tried on whole lines."""
        patterns = {"acme": Pattern("acme_[0-9a-f]{8}")} if own else {}
        filling = ("word " if own else '"k":1,') * 500
        text = f'{{"a":"sk-x",{filling[:padding]}"{self.GITHUB}","acme_0123abcd"}}\n'
        stream = Stream(redactor(patterns=patterns))
        shown = "".join(stream.feed(text[at : at + 16]) for at in range(0, len(text), 16)) + stream.flush()
        assert self.GITHUB[:12] not in shown
        assert self.GITHUB[-12:] not in shown
        assert ("acme_0123" in shown) is not own

    def test_data_that_holds_itself_or_others(self, tmp_path: Path) -> None:
        with FileStore(tmp_path).start("x") as task:
            cyclic: dict[str, object] = {}
            cyclic["a"] = cyclic
            with pytest.raises(InvalidValue):
                task.note(data=cyclic)
            text = type("Text", (str,), {})(self.GITHUB)
            task.note(
                data={self.GITHUB: 1, "t": (self.GITHUB,), "s": text, "password": 'hunter"2Zebra\n99x'}, title=text
            )
            with pytest.raises(InvalidValue):
                task.note(labels={self.GITHUB: "x"})
            task.turn("dev", model=self.GITHUB).leave()
        TestNothingReachesTheDisk.nowhere(tmp_path, [self.GITHUB, 'hunter\\"2Zebra', "2Zebra"])

    def test_own_patterns_leave_what_programs_read_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MINE", "success")
        home = Path(os.environ["XDG_CONFIG_HOME"]) / "rawko"
        home.mkdir(parents=True)
        (home / "config.yaml").write_text(
            "redact:\n  env: [MINE]\n  patterns:\n    hex: '[0-9a-f]{40,}'\n    acme: 'ACME-[0-9]{20}'\n"
        )
        store = FileStore(tmp_path)
        with store.start("x") as task:
            task.add_turn(Turn(number=1, agent="dev", tools=(ToolCall("x", output="long " * 5000),)))
            task.finish("success", "a success")
        assert [verdict.faults for verdict in store.verify()] == [[]]
        assert store.turn_output(store.turn(task.id, 1).tools[0]) == "long " * 5000  # type: ignore[union-attr,arg-type]
        assert store.summary(task.id).status == "completed"
        long = "x" * 4090 + "ACME-" + "1" * 20 + "y" * 3000
        assert "ACME-1" not in store.redactor.text(long)
