"""HTTP client: one persistent connection per thread, server errors raised as their original types, and timeouts throughout.

It uses only the standard library, so a command that uses a server starts as fast as one that uses files.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from rawko_state import errors
from rawko_state.backends.remote.proxies import proxy_for
from rawko_state.errors import InvalidValue, RawkoError, ServerAway, ServerRefused
from rawko_state.forking import renew_after_fork
from rawko_state.index.connections import Connections

PREFIX: Final = "/api/v1"
_CONNECT: Final = 5.0
_ANSWER: Final = 30.0
_SILENCE: Final = 45.0
"""Seconds without even a heartbeat after which a stream is considered dead."""
_TRIES: Final = 6
_FIRST: Final = 0.1
_LONGEST: Final = 2.0
"""Seconds between two tries: the first pause, which doubles each time, and the longest."""
_LOST: Final = (OSError, http.client.HTTPException)


class Http:
    """One server. Thread-safe."""

    def __init__(self, url: str, token: str | None = None, workspace: str | None = None, ca: str | None = None) -> None:
        """``ca`` is a file with the certificates to trust, besides those of the system."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidValue(f"Not a server address: {url!r:.200}. Write https://host or https://host:port.")
        self.url = url.rstrip("/")
        self._parts, self._token, self._workspace = parts, token, workspace
        self._proxy = proxy_for(parts)
        self._ca = ca or os.environ.get("RAWKO_REMOTE_CA")
        self._base = parts.path.rstrip("/") + PREFIX
        self._local = threading.local()
        self._connections = Connections(self)
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._connections.disown()
        self._local = threading.local()

    @property
    def where(self) -> str:
        return f"{self.url} ({self._workspace})" if self._workspace else self.url

    # Connections

    def _connect(self, timeout: float = _ANSWER) -> http.client.HTTPConnection:
        host, port, proxy = self._parts.hostname or "", self._parts.port, self._proxy
        made: http.client.HTTPConnection
        to = (host, port) if proxy is None else (proxy.host, proxy.port)
        if self._parts.scheme == "https":
            made = http.client.HTTPSConnection(*to, timeout=_CONNECT, context=self._context())
            if proxy is not None:
                made.set_tunnel(host, port or 443, proxy.headers)
        else:
            made = http.client.HTTPConnection(*to, timeout=_CONNECT)
        try:
            made.connect()
        except OSError as error:
            through = "" if proxy is None else f" (through the proxy {proxy.host}:{proxy.port})"
            raise ServerAway(f"Can't reach {self.url}{through}: {_why(error)}.") from error
        made.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.sock.settimeout(timeout)
        return made

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self._ca is not None:
            try:
                context.load_verify_locations(self._ca)
            except OSError as error:
                raise InvalidValue(f"Can't read the certificates in {self._ca}: {error.strerror or error}.") from None
        return context

    def _target(self, path: str) -> str:
        """A proxy for plain HTTP wants the whole address."""
        if self._proxy is None or self._parts.scheme == "https":
            return path
        return f"http://{self._parts.netloc.rpartition('@')[2]}{path}"

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        """Keeps a connection for this thread's next request."""
        if getattr(self._local, "connection", None) is not connection:
            self._local.connection = connection
            self._connections.add(connection)

    def close(self) -> None:
        """Closes this thread's connection, and those of threads that have ended."""
        kept = getattr(self._local, "connection", None)
        if kept is not None:
            self._local.connection = None
            self._connections.remove(kept)
            kept.close()
        self._connections.close_ended()

    def _headers(self, more: Mapping[str, str]) -> dict[str, str]:
        found = {"Accept": "application/json", **more}
        if self._token:
            found["Authorization"] = f"Bearer {self._token}"
        if self._workspace:
            found["Rawko-Workspace"] = self._workspace
        if self._proxy is not None and self._parts.scheme == "http":
            found |= self._proxy.headers
        return found

    def path(self, *parts: object, **query: Any) -> str:
        """Builds a URL path with quoted parts. None values are left out of the query; lists repeat the parameter."""
        where = "/".join(quote(str(part), safe="") for part in parts)
        pairs = [
            (name, {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value))
            for name, values in query.items()
            for value in (values if isinstance(values, (list, tuple)) else [values])
            if value is not None
        ]
        return f"{self._base}/{where}" + (f"?{urlencode(pairs)}" if pairs else "")

    # Requests

    def ask(
        self,
        method: str,
        path: str,
        *,
        data: Any = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Returns the server's JSON response, or None if it is empty. Changes carry an idempotency key, so they can be sent again
        if no response arrives."""
        given = dict(headers or {})
        if data is not None:
            body = json.dumps(data).encode()
            given["Content-Type"] = "application/json"
        elif body is not None:
            given.setdefault("Content-Type", "application/octet-stream")
        if method != "GET":
            given.setdefault("Idempotency-Key", uuid.uuid4().hex)
        _, content = self._sent(method, path, body, self._headers(given), timeout)
        if not content:
            return None
        try:
            return json.loads(content)
        except ValueError:
            raise ServerRefused(f"{self.url} is not a rawko server: its answer can't be read.") from None

    @property
    def last_seal(self) -> str | None:
        """The task's last seal according to the response that this thread got last, if it says so."""
        found: str | None = getattr(self._local, "etag", None)
        return found.strip('"') if found else None

    def fetch(self, path: str, start: int, length: int) -> bytes:
        """A range of a resource's bytes; fewer at the end."""
        headers = self._headers({"Range": f"bytes={start}-{start + length - 1}"})
        try:
            status, content = self._sent("GET", path, None, headers)
        except ServerRefused as error:
            if error.status == 416:
                return b""
            raise
        return content if status == 206 else content[start : start + length]

    def _sent(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float | None = None
    ) -> tuple[int, bytes]:
        for attempt in range(_TRIES):
            connection = getattr(self._local, "connection", None)
            fresh = connection is None
            try:
                connection = connection or self._connect()
            except ServerAway:
                if not attempt or attempt == _TRIES - 1:
                    raise
                _pause(attempt)  # it was reachable a moment ago, and may have received the request
                continue
            if timeout is not None:
                connection.sock.settimeout(timeout)
            try:
                connection.request(method, self._target(path), body, headers)
                response = connection.getresponse()
                content = response.read()
            except _LOST as error:
                connection.close()
                self.close()
                # The server may have closed a kept connection. Sending twice is safe, as requests are idempotent.
                if attempt == _TRIES - 1 or (fresh and isinstance(error, TimeoutError)):
                    raise ServerAway(f"Can't reach {self.url}: {_why(error)}.") from error
                if fresh:
                    _pause(attempt)
                continue
            self._local.etag = response.getheader("ETag")
            if response.will_close:
                connection.close()
                self.close()
            else:
                self._keep(connection)
            busy = response.status == 409 and _title(content) == "InProgress"
            if busy or (response.status in (429, 503) and attempt < _TRIES - 1):
                # Sending again is safe, as every change has a key.
                _pause(attempt, response.getheader("Retry-After"))
                continue
            if response.status >= 400:
                raise raised(response.status, content, self.url)
            return response.status, content
        raise ServerAway(f"{self.url} is too slow: a request did not finish.")

    def upload(self, path: str, pieces: Iterable[bytes]) -> Any:
        """Sends a long body in pieces."""
        connection = self._connect(600.0)
        try:
            headers = self._headers({"Content-Type": "application/octet-stream", "Transfer-Encoding": "chunked"})
            connection.request("PUT", self._target(path), iter(pieces), headers, encode_chunked=True)
            response = connection.getresponse()
            content = response.read()
        except _LOST as error:
            raise ServerAway(f"Can't reach {self.url}: {_why(error)}.") from error
        finally:
            connection.close()
        if response.status >= 400:
            raise raised(response.status, content, self.url)
        return json.loads(content) if content else None

    def stream(self, path: str, after: str | None) -> Iterator[tuple[str, str, str] | None]:
        """Yields server-sent events as (kind, id, data), and heartbeats as None. Raises ServerAway if the connection is lost."""
        connection = self._connect(_SILENCE)
        try:
            headers = self._headers({"Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})})
            connection.request("GET", self._target(path), headers=headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise raised(response.status, response.read(), self.url)
            kind = cursor = ""
            lines: list[str] = []
            while line := response.readline():
                text = line.decode("utf-8", "replace").rstrip("\n")
                if not text:
                    if lines:
                        yield kind or "message", cursor, "\n".join(lines)
                    kind, lines = "", []
                elif text.startswith(":"):
                    yield None
                else:
                    name, _, value = text.partition(": ")
                    if name == "data":
                        lines.append(value)
                    elif name == "event":
                        kind = value
                    elif name == "id":
                        cursor = value
        except _LOST as error:
            raise ServerAway(f"Can't reach {self.url}: {_why(error)}.") from error
        finally:
            connection.close()


def _pause(attempt: int, wanted: str | None = None) -> None:
    """Waits longer each time, and not as long as all the others that wait. The server may name a time."""
    least = min(float(wanted), _LONGEST) if wanted and wanted.isdecimal() else 0.0
    time.sleep(max(least, random.uniform(0.5, 1.0) * min(_LONGEST, _FIRST * 2**attempt)))


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no response"
    why = str(getattr(error, "strerror", None) or error or type(error).__name__)
    return why[:1].lower() + why[1:]


def _title(content: bytes) -> str:
    try:
        return str(json.loads(content).get("title"))
    except (ValueError, AttributeError):
        return ""


_NO_TOKEN: Final = "; give a token in RAWKO_REMOTE_TOKEN, or keep one with 'rawko token save {url}'"


def raised(status: int, content: bytes, url: str) -> RawkoError:
    """The server's error, as it would have been raised here."""
    try:
        problem = json.loads(content)
        title, detail, data = str(problem["title"]), str(problem["detail"]), problem.get("data") or {}
    except (ValueError, KeyError, TypeError, AttributeError):
        if status in (502, 503, 504):
            return ServerAway(f"Can't reach {url}: the proxy in front of it returned {status}.")
        return ServerRefused(f"{url} returned {status} and does not look like a rawko server.", status)
    kind = getattr(errors, title, None)
    if not isinstance(kind, type) or not issubclass(kind, RawkoError) or kind is RawkoError:
        if title == "RawkoError":
            return RawkoError(detail)
        return ServerRefused(f"{url}: {detail}" + (_NO_TOKEN.format(url=url) if status == 401 else ""), status)
    made = kind.__new__(kind)
    Exception.__init__(made, detail)
    for name, value in data.items():
        if name.isidentifier() and not name.startswith("_"):
            setattr(made, name, tuple(value) if isinstance(value, list) else value)
    if isinstance(made, errors.Stopped):
        made.status = data.get("became", "")
    if isinstance(made, errors.StorageError):
        made.path, made.errno = url, None
    return made


def token_for(url: str) -> str | None:
    """The token from RAWKO_REMOTE_TOKEN, otherwise from the system keyring, if available."""
    given = os.environ.get("RAWKO_REMOTE_TOKEN")
    if given:
        return given
    with contextlib.suppress(Exception):  # no keyring, or a locked one: the server will say what is missing
        import keyring

        found: str | None = keyring.get_password("rawko", url.rstrip("/"))
        return found
    return None
