"""What the records of a LangGraph thread come to: its checkpoints, each as its difference from an earlier one, and its writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from langgraph.checkpoint.base import writes_sort_key

from rawko_state.integrations.graph_steps import GraphTeller
from rawko_state.integrations.patches import Patch, difference, patched, to_bytes, to_text

_SMALL: Final = 256
"""Bytes that are not worth the search for a difference."""
SKELETON: Final = ""
"""The checkpoint without its values, stored like one more channel. No channel has this name."""


@dataclass
class Saved:
    """One checkpoint: what differs from the one that it is based on."""

    parent: str | None
    base: str | None
    values: dict[str, tuple[str, bytes | list[Patch]]]
    names: frozenset[str]
    """The channels that have a value in it."""
    metadata: Any
    hidden: bool = False


@dataclass
class Thread:
    """What the records of a thread come to."""

    saved: dict[tuple[str, str], Saved] = field(default_factory=dict)
    writes: dict[tuple[str, str], dict[tuple[str, int], tuple[str, str, str, Any]]] = field(default_factory=dict)
    newest: dict[tuple[str, str], tuple[str, str, bytes]] = field(default_factory=dict)
    """By namespace and channel: the checkpoint whose value was last put together, its type and its bytes."""
    told: set[tuple[str, str]] = field(default_factory=set)
    """The checkpoints whose writes people have been told of: the next step was taken after them."""
    teller: GraphTeller | None = None

    def take(self, record: Any) -> None:
        ns = record["ns"]
        if "hide" in record:
            for each in record["hide"]:
                if (ns, each) in self.saved:
                    # Its writes stay: a channel that stores only what was added is put together from them.
                    self.saved[ns, each].hidden = True
        elif "writes" in record:
            known = self.writes.setdefault((ns, record["id"]), {})
            for at, channel, kind, text in record["writes"]:
                key = (record["task"], at)
                if at < 0 or key not in known:
                    known[key] = (channel, record["path"], kind, text)
        else:
            values = {name: _read(value) for name, value in record["values"].items()}
            if (ns, record["id"]) in self.saved and self.saved[ns, record["id"]].hidden:
                self.writes.pop((ns, record["id"]), None)  # deleted, and put anew
            parent = record.get("parent")
            base = record.get("base", parent)
            names = self.names(ns, base)
            if not names.issuperset(values) or "gone" in record:
                names = names.union(values).difference(record.get("gone", ()))
            if parent is not None:
                self.told.add((ns, parent))
            self.saved[ns, record["id"]] = Saved(parent, base, values, names, record["metadata"])

    def forget(self) -> None:
        for each in (self.saved, self.writes, self.newest, self.told):
            each.clear()
        self.teller = None

    def sorted_writes(self, ns: str, checkpoint: str | None) -> list[tuple[str, str, str, str, Any]]:
        """Task, path, channel, type and text of each write, in order."""
        known = self.writes.get((ns, checkpoint or ""), {})
        order = sorted(known, key=lambda key: writes_sort_key(known[key][1], *key))
        return [(key[0], known[key][1], known[key][0], *known[key][2:]) for key in order]

    def visible(self, ns: str | None = None) -> list[tuple[str, str]]:
        """Namespaces and ids, newest first in each."""
        found = [key for key, saved in self.saved.items() if not saved.hidden and ns in (None, key[0])]
        return sorted(found, key=lambda key: key[1], reverse=True)

    def names(self, ns: str, checkpoint: str | None) -> frozenset[str]:
        """The channels that have a value."""
        saved = self.saved.get((ns, checkpoint or ""))
        return saved.names if saved is not None else frozenset()

    def value(self, ns: str, checkpoint: str, channel: str) -> tuple[str, bytes]:
        """A channel's value, put together from where it was last stored whole, or from the one that is at hand."""
        known = self.newest.get((ns, channel))
        if known is not None and known[0] == checkpoint:
            return known[1], known[2]
        patches: list[list[Patch]] = []
        at: str | None = checkpoint
        kind, data = "", bytearray()
        while at is not None:
            if known is not None and known[0] == at:
                kind, data = known[1], bytearray(known[2])
                break
            saved = self.saved[ns, at]
            kind, change = saved.values.get(channel, (kind, None))
            if isinstance(change, bytes):
                data = bytearray(change)
                break
            if change is not None:
                patches.append(change)
            at = saved.base
        for each in reversed(patches):
            patched(data, each)
        self.newest[ns, channel] = (checkpoint, kind, bytes(data))
        return kind, bytes(data)


class New:
    """A checkpoint that is to be stored: what differs from the one that it is based on."""

    def __init__(
        self,
        thread: Thread,
        serde: Any,
        ns: str,
        parent: str | None,
        checkpoint: Any,
        metadata: Any,
        changed: Any,
        tell: Callable[[], Sequence[Any]],
    ) -> None:
        """``changed``: the channels that have a new version. ``tell``: what people are told with it, once."""
        self._tell = tell
        self._told: Sequence[Any] | None = None
        self._thread, self._serde, self._ns, self._parent = thread, serde, ns, parent
        self._id, self._metadata, self._changed = checkpoint["id"], metadata, changed
        self._values = checkpoint["channel_values"]
        self._skeleton = {key: value for key, value in checkpoint.items() if key != "channel_values"}
        self._at_hand: dict[str, tuple[str, bytes]] = {}

    def records(self) -> list[Any]:
        """Its record, as the thread is now, after what people are told."""
        self._told = self._tell() if self._told is None else self._told
        thread, ns, parent, at_hand = self._thread, self._ns, self._parent, dict[str, tuple[str, bytes]]()
        base = parent if (ns, parent) in thread.saved else next((key[1] for key in thread.visible(ns)), None)
        known = thread.names(ns, base)
        same = known - {SKELETON} - set(self._changed)
        if same and base is not None:
            before = self._serde.loads_typed(thread.value(ns, base, SKELETON))["channel_versions"]
            now = self._skeleton["channel_versions"]
            same = frozenset(each for each in same if each in before and before[each] == now.get(each))
        values = dict[str, Any]()
        for channel, value in ((SKELETON, self._skeleton), *self._values.items()):
            is_known = channel in known
            if channel in same:
                continue
            at_hand[channel] = self._serde.dumps_typed(value)
            change = self._change(base if is_known else None, channel, *at_hand[channel])
            if change is not None:
                values[channel] = change
        self._at_hand = at_hand
        gone = sorted(known - set(self._values) - {SKELETON})
        record = {"ns": ns, "id": self._id, "parent": parent, "metadata": self._metadata, "values": values}
        record |= {"base": base} if base != parent else {}
        return [*self._told, record | ({"gone": gone} if gone else {})]

    def keep_at_hand(self) -> None:
        """Keeps its values for the next one, once it is stored."""
        for channel, (kind, data) in self._at_hand.items():
            self._thread.newest[self._ns, channel] = (self._id, kind, data)

    def _change(self, base: str | None, channel: str, kind: str, data: bytes) -> Any:
        """What to store for a value: nothing if it is as before, else patches, else the whole of it."""
        if base is not None:
            was, old = self._thread.value(self._ns, base, channel)
            if (was, old) == (kind, data):
                return None
            patches = difference(old, data) if was == kind and len(data) > _SMALL else None
            if patches is not None:
                return [kind, [[at, cut, to_text(text)] for at, cut, text in patches]]
        return [kind, to_text(data)]


def _read(value: Any) -> tuple[str, bytes | list[Patch]]:
    kind, content = value
    if isinstance(content, str):
        return kind, to_bytes(content)
    return kind, [(at, cut, to_bytes(text)) for at, cut, text in content]


def quoted(name: Any) -> str:
    """The name of a thread in the source of its task."""
    return quote(str(name), safe="/:@-_.~ ")


def config_of(name: str, ns: str, checkpoint: str) -> Any:
    return {"configurable": {"thread_id": name, "checkpoint_ns": ns, "checkpoint_id": checkpoint}}
