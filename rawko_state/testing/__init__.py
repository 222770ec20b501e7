"""The conformance suite that every backend passes. To test your own backend, give it a store:

    from rawko_state.testing import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self): ...          # a store without tasks
        @pytest.fixture
        def another(self, store): ... # the same tasks, opened as another process would

and run it with pytest (``pip install 'rawko-state[testing]'``). The suite tests what the commands, the server and the
integrations rely on.
"""

from __future__ import annotations

try:
    import pytest
except ImportError as missing:
    raise ImportError("rawko_state.testing needs pytest: pip install 'rawko-state[testing]'") from missing

pytest.register_assert_rewrite("rawko_state.testing.store", "rawko_state.testing.hosted")

from rawko_state.testing.hosted import HostedConformance  # noqa: E402 - after the line above
from rawko_state.testing.store import StoreConformance  # noqa: E402

__all__ = ["HostedConformance", "StoreConformance"]
