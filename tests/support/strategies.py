"""Hypothesis strategies for everything that the model allows."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal

from hypothesis import strategies as st

from rawko_state.format.diffs import compared
from rawko_state.format.lines import _TIMED
from rawko_state.format.records import emit_unsealed
from rawko_state.model import entries as m

PIECES = st.sampled_from(
    [
        "=== ", "--- ", "[A", "[End 0123456789abcdef]", "[Content]", "[Content json]", "[Tool Log]", "\\", "\\\\", "\n", "\n\n",
        "\r", "\x00", "\ud800", "\ud83d", "\ude00", "\u2028", "\x85", "\x0c", "\x1b", "=== TORN 5 ===", "--- Turn 1: a ---",
        "=== RESULT ===", "=== TASK abc123 ===", "    | ", "    = {}", "    @ ", "  | ", "  - ", "Status: complete", "User: ",
        " -> ", "10:30:05 a.b c -> d", "\t", '"', "[", "]", ":", "x", "文", "Format: 1", "...",
    ]
)  # fmt: skip

NESTED = st.just(
    emit_unsealed(
        [m.TaskHeader(id="inner1", status="completed"), m.Turn(number=1, agent="a", content="[Content]\n\\=== X")]
    ).decode()
)


def text() -> st.SearchStrategy[str]:
    any_character = st.characters(codec=None, exclude_categories=())
    return st.one_of(
        st.lists(st.one_of(PIECES, st.text(any_character, max_size=3)), max_size=12).map("".join),
        st.text(any_character, max_size=20),
        NESTED,
    )


def line() -> st.SearchStrategy[str]:
    """A value that must be one line without control characters: agent names, markers."""
    characters = st.characters(exclude_categories=("Cs", "Cc"))
    return st.text(characters, min_size=1, max_size=20)


def times() -> st.SearchStrategy[datetime]:
    return st.datetimes(timezones=st.just(timezone.utc))


def maybe(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | strategy


KEYS = st.from_regex(r"[A-Za-z0-9_.-]{1,8}", fullmatch=True)
DURATIONS = st.integers(0, 10**12)
COUNTS = st.integers(0, 10**12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text(), inner, max_size=3),
    max_leaves=6,
)
PRESENT_JSON = JSON.filter(lambda value: value is not None and value != () and value != {})
CLOCK = st.from_regex(r"[0-9]{2}:[0-9]{2}:[0-9]{2}", fullmatch=True)
RAW_LINE = st.text(st.characters(exclude_characters="\n", exclude_categories=("Cs",)), max_size=12).filter(
    lambda line: not line.startswith("    ") and not _TIMED.fullmatch(line)
)
MORE = st.dictionaries(text().filter(lambda k: k not in {"tool", "args", "result", "output", "time"}), JSON, max_size=2)
HEADINGS = (
    st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=10)
    .map(lambda rest: "Q" + rest)
    .filter(lambda heading: not heading.endswith(" json"))
)
SECTIONS = st.lists(st.builds(m.Section, HEADINGS, text()), max_size=2).map(tuple)
EXTRA = st.lists(
    st.builds(
        m.Field,
        st.from_regex(r"X-[A-Za-z0-9]{1,5}", fullmatch=True),
        text(),
        st.lists(text(), max_size=2).map(tuple),
    ),
    max_size=2,
).map(tuple)

TOOL_CALLS = st.builds(
    m.ToolCall,
    tool=text(),
    args=text(),
    result=maybe(text()),
    time=maybe(CLOCK),
    output=maybe(text()),
    blob=maybe(st.builds(m.Blob, st.from_regex(r"[0-9a-f]{64}", fullmatch=True), COUNTS)),
    more=MORE,
)
QUESTIONS = st.builds(
    m.Question,
    text(),
    st.lists(text(), max_size=3).map(tuple),
    maybe(text()),
    maybe(times()),
    st.sampled_from(["question", "approval"]),
)
PROGRESS = st.builds(m.Progress, text(), st.from_regex(r"[a-z]{1,6}", fullmatch=True), maybe(CLOCK))
TOUCHES = st.builds(m.FileTouch, st.sampled_from(["read", "write", "delete"]), text())
DIFF_TEXT = st.lists(
    st.sampled_from(["a\n", "b\n", "-- a/x\n", "++ b/x\n", "\n", "@@ -1 +1 @@\n", "=== x\n", "no end"]), max_size=9
).map("".join)
DIFFS = st.one_of(
    st.builds(compared, text(), DIFF_TEXT, DIFF_TEXT),
    st.builds(compared, text(), st.none(), DIFF_TEXT),
    st.builds(compared, text(), DIFF_TEXT, st.none()),
    st.builds(m.Diff, text(), text(), st.just(""), st.builds(m.Blob, st.just("a" * 64), COUNTS), COUNTS, COUNTS),
)


def turns() -> st.SearchStrategy[m.Turn]:
    return st.builds(
        m.Turn,
        number=st.integers(1, 10**6),
        agent=line(),
        selected=maybe(text()),
        decision=maybe(text()),
        reason=maybe(text()),
        guidance=maybe(text()),
        status=maybe(text()),
        duration_ms=maybe(DURATIONS),
        tool_calls=maybe(COUNTS),
        started=maybe(times()),
        model=maybe(text()),
        tokens=st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True), COUNTS, max_size=3),
        cost=maybe(st.builds(m.Money, st.decimals(0, 1000, places=4).map(Decimal))),
        by=maybe(text()),
        answers=maybe(COUNTS),
        content=maybe(text()),
        tools=st.lists(TOOL_CALLS | RAW_LINE, max_size=3).map(tuple).filter(lambda t: t != ("",)),
        diffs=st.lists(DIFFS, max_size=3).map(tuple),
        progress=st.lists(PROGRESS | RAW_LINE, max_size=2).map(tuple).filter(lambda t: t != ("",)),
        files=st.lists(TOUCHES, max_size=3).map(tuple),
        question=maybe(QUESTIONS),
        state=maybe(PRESENT_JSON),
        payload=maybe(text()),
        extra=EXTRA,
        sections=SECTIONS,
    )


def headers() -> st.SearchStrategy[m.TaskHeader]:
    return st.builds(
        m.TaskHeader,
        id=st.from_regex(r"[0-9a-z]{6}", fullmatch=True),
        created=maybe(times()),
        status=st.sampled_from(["running", "pending", "completed", "hibernating"]),
        duration_ms=maybe(DURATIONS),
        format=st.just(1),
        title=maybe(text()),
        parent=maybe(st.builds(m.Parent, st.from_regex(r"[0-9a-z]{6}", fullmatch=True), maybe(COUNTS))),
        agent=maybe(text()),
        cwd=maybe(text()),
        labels=st.dictionaries(KEYS, text(), max_size=3),
        user=maybe(text()),
        writer=maybe(text()),
        extra=EXTRA,
        sections=SECTIONS,
    )


def others() -> st.SearchStrategy[m.Entry]:
    return st.one_of(
        st.builds(m.Request, text=text(), by=maybe(text()), at=maybe(times()), extra=EXTRA, sections=SECTIONS),
        st.builds(m.Execution, extra=EXTRA),
        st.builds(
            m.Result,
            status=maybe(text()),
            completed=maybe(times()),
            duration_ms=maybe(DURATIONS),
            summary=maybe(text()),
            error=maybe(text()),
            files_modified=st.lists(text(), max_size=3).map(tuple),
            output=maybe(PRESENT_JSON),
            extra=EXTRA,
            sections=SECTIONS,
        ),
        st.builds(m.Resumed, at=maybe(times()), by=maybe(text()), agent=maybe(text()), reason=maybe(text())),
        st.builds(
            m.Note,
            at=maybe(times()),
            by=maybe(text()),
            title=maybe(text()),
            labels=st.dictionaries(KEYS, text(), max_size=3),
            unlabel=st.lists(KEYS, max_size=2).map(tuple),
            pinned=maybe(st.booleans()),
            status=maybe(text()),
            kind=maybe(text()),
            content=maybe(text()),
            data=maybe(PRESENT_JSON),
            sections=SECTIONS,
        ),
        st.builds(m.Unknown, marker=line().map(lambda rest: f"=== Z{rest}"), extra=EXTRA, sections=SECTIONS),
    )


def entries() -> st.SearchStrategy[m.Entry]:
    return st.one_of(turns(), others())


def files() -> st.SearchStrategy[list[list[m.Entry]]]:
    """A whole task: a header, then records of one or more blocks."""
    first = st.tuples(headers(), st.lists(others(), max_size=2)).map(lambda pair: [pair[0], *pair[1]])
    more = st.lists(st.lists(entries(), min_size=1, max_size=2), max_size=3)
    return st.tuples(first, more).map(lambda pair: [pair[0], *pair[1]])
