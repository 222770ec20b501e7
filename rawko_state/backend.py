"""What you need to write a backend of your own: see docs/howto/write-a-backend.md.

``KeyedStore`` is the short way: five methods on anything that keeps values under keys. ``BaseStore``, ``IndexedStore`` and
``Writer`` are the long way, for a place with queries of its own. ``CoreStore``, ``SearchStore``, ``LiveStore`` and
``RetentionStore`` are the levels of a store as protocols; ``rawko_state.testing`` has the tests of each.
"""

from __future__ import annotations

from rawko_state.backends.base import BaseStore
from rawko_state.backends.indexed import IndexedStore
from rawko_state.backends.keyed import KeyedStore
from rawko_state.format.reader import MemoryBytes, TaskBytes, TaskReader
from rawko_state.format.records import BuiltRecord, build_record, first_record
from rawko_state.model.appended import BeforeWrite, Position
from rawko_state.store.contract import HostedStore, LiveStore, RetentionStore, SearchStore, Store
from rawko_state.store.core import Cleaner, CoreStore
from rawko_state.tasks.draft import Draft, DraftContent, Sink, draft_content
from rawko_state.tasks.writer import Make, Writer

__all__ = [
    "BaseStore",
    "BeforeWrite",
    "BuiltRecord",
    "Cleaner",
    "CoreStore",
    "Draft",
    "DraftContent",
    "HostedStore",
    "IndexedStore",
    "KeyedStore",
    "LiveStore",
    "Make",
    "MemoryBytes",
    "Position",
    "RetentionStore",
    "SearchStore",
    "Sink",
    "Store",
    "TaskBytes",
    "TaskReader",
    "Writer",
    "build_record",
    "draft_content",
    "first_record",
]
