"""The user's secret: 32 random bytes next to ``state.db``, readable only by the user.

Without it, names and tags derived from it can be neither guessed nor forged.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path
from typing import Final

from rawko_state.config import folders

_LENGTH: Final = 32


def keyed(purpose: str, text: str, key: bytes) -> str:
    """Hexadecimal digits that only the holder of the key can derive from the text."""
    return hmac.new(key, f"{purpose}\n{text}".encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def user_key() -> bytes | None:
    """The secret, created on first use. None if there is nowhere to keep it, or if someone else could have put it there."""
    try:
        return _read(key_path()) or _make(key_path())
    except OSError:
        return None


def key_path() -> Path:
    return folders.user_state() / "secret"


def _read(path: Path) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(descriptor)
        if os.name != "nt" and (found.st_uid != os.geteuid() or found.st_mode & 0o077):
            raise PermissionError(f"{path} can be read by others. Run: chmod 600 {path}")
        key = os.read(descriptor, _LENGTH + 1)
    finally:
        os.close(descriptor)
    if len(key) != _LENGTH:
        raise OSError(f"{path} is not a rawko key. Delete it; a new one is made.")
    return key


def _make(path: Path) -> bytes | None:
    """Writes a temporary file and links it into place, so that one of two processes wins and no one reads a partial key."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f"secret.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, os.urandom(_LENGTH))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        if hasattr(os, "link"):
            os.link(beside, path)
        else:
            os.rename(beside, path)
    except FileExistsError:
        pass
    finally:
        beside.unlink(missing_ok=True)
    return _read(path)
