"""A file is read in pieces. Where a piece ends must not matter, whatever stands there."""

import io

import pytest

from rawko_state.format import scan as scanning
from rawko_state.format import text as texts
from rawko_state.format.records import emit_record
from rawko_state.format.scan import Scan
from rawko_state.format.seal import GENESIS
from rawko_state.model.entries import TaskHeader, Turn
from tests.support.processes import ROOT


def seen(data: bytes) -> list[tuple[object, ...]]:
    scan = Scan(io.BytesIO(data).read)
    records = [
        (record.kind, record.offset, record.length, record.seal, record.torn, len(record.blocks)) for record in scan
    ]
    return [*records, (scan.tail_offset, scan.tail_seal, sorted((p.offset, p.code) for p in scan.problems))]


def task() -> bytes:
    """Turns whose sections are longer than what a scan keeps in memory."""
    data, seal = emit_record([TaskHeader(id="abc123", format=1, status="running")], GENESIS)
    for number in range(1, 5):
        turn = Turn(number=number, agent="dev", content="x\n" * 40 * number, payload="y" * 90)
        record, seal = emit_record([turn], seal)
        data += record
    return data


@pytest.mark.parametrize("inline", [16, 1 << 16])
def test_a_seal_across_two_pieces_is_no_damage(monkeypatch: pytest.MonkeyPatch, inline: int) -> None:
    data = task()
    whole = seen(data)
    assert {kind for kind, *_ in whole[:-1]} == {"sealed"}
    monkeypatch.setattr(scanning, "INLINE", inline)
    monkeypatch.setattr(scanning, "HEADER_LIMIT", 200)  # it is read at once
    for size in range(1, 400, 3):
        monkeypatch.setattr(scanning, "CHUNK", size)
        assert seen(data) == whole, size


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "fixtures" / "format").glob("*.task")))
def test_every_golden_file_reads_the_same_in_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    data = (ROOT / "fixtures" / "format" / name).read_bytes()
    whole = seen(data)
    monkeypatch.setattr(scanning, "INLINE", 8)
    monkeypatch.setattr(scanning, "HEADER_LIMIT", 600)
    for size in (*range(1, 60), 100, 1000):
        monkeypatch.setattr(scanning, "CHUNK", size)
        assert seen(data) == whole, size


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_a_long_text_is_escaped_like_a_short_one(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    text = "=== a ===\n\\=== b\n\n[Turn 1] x\n--- c\nplain\n  [Not]\n\\\\[D]\n" * 3
    short = texts.escape(text)
    assert short != text
    monkeypatch.setattr(texts, "_SLICE", size)
    assert texts.escape(text) == short
    assert texts.escape(text.strip()) == short.strip()
