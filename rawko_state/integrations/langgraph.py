"""A LangGraph checkpointer: each thread is a task, and each checkpoint a record in it (``[langgraph]``).

    from rawko_state.integrations.langgraph import RawkoSaver

    graph = builder.compile(checkpointer=RawkoSaver(rawko_state.open(".")))

A checkpoint is stored as its difference from the one before. What nodes say is a turn, too, for people. Where LangGraph deletes
single checkpoints, they are hidden: their bytes stay in the task file, and go with it. Deleting a thread moves its task to trash.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from urllib.parse import unquote

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)

from rawko_state.integrations.checkpoints import SKELETON, New, Thread, config_of, quoted
from rawko_state.integrations.graph_steps import STOPS, GraphTeller, asked_of, is_told_now
from rawko_state.integrations.patches import to_bytes, to_text
from rawko_state.integrations.readable import titled
from rawko_state.integrations.task_log import TaskLogs

if TYPE_CHECKING:
    from rawko_state.store.contract import Store


_Given = ParamSpec("_Given")
_Value = TypeVar("_Value")


def _in_thread(work: Callable[_Given, _Value]) -> Callable[_Given, Coroutine[Any, Any, _Value]]:
    @wraps(work)
    async def done(*given: _Given.args, **named: _Given.kwargs) -> _Value:
        return await asyncio.to_thread(work, *given, **named)

    return done


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
                keys = self._read_thread(name).visible(asked.get("checkpoint_ns"))
            for ns, checkpoint in keys:
                if asked.get("checkpoint_id", checkpoint) != checkpoint or (older is not None and checkpoint >= older):
                    continue
                if limit is not None and limit <= 0:
                    return
                with self._lock:
                    each = self._tuple(config_of(name, ns, checkpoint))
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
        checkpoint = get_checkpoint_id(config) or next((key[1] for key in thread.visible(ns)), "")
        saved = thread.saved.get((ns, checkpoint))
        if saved is None or (saved.hidden and not hidden):
            return None
        whole = self.serde.loads_typed(thread.value(ns, checkpoint, SKELETON))
        names = sorted(thread.names(ns, checkpoint) - {SKELETON})
        whole["channel_values"] = {each: self.serde.loads_typed(thread.value(ns, checkpoint, each)) for each in names}
        writes = thread.sorted_writes(ns, checkpoint)
        pending = [(task, channel, self._loaded(*value)) for task, _, channel, *value in writes]
        parent = config_of(name, ns, saved.parent) if saved.parent else None
        return CheckpointTuple(config_of(name, ns, checkpoint), whole, self._loaded(*saved.metadata), parent, pending)

    # Writing

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        asked = config["configurable"]
        name, ns, parent = asked["thread_id"], asked.get("checkpoint_ns", ""), asked.get("checkpoint_id")
        about = self._dumped(get_checkpoint_metadata(config, metadata))
        with self._lock:
            log, thread = self._logs.of(quoted(name))
            titles: Sequence[Any] = ()
            if not thread.saved:
                request = asked_of(checkpoint["channel_values"])
                log.asks(request)
                # LangGraph does not wait for one write before it begins another: the first may not have been the request.
                titles = titled(request) if thread.writes else ()
            told = partial(self._told, thread, asked, parent, titles)
            new = New(thread, self.serde, ns, parent, checkpoint, about, new_versions, told)
            log.append_next(new.records)
            new.keep_at_hand()
        return config_of(name, ns, checkpoint["id"])

    def put_writes(self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        asked = config["configurable"]
        told = [[WRITES_IDX_MAP.get(name, at), name, *self._dumped(value)] for at, (name, value) in enumerate(writes)]
        ns, checkpoint = asked.get("checkpoint_ns", ""), asked["checkpoint_id"]
        record = {"ns": ns, "id": checkpoint, "task": task_id, "path": task_path, "writes": told}
        with self._lock:
            log, thread = self._logs.of(quoted(asked["thread_id"]))
            if not thread.saved:
                log.asks(asked_of(dict(writes)))
            # People are told in the order of steps, with the next checkpoint; but a graph that stops here has none.
            late = (ns, checkpoint) in thread.told
            now = [each for each in writes if is_told_now(each[0], task_path, late)]
            turns = list(self._earlier(thread, asked)) if now else []
            log.append([*turns, *(self._teller(thread, asked).entries(now, task_path) if now else ()), record])

    def _earlier(self, thread: Thread, asked: Any) -> Iterator[Any]:
        """The turns of steps before a checkpoint that is not stored yet itself."""
        ns, checkpoint = asked.get("checkpoint_ns", ""), asked["checkpoint_id"]
        for key in sorted(
            each for each in thread.writes.keys() - thread.told if each[0] == ns and each[1] < checkpoint
        ):
            yield from self._told(thread, asked, key[1], ())
            thread.told.add(key)

    def _told(self, thread: Thread, asked: Any, checkpoint: str | None, titles: Sequence[Any]) -> Sequence[Any]:
        """The turns of what was written after a checkpoint, if people have not been told."""
        ns, found = asked.get("checkpoint_ns", ""), [*titles]
        tasks = dict[tuple[str, str], list[Any]]()
        if (ns, checkpoint or "") in thread.told:
            return found
        for task, path, channel, *value in thread.sorted_writes(ns, checkpoint):
            if channel not in STOPS:
                tasks.setdefault((task, path), []).append((channel, self._loaded(*value)))
        for (_, path), written in tasks.items():
            found += self._teller(thread, {**asked, "checkpoint_id": checkpoint}).entries(written, path)
        return found

    def _teller(self, thread: Thread, asked: Any) -> GraphTeller:
        if thread.teller is None:
            thread.teller = GraphTeller(self.store.root)
            before = self._tuple({"configurable": asked})
            thread.teller.knows(before.checkpoint["channel_values"] if before is not None else {})
        return thread.teller

    # Deleting and copying

    def delete_thread(self, thread_id: str) -> None:
        self._logs.delete(quoted(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        for name in self._threads():
            with self._lock:
                thread = self._read_thread(name)
                runs = {key: self._loaded(*thread.saved[key].metadata).get("run_id") for key in thread.visible()}
                self._hide(name, [key for key, run in runs.items() if run in run_ids])

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"Unknown strategy: {strategy!r}. Use keep_latest or delete.")
        for name in thread_ids:
            with self._lock:
                visible = self._read_thread(name).visible()
                newest = {key[0]: key for key in reversed(visible)} if strategy == "keep_latest" else {}
                self._hide(name, [key for key in visible if newest.get(key[0]) != key])

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        records = list[Any]()
        source = self._logs.log(quoted(source_thread_id), records.append, records.clear)
        source.catch_up()
        source.close()
        if records:
            with self._lock:
                self._logs.of(quoted(target_thread_id))[0].append(records)

    # The same for event loops

    aget_tuple = _in_thread(get_tuple)
    aput = _in_thread(put)
    aput_writes = _in_thread(put_writes)
    adelete_thread = _in_thread(delete_thread)
    adelete_for_runs = _in_thread(delete_for_runs)
    aprune = _in_thread(prune)
    acopy_thread = _in_thread(copy_thread)
    aget_delta_channel_history = _in_thread(get_delta_channel_history)

    async def alist(
        self, config: Any, *, filter: dict[str, Any] | None = None, before: Any = None, limit: int | None = None
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (each := await asyncio.to_thread(next, found, None)) is not None:
            yield each

    # Parts

    def _threads(self) -> Sequence[str]:
        return [unquote(name) for name in self._logs.names()]

    def _read_thread(self, name: str) -> Thread:
        return self._logs.read(quoted(name)) or Thread()

    def _hide(self, name: str, keys: Sequence[tuple[str, str]]) -> None:
        hidden = [{"ns": ns, "hide": [key[1] for key in keys if key[0] == ns]} for ns in {key[0]: 0 for key in keys}]
        if hidden:
            self._logs.of(quoted(name))[0].append(hidden)

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
