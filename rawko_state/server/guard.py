"""Access control: who may send requests, from where, and how often.

Web pages in a browser on the same machine are not trusted either. Their requests carry an Origin, and possibly a Host name that
the page has made resolve to this server (DNS rebinding). So the Host must be a name of this server, and an Origin must be this
server itself, for WebSockets as well as for requests.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from rawko_state.errors import InvalidValue
from rawko_state.late import late
from rawko_state.server.problems import Refused
from rawko_state.store.hosting import ServerState, Token

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
NOBODY: Final = Token("local", "admin", None, None, "", None)
"""The client of a server without tokens, which listens on loopback only."""
_MOST: Final = 10_000
_FAILURES: Final = 20
_PROTOCOL: Final = "bearer."
_HOST: Final = late(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5})?)?")


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def split_host(value: str) -> tuple[str, int | None]:
    """The name and port in a Host header; raises InvalidValue if it is malformed."""
    match = _HOST.fullmatch(value)
    if match is None or int(match[3] or 0) > 65_535:
        raise InvalidValue(f"Not a host name: {value!r:.100}.")
    return (match[1] or match[2]).lower().rstrip("."), int(match[3]) if match[3] else None


class Guard:
    def __init__(
        self, state: ServerState, hosts: frozenset[str], *, rate: float = 0.0, open_to_all: bool = False
    ) -> None:
        """``hosts``: the names of this server. ``rate``: requests per second for each client; 0 for no limit.
        ``open_to_all``: while there are no tokens, anyone may use the server; only for servers on loopback."""
        self._state, self._hosts = state, LOOPBACK | hosts
        self._open = open_to_all
        self._rate = Rate(rate, 2 * rate)
        self._failures = Rate(_FAILURES / 60, _FAILURES)

    def check_origin(self, headers: Headers, *, secure: bool) -> None:
        """Rejects a foreign Host or Origin."""
        given = headers.getlist("host")
        try:
            if len(given) != 1:
                raise InvalidValue("A request must have exactly one Host header.")
            host, port = split_host(given[0])
        except InvalidValue as error:
            raise Refused(400, "BadHost", str(error)) from None
        if host not in self._hosts:
            raise Refused(
                421, "ForeignHost", f"{host!r:.100} is not a name of this server. Allow it with --allowed-host."
            )
        for origin in headers.getlist("origin"):
            try:
                parts = urlsplit(origin)
                same = (parts.hostname or "").lower().rstrip(".") == host and _port(parts.port, parts.scheme) == _port(
                    port, "https" if secure else parts.scheme
                )
            except ValueError:
                same = False
            if not same or parts.scheme not in ("http", "https"):
                raise Refused(403, "ForeignOrigin", "Requests from other sites are not allowed.")
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            raise Refused(403, "ForeignOrigin", "Requests from other sites are not allowed.")

    @staticmethod
    def _given(headers: Mapping[str, str]) -> tuple[str, str, str]:
        given = headers.get("authorization", "")
        for protocol in headers.get("sec-websocket-protocol", "").split(","):
            if protocol.strip().startswith(_PROTOCOL):
                given = f"Bearer {protocol.strip().removeprefix(_PROTOCOL)}"
        scheme, _, text = given.partition(" ")
        return given, scheme, text.strip()

    def recalls(self, headers: Mapping[str, str]) -> bool:
        """Whether who() can be answered without waiting for a database."""
        given, _, text = self._given(headers)
        return self._state.recalls(text if given else None)

    def who(self, headers: Mapping[str, str], peer: str) -> Token:
        """The token that a request was made with."""
        given, scheme, text = self._given(headers)
        if not given:
            if self._open and not self._state.has_tokens():
                return NOBODY
            raise self._unknown("a token is needed: Authorization: Bearer …")
        token = self._state.token(text) if scheme.lower() == "bearer" else None
        if token is not None:
            return token
        # Only wrong tokens are limited: other clients may share the address, behind a proxy.
        if self._failures.take(peer):
            raise Refused(429, "TooMany", "Too many wrong tokens. Try again in a minute.", {"Retry-After": "60"})
        raise self._unknown("Unknown or revoked token.")

    @staticmethod
    def _unknown(detail: str) -> Refused:
        return Refused(401, "Unauthorized", detail, {"WWW-Authenticate": "Bearer"})

    def check_rate(self, who: Token, peer: str) -> None:
        wait = self._rate.take(who.id if who is not NOBODY else peer)
        if wait:
            raise Refused(429, "TooMany", "too many requests", {"Retry-After": str(max(1, round(wait)))})

    @staticmethod
    def workspace(who: Token, wanted: str | None) -> str | None:
        """The workspace that a request is for. A token for one workspace is valid only there."""
        if who.workspace is None:
            return wanted
        if wanted is not None and wanted != who.workspace:
            raise Refused(403, "Forbidden", f"This token is limited to workspace {who.workspace!r}.")
        return who.workspace

    @staticmethod
    def check_role(who: Token, role: str) -> None:
        if not who.may(role):
            raise Refused(403, "Forbidden", f"This needs the role {role}; the token has {who.role}.")


def _port(port: int | None, scheme: str) -> int:
    return port if port is not None else {"http": 80, "https": 443}.get(scheme, 0)


class Rate:
    """A token bucket for each client: a rate per second, and a burst."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, max(1.0, burst)
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, key: str) -> float:
        """0 if allowed, else the seconds to wait."""
        if not self._rate:
            return 0.0
        now = time.monotonic()
        with self._lock:
            left, at = self._left.get(key, (self._burst, now))
            left = min(self._burst, left + (now - at) * self._rate)
            if left < 1:
                self._left[key] = (left, now)
                return (1 - left) / self._rate
            if len(self._left) >= _MOST:
                self._left.clear()
            self._left[key] = (left - 1, now)
            return 0.0
