"""The user's folders, as platformdirs names them.

On Linux, where the environment leaves no doubt, they are the folders of the XDG specification: loading platformdirs, and with it
``tempfile`` and OpenSSL, would take 8 ms of each command. A test compares the two.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

_APP: Final = "rawko"


def user_config() -> Path:
    return _of_user("XDG_CONFIG_HOME", ".config") or _asked("user_config_dir")


def user_state() -> Path:
    return _of_user("XDG_STATE_HOME", ".local/state") or _asked("user_state_dir")


def user_cache() -> Path:
    return _of_user("XDG_CACHE_HOME", ".cache") or _asked("user_cache_dir")


def site_config() -> Path:
    if sys.platform == "linux" and not os.environ.get("XDG_CONFIG_DIRS"):
        return Path("/etc/xdg", _APP)
    return _asked("site_config_dir")


def _of_user(variable: str, usual: str) -> Path | None:
    named, home = os.environ.get(variable), os.environ.get("HOME", "")
    if sys.platform != "linux" or "ANDROID_DATA" in os.environ:
        return None
    if named:
        return Path(named, _APP) if named.startswith("/") else None
    return Path(home, usual, _APP) if home.startswith("/") else None


def _asked(name: str) -> Path:
    import platformdirs

    return Path(getattr(platformdirs, name)(_APP))
