"""The tests of a level use no other level, but for core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rawko_state.backends.memory.store import MemoryStore
from rawko_state.store.contract import LiveStore, RetentionStore, SearchStore
from rawko_state.store.core import CoreStore
from rawko_state.testing import CoreConformance, LiveConformance, SearchConformance

_CORE = {*vars(CoreStore), *CoreStore.__annotations__}


class Only:
    """A store that has only some levels."""

    def __init__(self, store: MemoryStore, *levels: type) -> None:
        self._store = store
        self._names = _CORE | {name for level in levels for name in vars(level)}

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            raise AttributeError(f"{name} belongs to another level")
        return getattr(self._store, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()


class _Levels:
    levels: tuple[type, ...] = ()

    @pytest.fixture
    def store(self, tmp_path: Path) -> Any:
        return Only(MemoryStore(root=tmp_path), *self.levels)

    @pytest.fixture
    def another(self, store: Any) -> Any:
        return store


@pytest.mark.every
class TestCore(_Levels, CoreConformance):
    pass


@pytest.mark.every
class TestSearch(_Levels, SearchConformance):
    levels = (SearchStore,)


@pytest.mark.every
class TestLive(_Levels, LiveConformance):
    levels = (LiveStore,)


def test_the_levels_have_no_method_in_common() -> None:
    levels = (CoreStore, SearchStore, LiveStore, RetentionStore)
    names = [name for level in levels for name in vars(level) if not name.startswith("_")]
    assert len(names) == len(set(names))
