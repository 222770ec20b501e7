"""Modules that are imported on first use.

A short command must not load what only other commands need: listing tasks needs no redaction rules and no search engine. Modules
with such an optional dependency declare it once, at the top:

    if TYPE_CHECKING:
        from rawko_state.tasks import events
    else:
        events = lazy("rawko_state.tasks.events")
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from rawko_state.errors import StorageError


class _Lazy:
    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, attribute: str) -> Any:
        # Attributes are not kept: tests may patch those of the module.
        if self._module is None:
            try:
                self._module = importlib.import_module(self._name)
            except OSError as error:  # for example, out of file descriptors
                raise StorageError(f"Can't load {self._name}: {error.strerror}.", self._name, error.errno) from error
        return getattr(self._module, attribute)


def lazy(name: str) -> Any:
    return _Lazy(name)
