"""The [Diff] section: what a turn changed, and that nothing in it is mistaken for something else."""

import subprocess
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawko_state.errors import InvalidValue
from rawko_state.format.diffs import (
    compared,
    diff_text,
    emit_diffs,
    parse_diffs,
    replacement,
    structured,
    unified,
)
from rawko_state.format.records import emit_blocks, scan_bytes
from rawko_state.model.entries import Diff, FileTouch, Turn, touched
from tests.support.strategies import DIFF_TEXT, DIFFS

EDIT = """\
--- a/calc.py
+++ b/calc.py
@@ -1,3 +1,3 @@
 def add(a, b):
-    return a - b
+    return a + b
 """


def test_a_diff_is_read_as_it_stands() -> None:
    (diff,) = parse_diffs(EDIT) or ()
    assert (diff.old, diff.new, diff.added, diff.removed) == ("calc.py", "calc.py", 1, 1)
    assert diff_text(diff) == EDIT


def test_file_lines_are_escaped_and_added_lines_are_not_so_that_grep_finds_what_was_written() -> None:
    turn = Turn(number=1, agent="a", diffs=(compared("x.sql", "-- a\n", "total = round(price)\n"),))
    data = emit_blocks([turn])
    assert b"\n\\--- a/x.sql\n+++ b/x.sql\n@@ -1 +1 @@\n\\--- a\n+total = round(price)\n" in data
    records, _ = scan_bytes(data)
    (entry,) = [block.entry(lambda at, size: data[at : at + size]) for record in records for block in record.blocks]
    assert isinstance(entry, Turn)
    assert entry.diffs == turn.diffs


@given(st.lists(DIFFS, min_size=1, max_size=4))
def test_diffs_are_read_back_as_they_were_written(diffs: list[Diff]) -> None:
    assert parse_diffs(emit_diffs(diffs)) == tuple(diffs)


def _applied(hunks: str, before: str) -> str:
    """Applies hunks to a text, by the book."""
    old, out, at = before.split("\n"), list[str](), 0
    unterminated = {"-": False, "+": False}
    sign = ""
    for line in hunks.split("\n") if hunks else ():
        if line.startswith("@@ "):
            first, length = [*line.split()[1][1:].split(","), "1"][:2]
            start = int(first) - (length != "0")
            out += old[at:start]
            at = start
        elif line.startswith("\\"):
            for each in "-+" if sign == " " else sign:
                unterminated[each] = True
        else:
            sign = line[0]
            assert sign in " -+"
            if sign in " -":
                assert old[at] == line[1:]
                at += 1
            if sign in " +":
                out.append(line[1:])
    rest = old[at:]
    if unterminated["+"]:
        return "\n".join(out)
    if unterminated["-"] or not rest:
        rest = [""]
    return "\n".join(out + rest)


@given(DIFF_TEXT, DIFF_TEXT)
def test_a_diff_leads_from_the_old_text_to_the_new_one(before: str, after: str) -> None:
    diff = compared("x", before, after)
    if after:
        assert _applied(diff.hunks, before) == after
    assert (diff.hunks == "") == (before == after)


@given(DIFF_TEXT, DIFF_TEXT)
def test_diffs_of_other_programs_are_read(before: str, after: str) -> None:
    diff = compared("x y.py", before, after)
    text = f"diff --git a/x b/x\nindex 1..2 100644\n{diff_text(diff)}\n"
    assert unified(text) == (diff,)
    if diff.hunks:
        assert unified(diff.hunks, "x y.py") == (diff,)


def test_a_diff_applies_with_patch(tmp_path: Path) -> None:
    before = "".join(f"line {n}\n" for n in range(60))
    after = before.replace("line 7\n", "seven\n").replace("line 40\n", "").removesuffix("\n")
    (tmp_path / "f").write_text(before)
    text = diff_text(compared("f", before, after)) + "\n"
    subprocess.run(["git", "apply", "-p1", "--unsafe-paths"], cwd=tmp_path, input=text, text=True, check=True)
    assert (tmp_path / "f").read_text() == after


def test_a_large_difference_takes_no_time_and_says_the_same() -> None:
    before, after = "".join(f"{n}\n" for n in range(30_000)), "".join(f"{n} x\n" for n in range(30_000))
    diff = compared("x", "same\n" + before, "same\n" + after)
    assert (diff.added, diff.removed) == (30_000, 30_000)
    assert _applied(diff.hunks, "same\n" + before) == "same\n" + after


def test_a_shortened_hunk_is_still_a_diff() -> None:
    """Redaction replaces a key of many lines by one tag."""
    added = diff_text(compared("key.pem", None, "BEGIN\n1\n2\n3\nEND\n"))
    text = added.replace("BEGIN\n+1\n+2\n+3\n+END", "[redacted:private-key:1234]") + "\n" + EDIT
    assert [diff.path for diff in parse_diffs(text) or ()] == ["key.pem", "calc.py"]


@pytest.mark.parametrize("text", ["", "hello", "--- a/x", "--- a/x\n+++ b/x\nhello", EDIT + "\nand more"])
def test_what_is_no_diff_stays_text(text: str) -> None:
    assert parse_diffs(text) is None


def test_positions_that_nobody_states_are_not_invented() -> None:
    diff = replacement("x", "a\nold\nb", "a\nnew\nb")
    assert diff.hunks == "@@ -1,3 +1,3 @@ position unknown\n a\n-old\n+new\n b"


def test_structured_hunks() -> None:
    diff = structured("x", [(5, 5, [" a", "-b", "+c", "+d"])])
    assert diff.hunks == "@@ -5,2 +5,3 @@\n a\n-b\n+c\n+d"
    assert structured("x", [(0, 1, ["+a"])], created=True).old is None


def test_bad_diffs_are_refused() -> None:
    with pytest.raises(InvalidValue, match="does not name the file"):
        unified("@@ -1 +1 @@\n-a\n+b")
    with pytest.raises(InvalidValue, match="did not exist"):
        compared("x", None, None)


def test_what_a_diff_changes_counts_as_touched() -> None:
    turn = Turn(number=1, agent="a", diffs=(compared("x", "a", "b"), compared("y", "a", None)))
    assert touched(turn) == (FileTouch("write", "x"), FileTouch("delete", "y"))
    assert touched(Turn(number=1, agent="a", files=(FileTouch("write", "x"),), diffs=turn.diffs[:1])) == (
        FileTouch("write", "x"),
    )


def test_lines_that_are_the_same_are_kept_once() -> None:
    """Millions of values take gigabytes, and freeing them keeps other threads waiting."""
    before = "a\n" * 100_000
    tracemalloc.start()
    try:
        found = compared("x", before, "b\n")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found.removed, found.added, found.hunks.count("\n-a")) == (100_000, 1, 100_000)
    assert peak < 8 << 20
