"""Regular expressions that are compiled on first use. Compiling all of ours at import would cost a short command 50 ms."""

from __future__ import annotations

import re
from functools import cached_property


class Late:
    """As ``re.compile``, later."""

    def __init__(self, pattern: str, flags: int = 0) -> None:
        self._pattern, self._flags = pattern, flags

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self._pattern, self._flags)

    @cached_property
    def match(self):  # type: ignore[no-untyped-def] # as of the pattern
        return self.compiled.match

    @cached_property
    def search(self):  # type: ignore[no-untyped-def] # as of the pattern
        return self.compiled.search

    @cached_property
    def fullmatch(self):  # type: ignore[no-untyped-def] # as of the pattern
        return self.compiled.fullmatch

    @cached_property
    def finditer(self):  # type: ignore[no-untyped-def] # as of the pattern
        return self.compiled.finditer

    @cached_property
    def sub(self):  # type: ignore[no-untyped-def] # as of the pattern
        return self.compiled.sub
