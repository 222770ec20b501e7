"""The suite of all levels, which every backend of rawko's own passes."""

from __future__ import annotations

from rawko_state.testing.core import CoreConformance
from rawko_state.testing.live import LiveConformance
from rawko_state.testing.retention import RetentionConformance
from rawko_state.testing.search import SearchConformance

__all__ = ["StoreConformance"]


class StoreConformance(CoreConformance, SearchConformance, LiveConformance, RetentionConformance):
    """All levels: what commands, the server and the integrations rely on. Subclass it and supply ``store`` and ``another``."""
