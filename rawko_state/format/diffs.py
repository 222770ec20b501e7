"""Unified diffs: what a turn changed in files. Reads and writes the ``[Diff]`` section, and makes diffs from two texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from rawko_state.errors import InvalidValue
from rawko_state.format.text import quote, unquote
from rawko_state.late import late
from rawko_state.model.entries import Blob, Diff

NOWHERE: Final = "/dev/null"
NO_END: Final = "\\ No newline at end of file"
POSITION_UNKNOWN: Final = "position unknown"
"""Behind the line numbers of a hunk whose source does not say where in the file it is."""
BEFORE_UNKNOWN: Final = "previous content unknown"
_CONTEXT: Final = 3
_MOST_COMPARED: Final = 4_000_000
"""Old lines times new lines. Larger differences are written as one replacement, which takes no time to find."""
_HUNK = late(r"@@ -([0-9]{1,9})(?:,([0-9]{1,9}))? \+([0-9]{1,9})(?:,([0-9]{1,9}))? @@.*")
_BLOB = late(r"@ ([0-9a-f]{64}) ([0-9]{1,15}) bytes, \+([0-9]{1,15}) -([0-9]{1,15})")


# The section


def emit_diffs(diffs: Sequence[Diff]) -> str:
    return "\n".join(diff_text(diff) for diff in diffs)


def diff_text(diff: Diff) -> str:
    """One diff as text, without a newline at the end."""
    lines = [f"--- {_write_path('a/', diff.old)}", f"+++ {_write_path('b/', diff.new)}"]
    if diff.blob is not None:
        lines.append(f"@ {diff.blob.sha256} {diff.blob.size} bytes, +{diff.added} -{diff.removed}")
    elif diff.hunks:
        lines.append(diff.hunks)
    return "\n".join(lines)


def parse_diffs(text: str) -> tuple[Diff, ...] | None:
    """None if the text is anything but diffs; then it stays a section that nobody interprets."""
    lines = text.split("\n")
    # Redaction may have shortened a hunk, so the counts in its first line are only believed if all of them fit.
    for exact in (True, False):
        found = _parse(lines, exact)
        if found is not None and emit_diffs(found) == text:
            return tuple(found)
    return None


def _parse(lines: Sequence[str], exact: bool) -> list[Diff] | None:
    found: list[Diff] = []
    at = 0
    while at < len(lines):
        if not _is_head(lines, at):
            return None
        old, new = _read_path(lines[at], "--- ", "a/"), _read_path(lines[at + 1], "+++ ", "b/")
        at += 2
        blob = _BLOB.fullmatch(lines[at]) if at < len(lines) else None
        if blob is not None:
            found.append(Diff(old, new, "", Blob(blob[1], int(blob[2])), int(blob[3]), int(blob[4])))
            at += 1
            continue
        start = at
        while at < len(lines) and _HUNK.fullmatch(lines[at]):
            end = _hunk_end(lines, at, exact)
            if end is None:
                return None
            at = end
        found.append(made_of(old, new, "\n".join(lines[start:at])))
    return found


def _is_head(lines: Sequence[str], at: int) -> bool:
    return lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ ")


def _hunk_end(lines: Sequence[str], at: int, exact: bool) -> int | None:
    """Where the hunk that begins at a line ends. None if its lines are not what its first line says."""
    match = _HUNK.fullmatch(lines[at])
    assert match is not None
    old, new = int(match[2] or 1), int(match[4] or 1)
    at += 1
    while at < len(lines) and (not exact or old > 0 or new > 0 or lines[at].startswith("\\")):
        sign = lines[at][:1]
        if sign not in (" ", "-", "+", "\\") or (not exact and _is_head(lines, at)):
            break
        old -= sign in (" ", "-")
        new -= sign in (" ", "+")
        at += 1
    return None if exact and (old or new) else at


def _write_path(side: str, path: str | None) -> str:
    return NOWHERE if path is None else quote(side + path)


def _read_path(line: str, mark: str, side: str) -> str | None:
    path = unquote(line[len(mark) :])
    return None if path == NOWHERE else path.removeprefix(side)


# Making diffs


def made_of(old: str | None, new: str | None, hunks: str) -> Diff:
    added, removed = (hunks.startswith(sign) + hunks.count(f"\n{sign}") for sign in "+-")
    return Diff(old, new, hunks, None, added, removed)


def compared(path: str, before: str | None, after: str | None) -> Diff:
    """The diff between two contents of a file. None: there was, or is, no such file."""
    if before is None and after is None:
        raise InvalidValue(f"Nothing changed in {path}: it did not exist before or after.")
    old, new = _lines(before or ""), _lines(after or "")
    hunks = "\n".join(line for hunk in _hunks(old, new) for line in hunk)
    return made_of(None if before is None else path, None if after is None else path, hunks)


def replacement(path: str, before: str, after: str) -> Diff:
    """The diff of a replaced piece of a file, whose position in the file is not known."""
    hunks = "\n".join(
        line
        for hunk in _hunks(_lines(before), _lines(after))
        for line in (f"{hunk[0]} {POSITION_UNKNOWN}", *hunk[1:])
        if line != NO_END  # the piece ends there, not the file
    )
    return made_of(path, path, hunks)


def positionless(path: str, hunks: Sequence[Sequence[str]]) -> Diff:
    """A diff from the lines of hunks, with their signs, whose positions in the file are not known."""
    lines = [line for body in hunks for line in (f"{_head(1, 1, body)} {POSITION_UNKNOWN}", *body)]
    return made_of(path, path, "\n".join(lines))


def overwritten(path: str, content: str) -> Diff:
    """The diff of a file that was written whole, when it is not known whether it was there before."""
    lines = ["+" + line for line in content.removesuffix("\n").split("\n")] if content else []
    return made_of(path, path, "\n".join([f"@@ -0,0 +1,{len(lines)} @@ {BEFORE_UNKNOWN}", *lines]) if lines else "")


def unified(text: str, path: str | None = None) -> tuple[Diff, ...]:
    """The diffs in a text that another program made: with its file lines, or only hunks of the file at ``path``."""
    found: list[Diff] = []
    old = new = path
    hunks: list[str] = []
    lines = text.removesuffix("\n").split("\n")
    at = 0
    begun = False

    def done() -> None:
        nonlocal hunks
        if begun or hunks:
            found.append(made_of(old, new, "\n".join(hunks)))
        hunks = []

    while at < len(lines):
        if _is_head(lines, at):
            done()
            old, new = (_their_path(lines[at][4:], "a/"), _their_path(lines[at + 1][4:], "b/"))
            begun, at = True, at + 2
        elif _HUNK.fullmatch(lines[at]):
            end = _hunk_end(lines, at, True) or _hunk_end(lines, at, False) or at + 1
            hunks += lines[at:end]
            at = end
        else:
            at += 1  # "diff --git", "index …", "Index: …" and the like
    done()
    if any(diff.path is None for diff in found):
        raise InvalidValue("The diff does not name the file it changes.")
    return tuple(found)


def patch_of(path: str, text: object, *, created: bool = False) -> tuple[Diff, ...]:
    """The diff in a patch of one file, whatever the patch calls the file. Nothing if the text has no hunks."""
    found = unified(text, path) if isinstance(text, str) else ()
    hunks = "\n".join(diff.hunks for diff in found if diff.hunks)
    return (made_of(None if created else path, path, hunks),) if hunks else ()


def _their_path(text: str, side: str) -> str | None:
    path = unquote(text.partition("\t")[0])
    return None if path == NOWHERE else path.removeprefix(side)


def structured(path: str, hunks: Sequence[tuple[int, int, Sequence[str]]], *, created: bool = False) -> Diff:
    """A diff from hunks: where each begins in the old and in the new file, and its lines with their signs."""
    lines: list[str] = []
    for old_start, new_start, body in hunks:
        lines += [_head(old_start, new_start, body), *(line.split("\n")[0] for line in body)]
    return made_of(None if created else path, path, "\n".join(lines))


def _head(old_start: int, new_start: int, body: Sequence[str]) -> str:
    old = sum(line[:1] in (" ", "-") for line in body)
    new = sum(line[:1] in (" ", "+") for line in body)
    return f"@@ -{_range(old_start, old)} +{_range(new_start, new)} @@"


def _range(start: int, length: int) -> str:
    return str(start) if length == 1 else f"{start},{length}"


def _lines(text: str) -> list[str]:
    """The lines, each with its newline; the last one may have none."""
    ended = _Within("", "\n")
    lines = text.split("\n")
    last = lines.pop()
    return [ended[line] for line in lines] + ([last] if last else [])


class _Within(dict[str, str]):
    """Lines between two texts. Lines that are the same are one value: millions of values take gigabytes, and freeing them keeps
    other threads waiting."""

    def __init__(self, before: str, after: str = "") -> None:
        self._before, self._after = before, after

    def __missing__(self, line: str) -> str:
        found = self[line] = f"{self._before}{line}{self._after}"
        return found


class _Ended(dict[str, tuple[str, ...]]):
    """Lines of a file as lines of a diff, which says so where the last one has no newline."""

    def __missing__(self, line: str) -> tuple[str, ...]:
        found = self[line] = (line[:-1],) if line.endswith("\n") else (line, NO_END)
        return found


def _hunks(old: list[str], new: list[str]) -> Iterator[list[str]]:
    first = 0
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    if first == len(old) == len(new):
        return
    # Only what differs is compared, with the lines around it.
    start, end = max(0, first - _CONTEXT), max(0, last - _CONTEXT)
    one, two = old[start : len(old) - end], new[start : len(new) - end]
    gone, come, ended = _Within("-"), _Within("+"), _Ended()
    for group in _groups(one, two, first - start, last - end):
        body: list[str] = []
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                body += [" " + line for line in one[i1:i2]]
            else:
                body += [gone[line] for line in islice(one, i1, i2)]
                body += [come[line] for line in islice(two, j1, j2)]
        _, i1, _, j1, _ = group[0]
        has_old, has_new = any(line[0] in " -" for line in body), any(line[0] in " +" for line in body)
        shown = [part for line in body for part in ended[line]]
        yield [_head(start + i1 + has_old, start + j1 + has_new, body), *shown]


def _groups(one: list[str], two: list[str], before: int, after: int) -> Iterator[list[tuple[str, int, int, int, int]]]:
    changed_one, changed_two = len(one) - before - after, len(two) - before - after
    if changed_one * changed_two > _MOST_COMPARED:
        yield [
            ("equal", 0, before, 0, before),
            ("replace", before, before + changed_one, before, before + changed_two),
            ("equal", len(one) - after, len(one), len(two) - after, len(two)),
        ]
        return
    import difflib  # 8 ms, and most turns edit nothing

    yield from difflib.SequenceMatcher(None, one, two, autojunk=False).get_grouped_opcodes(_CONTEXT)
