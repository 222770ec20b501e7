"""Names of workspaces and their schemas. A separate module, because it is needed where the driver is not installed."""

from __future__ import annotations

import re
from typing import Final

from rawko_state.errors import InvalidValue

DEFAULT: Final = "default"
_PREFIX: Final = "rawko_ws_"
_WORKSPACE = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,38}[a-z0-9])?")


def check_workspace(name: str) -> str:
    if not _WORKSPACE.fullmatch(name):
        raise InvalidValue(
            f"a workspace is named with small letters, digits, '-' and '_', at most 40: not {name!r:.60}"
        )
    return name


def schema_of(workspace: str) -> str:
    return _PREFIX + workspace


def workspace_of(schema: str) -> str:
    return schema.removeprefix(_PREFIX)
