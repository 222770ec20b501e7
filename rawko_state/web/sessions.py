"""Who looks at the page: a session in a cookie, one-time links for the person at this machine, and a token against forged forms.

A cookie is one of three. ``token``: signed in with an access token; it names the token and is signed with what the server stores
of it, so it ends when the token is revoked, and works on every server of the same database. ``link``: came by a one-time link of
``rawko open``; it lasts as long as that server. ``open``: on a server that lets everybody on this machine in, it proves nothing,
and only ties forms to a browser. The token of a form is derived from the cookie, which no other site can read.
"""

from __future__ import annotations

import hmac
import re
import secrets
import threading
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import Final, NamedTuple

from starlette.datastructures import Headers

from rawko_state.errors import InvalidValue
from rawko_state.server.guard import NOBODY, Guard, split_host
from rawko_state.store.hosting import ServerState, Token

LINK_SECONDS: Final = 120.0
"""How long a one-time link is good for. A browser opens it at once."""
SESSION_SECONDS: Final = 30 * 86_400
_MOST: Final = 1_000
_COOKIE = re.compile(r"(token)\.([0-9a-f]{12})\.([0-9]{1,12})\.([0-9a-f]{64})|(link|open)\.([0-9A-Za-z_-]{43})")


class Links:
    """One-time links to a server that lets in nobody else, and the sessions that began with one."""

    def __init__(self, name: str, key: str | None = None) -> None:
        """``name``: of the person at this machine. ``key``: whoever knows it may ask for another link."""
        self.who = Token("local", "admin", None, name, "", None)
        self.key = key or secrets.token_urlsafe(32)
        self._lock = threading.Lock()
        self._links: dict[str, float] = {}
        self._sessions: dict[str, None] = {}

    def make(self) -> str:
        link = secrets.token_urlsafe(32)
        with self._lock:
            now = time.monotonic()
            self._links = {each: until for each, until in self._links.items() if until > now}
            self._links[link] = now + LINK_SECONDS
        return link

    def take(self, link: str) -> str | None:
        """The cookie of a new session; None if the link was used before, or is too old."""
        with self._lock:
            until = self._links.pop(link, 0.0)
            if until <= time.monotonic():
                return None
            session = secrets.token_urlsafe(32)
            self._sessions[session] = None
            while len(self._sessions) > _MOST:
                self._sessions.pop(next(iter(self._sessions)))
        return f"link.{session}"

    def knows(self, session: str) -> bool:
        return session in self._sessions

    def end(self, session: str) -> None:
        with self._lock:
            self._sessions.pop(session, None)

    def is_key(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.key.encode())


class Visitor(NamedTuple):
    """Who made a request to the page."""

    who: Token
    cookie: str
    is_new: bool
    """The cookie must be sent to the browser."""

    @property
    def name(self) -> str:
        return self.who.note or ("" if self.who is NOBODY else self.who.id)

    @property
    def came_by_link(self) -> bool:
        """Whether this is the person whose server it is."""
        return self.cookie.startswith("link.")

    @property
    def can_leave(self) -> bool:
        return not self.cookie.startswith("open.")


class Sessions:
    def __init__(self, state: ServerState, guard: Guard, links: Links | None = None) -> None:
        self._state, self._guard, self.links = state, guard, links

    def visitor(self, headers: Headers, cookies: Mapping[str, str], peer: str) -> Visitor:
        """Raises Refused (401) for a stranger."""
        cookie = cookies.get(cookie_name(headers), "")
        who = self._known(cookie)
        if who is not None:
            return Visitor(who, cookie, False)
        who = self._guard.who(headers, peer)
        if cookie.startswith("open.") and _COOKIE.fullmatch(cookie):
            return Visitor(who, cookie, False)
        return Visitor(who, f"open.{secrets.token_urlsafe(32)}", True)

    def _known(self, cookie: str) -> Token | None:
        match = _COOKIE.fullmatch(cookie)
        if match is None:
            return None
        if match[1]:
            found = self._state.signed(match[2], f"page {match[3]}") if int(match[3]) > time.time() else None
            return found[0] if found is not None and hmac.compare_digest(found[1], match[4]) else None
        if match[5] == "link" and self.links is not None and self.links.knows(match[6]):
            return self.links.who
        return None

    def sign_in(self, token: str, peer: str) -> str:
        """The cookie for a token. Raises Refused if it is wrong, and for a while if too many were."""
        who = self._guard.who({"authorization": f"Bearer {token.strip()}"}, peer)
        until = int(time.time()) + SESSION_SECONDS
        found = self._state.signed(who.id, f"page {until}")
        assert found is not None
        return f"token.{who.id}.{until}.{found[1]}"

    def leave(self, cookie: str) -> None:
        if self.links is not None and cookie.startswith("link."):
            self.links.end(cookie.removeprefix("link."))


def cookie_name(headers: Headers) -> str:
    """Browsers share cookies between the ports of a host, so the name holds the port."""
    try:
        port = split_host(headers.get("host", ""))[1]
    except InvalidValue:
        port = None
    return f"rawko_{port}" if port else "rawko"


def form_token(cookie: str) -> str:
    """What a form of this session carries."""
    return hmac.new(cookie.encode(), b"rawko form", sha256).hexdigest()[:40]


def is_form_token(cookie: str, given: str) -> bool:
    return hmac.compare_digest(form_token(cookie).encode(), given.encode("utf-8", "replace"))
