"""A LangGraph checkpointer: each thread is a task, and each checkpoint a record in it (``[langgraph]``).

    from rawko_state.integrations.langgraph import RawkoSaver

    graph = builder.compile(checkpointer=RawkoSaver(rawko_state.open(".")))

A checkpoint is stored as its difference from the one before. What nodes say is a turn, too, for people. Where LangGraph deletes
single checkpoints, they are hidden: their bytes stay in the task file, and go with it. Deleting a thread moves its task to trash.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)

from rawko_state.integrations.checkpoints import SKELETON, New, Thread
from rawko_state.integrations.graph_steps import GraphTeller, asked_of
from rawko_state.integrations.patches import to_bytes, to_text
from rawko_state.integrations.task_log import TaskLogs

if TYPE_CHECKING:
    from rawko_state.store.contract import Store


class RawkoSaver(BaseCheckpointSaver):
    """Keeps the checkpoints of LangGraph in a store. May be used from any thread and event loop, and by several processes."""

    def __init__(self, store: Store, *, serde: Any = None) -> None:
        super().__init__(serde=serde)
        self.store = store
        self._logs = TaskLogs(store, "langgraph:", "langgraph", Thread)
        self._lock = self._logs.lock

    def close(self) -> None:
        """Lets go of the open tasks. The saver can still be used afterwards."""
        self._logs.close()

    # Reading

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        with self._lock:
            return self._tuple(config)

    def list(
        self, config: Any, *, filter: dict[str, Any] | None = None, before: Any = None, limit: int | None = None
    ) -> Iterator[CheckpointTuple]:
        asked = config["configurable"] if config else {}
        older = get_checkpoint_id(before) if before else None
        for name in [asked["thread_id"]] if "thread_id" in asked else self._threads():
            with self._lock:
                found = self._read_thread(name)
                keys = found.visible(asked.get("checkpoint_ns")) if found is not None else []
            for ns, checkpoint in keys:
                if asked.get("checkpoint_id", checkpoint) != checkpoint or (older is not None and checkpoint >= older):
                    continue
                if limit is not None and limit <= 0:
                    return
                with self._lock:
                    each = self._tuple(_config(name, ns, checkpoint))
                if each is None or any(each.metadata.get(key) != value for key, value in (filter or {}).items()):
                    continue
                limit = None if limit is None else limit - 1
                yield each

    def get_delta_channel_history(self, *, config: Any, channels: Sequence[str]) -> Any:
        # Hidden checkpoints are part of the history from which a channel is put together.
        return BaseCheckpointSaver.get_delta_channel_history(_Whole(self), config=config, channels=channels)

    def _tuple(self, config: Any, *, hidden: bool = False) -> CheckpointTuple | None:
        asked = config["configurable"]
        name, ns = asked["thread_id"], asked.get("checkpoint_ns", "")
        thread = self._read_thread(name)
        if thread is None:
            return None
        checkpoint = get_checkpoint_id(config) or next((key[1] for key in thread.visible(ns)), None)
        saved = thread.saved.get((ns, checkpoint or ""))
        if saved is None or checkpoint is None or (saved.hidden and not hidden):
            return None
        whole = self.serde.loads_typed(thread.value(ns, checkpoint, SKELETON))
        names = sorted(thread.names(ns, checkpoint) - {SKELETON})
        whole["channel_values"] = {each: self.serde.loads_typed(thread.value(ns, checkpoint, each)) for each in names}
        writes = thread.writes.get((ns, checkpoint), {})
        order = sorted(writes, key=lambda key: writes_sort_key(writes[key][1], *key))
        pending = [(key[0], writes[key][0], self._loaded(writes[key][2], writes[key][3])) for key in order]
        parent = _config(name, ns, saved.parent) if saved.parent else None
        return CheckpointTuple(_config(name, ns, checkpoint), whole, self._loaded(*saved.metadata), parent, pending)

    # Writing

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        asked = config["configurable"]
        name, ns, parent = asked["thread_id"], asked.get("checkpoint_ns", ""), asked.get("checkpoint_id")
        about = self._dumped(get_checkpoint_metadata(config, metadata))
        with self._lock:
            log, thread = self._logs.of(_quoted(name))
            if not thread.saved:
                log.asks(asked_of(checkpoint["channel_values"]))
            new = New(thread, self.serde, ns, parent, checkpoint, about, new_versions)
            log.append_next(new.records)
            new.keep_at_hand()
        return _config(name, ns, checkpoint["id"])

    def put_writes(self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        asked = config["configurable"]
        told = [
            [WRITES_IDX_MAP.get(channel, at), channel, *self._dumped(value)]
            for at, (channel, value) in enumerate(writes)
        ]
        record = {
            "ns": asked.get("checkpoint_ns", ""),
            "id": asked["checkpoint_id"],
            "task": task_id,
            "path": task_path,
        }
        with self._lock:
            log, thread = self._logs.of(_quoted(asked["thread_id"]))
            turns = self._teller(thread, asked).entries(writes, task_path)
            log.append([*turns, {**record, "writes": told}])

    def _teller(self, thread: Thread, asked: Any) -> GraphTeller:
        if thread.teller is None:
            thread.teller = GraphTeller(self.store.root)
            before = self._tuple({"configurable": {**asked, "checkpoint_id": None}})
            thread.teller.knows(before.checkpoint["channel_values"] if before is not None else {})
        return thread.teller

    # Deleting and copying

    def delete_thread(self, thread_id: str) -> None:
        self._logs.delete(_quoted(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        wanted = set(run_ids)
        for name in self._threads():
            with self._lock:
                thread = self._read_thread(name) or Thread()
                self._hide(
                    name,
                    [
                        key
                        for key in thread.visible()
                        if self._loaded(*thread.saved[key].metadata).get("run_id") in wanted
                    ],
                )

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"Unknown strategy: {strategy!r}. Use keep_latest or delete.")
        for name in thread_ids:
            with self._lock:
                thread = self._read_thread(name) or Thread()
                seen = set[str]()
                old = []
                for ns, checkpoint in thread.visible():
                    if strategy == "delete" or ns in seen:
                        old.append((ns, checkpoint))
                    seen.add(ns)
                self._hide(name, old)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        records = list[Any]()
        source = self._logs.log(_quoted(source_thread_id), records.append, records.clear)
        source.catch_up()
        source.close()
        if records:
            with self._lock:
                self._logs.of(_quoted(target_thread_id))[0].append(records)

    # The same for event loops

    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self, config: Any, *, filter: dict[str, Any] | None = None, before: Any = None, limit: int | None = None
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (each := await asyncio.to_thread(next, found, None)) is not None:
            yield each

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await asyncio.to_thread(lambda: self.prune(thread_ids, strategy=strategy))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aget_delta_channel_history(self, *, config: Any, channels: Sequence[str]) -> Any:
        return await asyncio.to_thread(lambda: self.get_delta_channel_history(config=config, channels=channels))

    # Parts

    def _threads(self) -> Sequence[str]:
        return [unquote(name) for name in self._logs.names()]

    def _read_thread(self, name: str) -> Thread | None:
        return self._logs.read(_quoted(name))

    def _hide(self, name: str, keys: Sequence[tuple[str, str]]) -> None:
        namespaces = dict.fromkeys(ns for ns, _ in keys)
        if keys:
            self._logs.of(_quoted(name))[0].append(
                [{"ns": ns, "hide": [key[1] for key in keys if key[0] == ns]} for ns in namespaces]
            )

    def _dumped(self, value: Any) -> Sequence[str]:
        kind, data = self.serde.dumps_typed(value)
        return [kind, to_text(data)]

    def _loaded(self, kind: str, text: Any) -> Any:
        return self.serde.loads_typed((kind, to_bytes(text)))


class _Whole:
    """A saver that sees hidden checkpoints too."""

    def __init__(self, saver: RawkoSaver) -> None:
        self._saver = saver

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        with self._saver._lock:
            return self._saver._tuple(config, hidden=True)


def _quoted(name: Any) -> str:
    return quote(str(name), safe="/:@-_.~ ")


def _config(name: str, ns: str, checkpoint: str) -> Any:
    return {"configurable": {"thread_id": name, "checkpoint_ns": ns, "checkpoint_id": checkpoint}}
