"""The proxy for a server, from HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, as other programs read them.

urllib knows this too, but importing urllib.request takes longer than a request.
"""

from __future__ import annotations

import base64
import os
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from rawko_state.errors import InvalidValue


class Proxy(NamedTuple):
    host: str
    port: int
    headers: dict[str, str]
    """What proves to the proxy who sends the request."""


def proxy_for(server: SplitResult) -> Proxy | None:
    """None if the server is reached directly."""
    given = _variable(f"{server.scheme}_proxy") or _variable("all_proxy")
    if not given or _is_exempt(server):
        return None
    parts = urlsplit(given if "://" in given else f"http://{given}")
    if parts.scheme != "http" or not parts.hostname:
        raise InvalidValue(f"Not a proxy address. Write http://host or http://host:port, not {parts.scheme}://…")
    headers = {}
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(secret.encode()).decode()}"
    return Proxy(parts.hostname, parts.port or 80, headers)


def _variable(name: str) -> str:
    return os.environ.get(name) or os.environ.get(name.upper()) or ""


def _is_exempt(server: SplitResult) -> bool:
    host = (server.hostname or "").lower()
    for each in _variable("no_proxy").lower().split(","):
        name, _, port = each.strip().partition(":")
        if port and port != str(server.port or {"http": 80, "https": 443}[server.scheme]):
            continue
        if name == "*" or (name and (host == name.lstrip(".") or host.endswith(f".{name.lstrip('.')}"))):
            return True
    return False
