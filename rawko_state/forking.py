"""Resets what a child process must not inherit through fork(): locks held by other threads, the parent's connections."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    def after_fork(self) -> None:
        """Called in the child process, while it has a single thread."""


_renewable: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_after_fork(thing: Renewable) -> None:
    _renewable.add(thing)


def _renew() -> None:
    for thing in list(_renewable):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
