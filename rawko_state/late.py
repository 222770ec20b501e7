"""Regular expressions that are compiled on first use: compiling all of ours at import would cost a short command 50 ms."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from typing import AnyStr

    def late(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
        """As ``re.compile``, later."""
else:

    class late:  # noqa: N801 - a function to its callers
        def __init__(self, pattern, flags=0):
            self._given = pattern, flags

        def __getattr__(self, name):
            import re

            # Kept, so that later calls go straight to the compiled expression.
            found = self.__dict__[name] = getattr(re.compile(*self._given), name)
            return found
