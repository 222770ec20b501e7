"""The format: what is written comes back, and whatever bytes come in, reading goes on."""

from __future__ import annotations

import io
import json
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawko_state.errors import InvalidValue
from rawko_state.format.blocks import parse_fields, parse_section
from rawko_state.format.records import emit_record, emit_unsealed, scan_bytes, seal_record
from rawko_state.format.scan import Scan
from rawko_state.format.seal import GENESIS
from rawko_state.format.text import decode, escape, unescape
from rawko_state.model import entries as m
from rawko_state.model.state import TaskState
from tests.support import second_reader, strategies
from tests.support.processes import ROOT

FORMAT = ROOT / "fixtures" / "format"
MANY = settings.default.max_examples
GOLDEN = sorted(FORMAT.glob("*.task"), key=lambda path: path.name)


def entries_of(data: bytes) -> list[m.Entry]:
    records, _ = scan_bytes(data)
    return [block.entry() for record in records for block in record.blocks]


def chain(records: list[list[m.Entry]]) -> bytes:
    data, parent = b"", GENESIS
    for record in records:
        more, parent = emit_record(record, parent)
        data += more
    return data


class TestRoundTrip:
    @given(strategies.files())
    def test_every_task_comes_back_as_it_was(self, records: list[list[m.Entry]]) -> None:
        found, problems = scan_bytes(chain(records))
        assert [[block.entry() for block in record.blocks] for record in found] == records
        assert {record.kind for record in found} == {"sealed"}
        assert not problems

    @given(strategies.files())
    @settings(max_examples=MANY // 5)
    def test_emitting_what_was_parsed_gives_the_same_bytes(self, records: list[list[m.Entry]]) -> None:
        data = chain(records)
        found, _ = scan_bytes(data)
        assert chain([[block.entry() for block in record.blocks] for record in found]) == data

    @given(strategies.text())
    def test_escaping_is_undone_and_hides_every_structural_line(self, text: str) -> None:
        escaped = escape(text)
        assert unescape(escaped) == text
        assert not re.search(r"(?m)^(=== |--- |\[[A-Z])", escaped)

    @given(strategies.files())
    @settings(max_examples=MANY // 10)
    def test_a_task_file_inside_a_turn_is_only_text(self, records: list[list[m.Entry]]) -> None:
        inner = chain(records).decode()
        outer = [[m.TaskHeader(id="outer1", status="running", format=1)], [m.Turn(number=1, agent="a", content=inner)]]
        found = entries_of(chain(outer))
        assert isinstance(found[1], m.Turn)
        assert found[1].content == inner

    @given(strategies.files())
    @settings(max_examples=MANY // 10)
    def test_every_line_but_nul_stays_text_for_grep(self, records: list[list[m.Entry]]) -> None:
        data = chain(records)
        assert b"\x00" not in data
        data.decode("utf-8")

    @pytest.mark.parametrize("marker", ["--- x\ny ---", "=== x\x00", "nothing"])
    def test_a_marker_that_is_not_one_line_is_refused(self, marker: str) -> None:
        with pytest.raises(InvalidValue):
            emit_record([m.Unknown(marker=marker)])

    @pytest.mark.parametrize("agent", ["a\nb", "", "a\x1b", "\ud800"])
    def test_an_agent_name_with_control_characters_is_refused(self, agent: str) -> None:
        with pytest.raises(InvalidValue):
            emit_record([m.Turn(number=1, agent=agent)])

    def test_a_section_cannot_pose_as_a_seal(self) -> None:
        with pytest.raises(InvalidValue):
            emit_record([m.Turn(number=1, agent="a", sections=(m.Section("End 0123456789abcdef", "x"),))])


class TestTheRfc:
    data = (FORMAT / "rfc-example.task").read_bytes()

    def test_parses_to_what_it_says(self) -> None:
        header, request, _, *turns, result = entries_of(self.data)
        assert isinstance(header, m.TaskHeader)
        assert (header.id, header.status, header.duration_ms) == ("abc123", "completed", 45_200)
        assert isinstance(request, m.Request)
        assert request.text == "Fix the login bug where users can't authenticate with SSO"
        assert [t.agent for t in turns if isinstance(t, m.Turn)] == [
            "arbiter", "planner", "arbiter", "developer", "arbiter", "reviewer", "arbiter",
        ]  # fmt: skip
        developer = turns[3]
        assert isinstance(developer, m.Turn)
        assert (developer.status, developer.duration_ms, developer.tool_calls) == ("complete", 23_100, 12)
        assert developer.tools[1] == m.ToolCall("filesystem.write", "auth/sso.rs", "2156 bytes", "10:30:18")
        assert developer.tools[-1] == "..."
        assert m.touched(developer) == (m.FileTouch("read", "auth/sso.rs"), m.FileTouch("write", "auth/sso.rs"))
        assert isinstance(result, m.Result)
        assert result.files_modified == ("auth/sso.rs", "tests/auth_test.rs")
        state = TaskState().apply_all([header, request, *turns, result])
        assert (state.status, state.duration_ms, state.turns, state.runs) == ("completed", 45_200, 7, 1)

    def test_is_emitted_again_byte_for_byte(self) -> None:
        assert emit_unsealed(entries_of(self.data)) == self.data


def neutral(data: bytes) -> dict[str, object]:
    """The reading in plain lists, as the second reader gives it."""
    scan = Scan(io.BytesIO(data).read)
    records = list(scan)
    shown = []
    for record in records:
        blocks = []
        for block in record.blocks:
            marker = decode(block.marker)
            fields, stray, _ = parse_fields(block.regions[0].data or b"", marker)
            sections = [["", stray.text]] if stray else []
            for region in block.regions[1:]:
                section = parse_section(region.title, region.data or b"")
                sections.append([section.heading, section.text])
            blocks.append(
                {"marker": marker, "fields": [[f.name, f.value, list(f.items)] for f in fields], "sections": sections}
            )
        shown.append(
            {"kind": record.kind, "offset": record.offset, "length": record.length, "seal": record.seal}
            | {"torn": record.torn, "blocks": blocks}
        )
    return {"sealed": scan.header.format is not None, "records": shown}


class TestGoldenFiles:
    @pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
    def test_read_as_they_always_were(self, path: Path) -> None:
        expected = json.loads(path.with_suffix(".json").read_text())
        assert json.loads(json.dumps(neutral(path.read_bytes()))) == expected

    @pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
    def test_the_second_reader_agrees(self, path: Path) -> None:
        assert second_reader.read(path.read_bytes()) == neutral(path.read_bytes())

    @given(st.sampled_from(GOLDEN), st.data())
    def test_the_second_reader_agrees_on_damaged_files(self, path: Path, data: st.DataObject) -> None:
        content = bytearray(path.read_bytes() or b"x")
        for _ in range(data.draw(st.integers(0, 2))):
            content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        damaged = bytes(content[: data.draw(st.integers(0, len(content)))])
        assert second_reader.read(damaged) == neutral(damaged)

    @given(strategies.files())
    @settings(max_examples=MANY // 5)
    def test_the_second_reader_agrees_on_whatever_is_written(self, records: list[list[m.Entry]]) -> None:
        assert second_reader.read(chain(records)) == neutral(chain(records))

    def test_the_example_in_the_documentation_is_a_golden_file(self) -> None:
        text = (ROOT / "docs" / "reference" / "format.md").read_text()
        assert (FORMAT / "torn-span.task").read_text() in text


class TestAnyBytes:
    @given(st.binary(max_size=300))
    def test_random_bytes_never_raise(self, data: bytes) -> None:
        _read_all(data)

    @given(st.lists(strategies.PIECES, max_size=30).map("".join))
    def test_random_structure_never_raises(self, text: str) -> None:
        _read_all(text.encode("utf-8", "surrogatepass"))

    @given(st.sampled_from(GOLDEN), st.data())
    def test_mutated_files_never_raise(self, path: Path, data: st.DataObject) -> None:
        content = bytearray(path.read_bytes() or b"x")
        for _ in range(data.draw(st.integers(1, 6))):
            at = data.draw(st.integers(0, max(0, len(content) - 1)))
            content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
        _read_all(bytes(content))

    @given(strategies.files(), st.integers(1, 40), st.data())
    @settings(max_examples=MANY // 5)
    def test_reading_in_pieces_gives_the_same(
        self, records: list[list[m.Entry]], size: int, data: st.DataObject
    ) -> None:
        content = chain(records)[: data.draw(st.integers(0, 2000))]
        stream = io.BytesIO(content)
        scan = Scan(lambda _: stream.read(size))
        in_pieces = [[block.entry() for block in record.blocks] for record in scan]
        whole, problems = scan_bytes(content)
        assert in_pieces == [[block.entry() for block in record.blocks] for record in whole]
        assert scan.problems == problems


def _read_all(data: bytes) -> None:
    records, problems = scan_bytes(data)
    end = 0
    for record in records:
        assert record.offset == end, "records leave no gap"
        end = record.end
        for block in record.blocks:
            block.entry()
    assert end == len(data)
    lines = data.count(b"\n") + 1
    assert all(1 <= problem.line <= lines for problem in problems)


class TestDamage:
    def test_every_flipped_bit_is_noticed_and_the_other_turns_stay_readable(self) -> None:
        records: list[list[m.Entry]] = [
            [m.TaskHeader(id="bits01", status="running", format=1, title="t"), m.Request(text="x"), m.Execution()],
            *[[m.Turn(number=n, agent="dev", status="complete", content=f"turn {n}\n=== x")] for n in range(1, 5)],
        ]
        good = chain(records)
        before = {e.content for e in entries_of(good) if isinstance(e, m.Turn)}
        for at in range(len(good)):
            for bit in range(8):
                data = bytearray(good)
                data[at] ^= 1 << bit
                found, problems = scan_bytes(bytes(data))
                entries = [block.entry() for record in found for block in record.blocks]
                header = next((e for e in entries if isinstance(e, m.TaskHeader)), None)
                copies_differ = header is None or (header.status, header.duration_ms, header.extra) != (
                    "running",
                    None,
                    (),
                )
                assert problems or copies_differ, f"bit {bit} of byte {at}"
                readable = {e.content for e in entries if isinstance(e, m.Turn)}
                assert len(before & readable) >= 3 or good[at : at + 1] == b"\n", f"bit {bit} of byte {at}"

    def test_a_file_with_only_bad_seals_is_read_in_bounded_memory(self) -> None:
        piece = b"--- Turn 1: a ---\n\n[End 0123456789abcdef]\n" * 1000
        head = chain([[m.TaskHeader(id="bits01", status="running", format=1)]])
        chunks = iter([head, *[piece] * 20])
        tracemalloc.start()
        count = sum(1 for _ in Scan(lambda _: next(chunks, b"")))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert count > 19_000
        assert peak < 30 * 1024 * 1024

    def test_a_torn_span_may_hold_any_number_of_bad_seals(self) -> None:
        head, seal = emit_record([m.TaskHeader(id="bits01", status="running", format=1)])
        torn = b"--- Turn 1: a ---\n\n[End 0123456789abcdef]\n" * 300
        span, seal = seal_record(torn + b"\n=== TORN %d ===\n\n" % len(torn), seal)
        turn, seal = emit_record([m.Turn(number=1, agent="a", content="after")], seal)
        records, problems = scan_bytes(head + span + turn)
        assert not problems
        assert [record.kind for record in records[-2:]] == ["torn", "sealed"]
        _read_all(head + span + turn)

    @pytest.mark.parametrize(
        ("piece", "pieces"), [(b"[A]\n", 1), (b"--- Turn 1: a ---\n[Content]\n" + b"x" * 4000 + b"\n\n", 200)]
    )
    def test_any_one_file_is_read_in_bounded_memory(self, piece: bytes, pieces: int) -> None:
        for head in (b"=== TASK abc123 ===\n\n", chain([[m.TaskHeader(id="bits01", status="running", format=1)]])):
            chunks = iter([head, *[piece * (1 + 2**18 // len(piece))] * pieces])
            tracemalloc.start()
            for _ in Scan(lambda _, chunks=chunks: next(chunks, b"")):
                pass
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 48 * 1024 * 1024


class TestStreaming:
    def test_a_very_large_turn_is_read_in_constant_memory(self) -> None:
        """One turn of 512 MB of text, and one line of as much, each left in the file as a span."""
        start = chain([[m.TaskHeader(id="huge01", status="running", format=1)]])
        for filler in (b"x" * 79 + b"\n", b"y" * 80):
            piece = filler * (CHUNKS_OF // 80)
            head = b"--- Turn 1: a ---\nStatus: complete\n\n[Content]\n"
            chunks = iter([start, head, *[piece] * (2**29 // len(piece)), b"\n\n"])
            tracemalloc.start()
            records = list(Scan(lambda _, chunks=chunks: next(chunks, b"")))
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 16 * 1024 * 1024
            turn = records[-1].blocks[0].entry()
            assert turn.large[0].heading == "Content"
            assert turn.large[0].length > 2**29 - 2**20

    def test_a_span_holds_exactly_the_body(self) -> None:
        content = "\n".join(f"line {n}" for n in range(200_000))
        data = chain(
            [[m.TaskHeader(id="huge01", status="running", format=1)], [m.Turn(number=1, agent="a", content=content)]]
        )
        block = scan_bytes(data)[0][1].blocks[0]
        (span,) = block.entry().large
        assert data[span.offset : span.offset + span.length] == content.encode() + b"\n\n"
        whole = block.entry(lambda offset, length: data[offset : offset + length])
        assert isinstance(whole, m.Turn)
        assert whole.content == content


CHUNKS_OF = 1 << 20


def test_a_sealed_file_can_be_read_on_from_any_seal() -> None:
    records: list[list[m.Entry]] = [[m.TaskHeader(id="from01", status="running", format=1)]]
    records += [[m.Turn(number=n, agent="a", content=str(n))] for n in range(1, 6)]
    data = chain(records)
    whole, _ = scan_bytes(data)
    for record in whole[:-1]:
        stream = io.BytesIO(data[record.end :])
        scan = Scan(stream.read, start=record.end, parent=record.seal or "")
        rest = list(scan)
        assert [(r.offset, r.length, r.seal) for r in rest] == [
            (r.offset, r.length, r.seal) for r in whole if r.offset >= record.end
        ]
        assert not scan.problems


def test_seal_record_leaves_out_the_copied_values() -> None:
    one, seal_one = emit_record([m.TaskHeader(id="copy01", status="running", format=1)])
    two, seal_two = emit_record([m.TaskHeader(id="copy01", status="completed", format=1, duration_ms=5)])
    assert seal_one == seal_two
    assert len(one) == len(two)
    assert seal_record(b"x", GENESIS)[1] != seal_record(b"y", GENESIS)[1]
