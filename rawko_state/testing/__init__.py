"""The conformance suite that every backend passes. To test your own backend, give it a store:

    from rawko_state.testing import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self): ...          # a store without tasks
        @pytest.fixture
        def another(self, store): ... # the same tasks, opened as another process would

and run it with pytest (``pip install 'rawko-state[testing]'``). A store need not have all levels: ``CoreConformance`` tests that
it keeps tasks and tells what is in them, ``SearchConformance``, ``LiveConformance`` and ``RetentionConformance`` the rest, and
``StoreConformance`` all four. ``HostedConformance`` tests what a server needs besides.
"""

from __future__ import annotations

try:
    import pytest
except ImportError as missing:
    raise ImportError("rawko_state.testing needs pytest: pip install 'rawko-state[testing]'") from missing

_PARTS = ("common", "core", "hosted", "keys", "live", "reads", "retention", "search")
pytest.register_assert_rewrite(*(f"rawko_state.testing.{part}" for part in _PARTS))

from rawko_state.testing.core import CoreConformance  # noqa: E402 - after the line above
from rawko_state.testing.hosted import HostedConformance  # noqa: E402
from rawko_state.testing.live import LiveConformance  # noqa: E402
from rawko_state.testing.retention import RetentionConformance  # noqa: E402
from rawko_state.testing.search import SearchConformance  # noqa: E402
from rawko_state.testing.store import StoreConformance  # noqa: E402

__all__ = [
    "CoreConformance",
    "HostedConformance",
    "LiveConformance",
    "RetentionConformance",
    "SearchConformance",
    "StoreConformance",
]
