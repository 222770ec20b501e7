"""Modules that are imported on first use, and how to install those that are optional.

A short command must not load what only other commands need: listing tasks needs no redaction rules and no search engine. Modules
with such an optional dependency declare it once, at the top:

    if TYPE_CHECKING:
        from rawko_state.tasks import events
    else:
        events = lazy("rawko_state.tasks.events")
"""

from __future__ import annotations

import importlib
import os
import sys
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


def installing(extra: str) -> str:
    """The command that adds an optional extra to the environment in which this rawko is installed. The `pip` that a person would
    type may belong to another one."""
    import shlex

    package = f"'rawko-state[{extra}]'"
    if os.path.exists(os.path.join(sys.prefix, "uv-receipt.toml")):
        return f"uv pip install --python {shlex.quote(sys.executable)} {package}"
    if "pipx" in sys.prefix.split(os.sep):
        return f"pipx runpip rawko-state install {package}"
    return f"{shlex.quote(sys.executable)} -m pip install {package}"
