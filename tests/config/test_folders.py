"""The user's folders are those of platformdirs, whatever the environment says."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from rawko_state.config import folders


@pytest.mark.parametrize("home", ["/home/x", "/home/x/", "", "relative", None])
@pytest.mark.parametrize("named", [None, "", "/elsewhere", "/elsewhere/", "relative", "/a:/b"])
def test_as_platformdirs(monkeypatch: pytest.MonkeyPatch, home: str | None, named: str | None) -> None:
    variables = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_DIRS")
    for name, value in (("HOME", home), *((variable, named) for variable in variables)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert folders.user_config() == Path(platformdirs.user_config_dir("rawko"))
    assert folders.user_state() == Path(platformdirs.user_state_dir("rawko"))
    assert folders.user_cache() == Path(platformdirs.user_cache_dir("rawko"))
    assert folders.site_config() == Path(platformdirs.site_config_dir("rawko"))
