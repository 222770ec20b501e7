"""Which servers this user runs here: a note for each, with its address and the key that gets one-time links from it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from rawko_state.config.secret import key_path, keyed, user_key

OPEN: Final = "open"
ALL_PROJECTS: Final = "open-all"
SERVE: Final = "serve"


class ServerNote:
    """A file that only this user can read. One for each project and kind of server."""

    def __init__(self, root: Path, kind: str) -> None:
        key = user_key()
        name = keyed("open", f"{root}\n{kind}", key)[:24] if key is not None else None
        self._path = key_path().parent / "open" / f"{name}.json" if name is not None else None

    def write(self, url: str, key: str) -> None:
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            beside = self._path.with_suffix(f".{os.getpid()}")
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as stream:
                json.dump({"url": url, "key": key, "pid": os.getpid()}, stream)
            os.replace(beside, self._path)

    def remove(self) -> None:
        """Removes it, unless another server has written its own since."""
        if self._path is not None:
            with contextlib.suppress(OSError, ValueError):
                if json.loads(self._path.read_text())["pid"] == os.getpid():
                    self._path.unlink()

    def running(self) -> tuple[str, str] | None:
        """The server that runs: its address, and a new link to it. None if there is none."""
        if self._path is None:
            return None
        try:
            known = json.loads(self._path.read_text())
            address = urlsplit(known["url"])
            connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=3)
            try:
                connection.request("POST", "/open/link", headers={"Authorization": f"Bearer {known['key']}"})
                response = connection.getresponse()
                link = response.read(200).decode("ascii")
            finally:
                connection.close()
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
            return None
        return (known["url"], link) if response.status == 200 else None
