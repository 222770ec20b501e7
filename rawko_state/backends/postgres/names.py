"""Names of workspaces and their schemas. A separate module, because it is needed where the driver is not installed."""

from __future__ import annotations

from typing import Final

from rawko_state.errors import InvalidValue
from rawko_state.late import late

DEFAULT: Final = "default"
_PREFIX: Final = "rawko_ws_"
_WORKSPACE = late(r"[a-z0-9](?:[a-z0-9_-]{0,38}[a-z0-9])?")


def check_workspace(name: str) -> str:
    if not _WORKSPACE.fullmatch(name):
        raise InvalidValue(f"Not a workspace name: {name!r:.60}. Use up to 40 lower-case letters, digits, '-' and '_'.")
    return name


def schema_of(workspace: str) -> str:
    return _PREFIX + workspace


def workspace_of(schema: str) -> str:
    return schema.removeprefix(_PREFIX)
