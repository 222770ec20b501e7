"""Sessions that go on with another one: each becomes a child of that one, with only its own turns.

Some agents name the session that a fork goes on with, and the place in it. Others copy the records so far into a new file. The
copies have the same ids, and nothing else may say that there was a fork. So sessions whose first records have the same id are
compared, and the one that went its own way first is taken for the original. A fork of a session that was compacted begins with
the compaction, so its first id is looked for in the other sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from rawko_state.exchange.transcript import Session, Step, Usage, holds, is_session_id
from rawko_state.exchange.turns import TurnBuilder, told_until
from rawko_state.model.entries import Turn
from rawko_state.model.frozen import replace

if TYPE_CHECKING:
    from rawko_state.store.contract import Store

_FEW: Final = 50
"""The first record with an id is among these."""
_TOGETHER: Final = timedelta(seconds=1)
"""Records of one moment may be written in any order."""
_ALWAYS: Final = datetime.min.replace(tzinfo=timezone.utc)


class Fork(NamedTuple):
    parent: str
    """The key of the session that it was forked from."""
    place: int
    """After the last record that it shares with it."""
    turns: int
    """How many turns those are."""
    loose: tuple[Step, ...]
    """Records before that place that are its own: they belong to no turn."""
    is_copy: bool = False
    """It has nothing of its own, so there is nothing to record."""
    answers: int = 0
    """How many of these turns are the parent's own, and not of the user."""
    spent: Usage | None = None
    """What the parent had used by then. The totals of the fork go on from there."""


class _Records(NamedTuple):
    session: Session
    places: dict[str, int]
    """The place after each record, by its id."""
    times: list[datetime | None]
    told: str
    """The session that its records name."""
    forked: str | None
    """The session that it was forked from, if its records say so."""
    is_copied: bool
    """Whether something was noted in it before its first records were made, or its records name another session."""


def forks(found: Iterable[Session], wanted: Sequence[Session]) -> dict[str, Fork]:
    """Those of the wanted sessions that are forks of one that was found, by their keys."""
    if not wanted:
        return {}
    by_root: dict[str, list[Session]] = {}
    named: dict[str, Session] = {}
    bases: dict[str, tuple[str, int]] = {}
    headless = set[str]()
    for session in found:
        root, base, is_headless = _root(session) if session.parent is None else (None, None, False)
        named[session.key] = session
        if base is not None:
            bases[session.key] = base
        elif root is not None:
            by_root.setdefault(root, []).append(session)
            headless |= {root} if is_headless else set()
    _join(by_root, headless)
    keys = {session.key for session in wanted}
    made = {
        key: Fork(
            bases[key][0], 0, _turns_before(key, bases, named), (),
            answers=_turns_until(named[bases[key][0]], bases[key][1])[1],
        )
        for key in bases
        if key in keys and bases[key][0] in named
    }  # fmt: skip
    for group in by_root.values():
        if len(group) > 1 and any(session.key in keys for session in group):
            made.update((key, fork) for key, fork in _compared(group) if key in keys)
    return made


def _root(session: Session) -> tuple[str | None, tuple[str, int] | None, bool]:
    """The id of the first record that has one; or the session that this one goes on with, and the place in it, if it says so.
    And whether the first record is a compaction, which must have had something before it."""
    root, is_headless = None, False
    try:
        own = (step for _, step in session.steps(0, []) if "continues" not in step.facts)
        for step in islice(own, _FEW):
            base, place = step.facts.get("forked"), step.facts.get("forked_at", "")
            if base is not None and place.isdecimal():
                return None, (base, int(place)), False
            root = root or step.key
            if root is not None:
                is_headless = step.aside is not None
                break
    except OSError:
        pass
    return root, None, is_headless


def _join(by_root: dict[str, list[Session]], headless: set[str]) -> None:
    """Puts sessions that begin with a compaction beside those in which it happened."""
    for root in headless:
        group = by_root.pop(root)
        there = (one for one, others in by_root.items() if any(holds(session.path, root) for session in others))
        by_root.setdefault(next(there, root), []).extend(group)


def _turns_before(key: str, bases: Mapping[str, tuple[str, int]], named: Mapping[str, Session]) -> int:
    """How many turns came before a fork: those of the session that it goes on with, up to the place, and of what that one is a
    fork of in turn."""
    turns, seen = 0, set[str]()
    while key in bases and key not in seen:
        seen.add(key)
        key, place = bases[key]
        turns += _turns_until(named[key], place)[0] if key in named else 0
    return turns


def _turns_until(session: Session, place: int, start: int = 0, *, only_keyed: bool = False) -> tuple[int, int]:
    """How many turns a session has up to a place, and how many of them are not of the user."""

    def before(_: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
        for at, step in session.steps(start, wrong):
            if at > place:
                return
            if step.key is not None or not only_keyed:
                yield at, step

    builder = TurnBuilder(replace(session, read=before), start, (), [])
    agents = [entry.agent for record in builder.turns() for entry in record if isinstance(entry, Turn)]
    return len(agents), sum(agent != "user" for agent in agents)


def _compared(group: Sequence[Session]) -> Iterator[tuple[str, Fork]]:
    found = [_records(session) for session in group]
    # The original has nothing of its own, or went its own way first.
    records = sorted(
        found,
        key=lambda each: (
            _generation(each, found), each.is_copied, _own_since(each, found), len(each.places), each.session.key
        ),
    )  # fmt: skip
    made: dict[str, Fork] = {}
    for number, child in enumerate(records):
        shared = [(_shared(child, other), other) for other in records[:number]]
        if not shared:
            continue
        most, parent = max(shared, key=lambda pair: pair[0])
        is_copy = most == len(child.places)
        # Without a word of where they come from, the same records make no copy.
        if most and (not is_copy or parent.session.key in (child.told, child.forked)):
            made[child.session.key] = _fork(child, parent, most, made.get(parent.session.key))
    yield from made.items()


def _records(session: Session) -> _Records:
    places: dict[str, int] = {}
    times: list[datetime | None] = []
    facts: dict[str, str] = {}
    noted: datetime | None = None
    is_copied = False
    for place, step in session.steps(0, []):
        facts = {**step.facts, **facts}
        if step.key is not None and step.key not in places:
            places[step.key] = place
            times.append(step.at)
            is_copied = is_copied or (noted is not None and step.at is not None and step.at < noted - _TOGETHER)
        elif step.key is None and not places:
            noted = step.at or noted
    told = facts.get("session", "")
    told = told if is_session_id(told) else session.key
    return _Records(session, places, times, told, facts.get("forked"), is_copied or told != session.key)


def _generation(each: _Records, records: Sequence[_Records]) -> int:
    """How many forks led to a session, as far as records say."""
    by_key = {other.session.key: other.forked for other in records}
    seen, above = set[str](), each.forked
    while above in by_key and above not in seen:
        seen.add(above)
        above = by_key[above]
    return len(seen) if above is None or above in seen else len(seen) + 1


def _shared(one: _Records, other: _Records) -> int:
    """How many records, from its first one on, a session has in common with another one. That one may have more between them, as
    a branch that was left is not copied."""
    return next((n for n, key in enumerate(one.places) if key not in other.places), len(one.places))


def _own_since(each: _Records, records: Sequence[_Records]) -> datetime:
    most = max(_shared(each, other) for other in records if other is not each)
    return next((at for at in each.times[most:] if at is not None), _ALWAYS)


def _fork(child: _Records, parent: _Records, shared: int, above: Fork | None) -> Fork:
    """``above``: what the parent is a fork of in turn."""
    copied = list(child.places)[:shared]
    place, left = child.places[copied[-1]], max(parent.places[key] for key in copied)
    before = 0 if above is None else above.turns
    turns, answers = _turns_until(parent.session, left, 0 if above is None else above.place, only_keyed=True)
    loose = tuple(step for at, step in child.session.steps(0, []) if at <= place and step.key is None)
    is_copy = shared == len(child.places)
    spent = _spent(parent.session, left) or (None if above is None else above.spent)
    return Fork(parent.session.key, place, before + turns, loose, is_copy, answers, spent)


def _spent(session: Session, place: int) -> Usage | None:
    """What a session had used when it was forked after a place: agents say so when they end, behind their last record."""
    own = (at - 1 for at, step in session.steps(place, []) if step.key is not None)
    return told_until(session, next(own, session.end()))


def placed(store: Store, task: str | None, fork: Fork | None) -> Fork | None:
    """A fork at the turn of its parent's task. There, a prompt is a request and no turn, if the session was recorded in several
    runs. ``task``: the parent's, if it is there already."""
    if task is None or fork is None or not fork.answers:
        return fork
    rows, _ = store.turn_rows(task)
    turn = next(islice((row.turn for row in rows if row.agent != "user"), fork.answers - 1, None), None)
    return fork if turn is None else fork._replace(turns=turn)
