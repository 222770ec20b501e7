"""Sessions that go on with another one: each becomes a child of that one, with only its own turns.

Some agents name the session that a fork goes on with, and the place in it. Others copy the records so far into a new file. The
copies have the same ids, and nothing else may say that there was a fork. So sessions whose first records have the same id are
compared, and the one that went its own way first is taken for the original.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import islice
from typing import Final, NamedTuple

from rawko_state.exchange.transcript import Session, Step
from rawko_state.exchange.turns import TurnBuilder
from rawko_state.model.entries import Turn
from rawko_state.model.frozen import replace

_FEW: Final = 50
"""The first record with an id is among these."""
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


class _Records(NamedTuple):
    session: Session
    keys: list[str]
    places: list[int]
    times: list[datetime | None]


def forks(found: Iterable[Session], wanted: Sequence[Session]) -> dict[str, Fork]:
    """Those of the wanted sessions that are forks of one that was found, by their keys."""
    if not wanted:
        return {}
    by_root: dict[str, list[Session]] = {}
    named: dict[str, Session] = {}
    bases: dict[str, tuple[str, int]] = {}
    for session in found:
        root, base = _root(session) if session.parent is None else (None, None)
        named[session.key] = session
        if base is not None:
            bases[session.key] = base
        elif root is not None:
            by_root.setdefault(root, []).append(session)
    keys = {session.key for session in wanted}
    made = {
        key: Fork(bases[key][0], 0, _turns_before(key, bases, named), ())
        for key in bases
        if key in keys and bases[key][0] in named
    }
    for group in by_root.values():
        if len(group) > 1 and any(session.key in keys for session in group):
            made.update((key, fork) for key, fork in _compared(group) if key in keys)
    return made


def _root(session: Session) -> tuple[str | None, tuple[str, int] | None]:
    """The id of the first record that has one; or the session that this one goes on with, and the place in it, if it says so."""
    root = None
    try:
        own = (step for _, step in session.steps(0, []) if "continues" not in step.facts)
        for step in islice(own, _FEW):
            base, place = step.facts.get("forked"), step.facts.get("forked_at", "")
            if base is not None and place.isdecimal():
                return None, (base, int(place))
            root = root or step.key
            if root is not None:
                break
    except OSError:
        pass
    return root, None


def _turns_before(key: str, bases: Mapping[str, tuple[str, int]], named: Mapping[str, Session]) -> int:
    """How many turns came before a fork: those of the session that it goes on with, up to the place, and of what that one is a
    fork of in turn."""
    turns, seen = 0, set[str]()
    while key in bases and key not in seen:
        seen.add(key)
        key, place = bases[key]
        turns += _turns_until(named[key], place) if key in named else 0
    return turns


def _turns_until(session: Session, place: int, *, only_keyed: bool = False) -> int:
    def before(_: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
        for at, step in session.steps(start, wrong):
            if at > place:
                return
            if step.key is not None or not only_keyed:
                yield at, step

    builder = TurnBuilder(replace(session, read=before), 0, (), [])
    return sum(isinstance(entry, Turn) for record in builder.turns() for entry in record)


def _compared(group: Sequence[Session]) -> Iterator[tuple[str, Fork]]:
    found = [_records(session) for session in group]
    # The original has nothing of its own, or went its own way first.
    records = sorted(found, key=lambda each: (_own_since(each, found), len(each.keys), each.session.key))
    for number, child in enumerate(records):
        shared = [(_shared(child, other), other) for other in records[:number]]
        if not shared:
            continue
        most, parent = max(shared, key=lambda pair: pair[0])
        if 0 < most < len(child.keys):  # a mere copy is no fork
            yield child.session.key, _fork(child, parent.session, child.places[most - 1])


def _records(session: Session) -> _Records:
    found = _Records(session, [], [], [])
    for place, step in session.steps(0, []):
        if step.key is not None:
            found.keys.append(step.key)
            found.places.append(place)
            found.times.append(step.at)
    return found


def _shared(one: _Records, other: _Records) -> int:
    """How many records two sessions have in common, from the first one on."""
    return next(
        (n for n, (mine, theirs) in enumerate(zip(one.keys, other.keys, strict=False)) if mine != theirs),
        min(len(one.keys), len(other.keys)),
    )


def _own_since(each: _Records, records: Sequence[_Records]) -> datetime:
    most = max(_shared(each, other) for other in records if other is not each)
    return next((at for at in each.times[most:] if at is not None), _ALWAYS)


def _fork(child: _Records, parent: Session, place: int) -> Fork:
    turns = _turns_until(child.session, place, only_keyed=True)
    loose = tuple(step for at, step in child.session.steps(0, []) if at <= place and step.key is None)
    return Fork(parent.key, place, turns, loose)
