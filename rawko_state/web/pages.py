"""The page's routes: checks where a request comes from and whose it is, and sends HTML that a browser can't be tricked with."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from markupsafe import escape
from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from rawko_state.errors import RawkoError
from rawko_state.server import problems
from rawko_state.server.app import Server
from rawko_state.server.operations import READ
from rawko_state.server.problems import Refused
from rawko_state.server.responses import Pieces, now, peer_of, piece_by_piece
from rawko_state.web import (
    acting,
    changes,
    continuing,
    figures,
    files,
    health,
    jumps,
    live,
    output,
    palette,
    task_page,
    tasks,
)
from rawko_state.web.rendering import beginning, rendered, static_file
from rawko_state.web.sessions import SESSION_SECONDS, Links, Sessions, Visitor, cookie_name, is_form_token
from rawko_state.web.visits import Reply, View, Visit

POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not "no-referrer": browsers would then send forms with the origin "null".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
HTML: Final = "text/html; charset=utf-8"
VIEWS: Final = (
    *tasks.VIEWS,
    *task_page.VIEWS,
    *jumps.VIEWS,
    *output.VIEWS,
    *changes.VIEWS,
    *files.VIEWS,
    *figures.VIEWS,
    *health.VIEWS,
    *palette.VIEWS,
    *acting.VIEWS,
    *continuing.VIEWS,
)
_LARGEST_FORM: Final = 1 << 20
_THEMES: Final = ("light", "dark", "system")
_YEAR: Final = 365 * 86_400
_log = logging.getLogger("rawko.server")


class _Elsewhere(Convertor[str]):
    """Whatever is not the API's: its own answers say more."""

    regex = "(?!api/|static/|openapi|metrics|healthz|readyz).*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("elsewhere", _Elsewhere())


def routes(server: Server, links: Links | None = None) -> list[BaseRoute]:
    """The routes of the page. With ``links``, one comes in by a one-time link."""
    return Pages(server, links).routes()


class Pages:
    def __init__(self, server: Server, links: Links | None) -> None:
        self._server = server
        self._sessions = Sessions(server.workspaces.state, server.guard, links)
        self._links = links

    def routes(self) -> list[BaseRoute]:
        by_path: dict[str, dict[str, View]] = {}
        for view in VIEWS:
            by_path.setdefault(view.path, {})[view.method] = view
        found: list[BaseRoute] = [
            Route("/static/{name}", self._static),
            Route("/favicon.ico", self._static),  # browsers ask for it where a page names no icon
            Route("/sign-in", self._sign_in, methods=["GET", "POST"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
            Route("/settings", self._settings, methods=["POST"]),
        ]
        if self._links is not None:
            found += [Route("/open", self._opened), Route("/open/link", self._link, methods=["POST"])]
        for base in ("", "/w/{workspace}"):
            for path, methods in by_path.items():
                found.append(Route(base + path, partial(self._page, methods), methods=list(methods)))
            found.append(Route(f"{base}/live", partial(self._live, live.of_list)))
            found.append(Route(f"{base}/t/{{id}}/live", partial(self._live, live.of_task)))
        found.append(Route("/{rest:elsewhere}", self._missing))
        return found

    # Pages

    async def _page(self, methods: dict[str, View], request: Request) -> Response:
        view = methods["GET" if request.method == "HEAD" else request.method]
        started = time.perf_counter()
        who = "-"
        try:
            bounced = self._checked(request)
            if bounced is not None:
                return bounced
            visitor, form = None, {}
            if view.method == "POST":  # before its body is read
                visitor = await self._server.run(self._admitted, request)
                form = await self._form(request, visitor)
            done: tuple[str, Response] = await self._server.run(self._do, view, request, visitor, form)
            who, response = done
        except RawkoError as error:
            response = self._refused(request, error)
        except ClientDisconnect:
            response = Response(status_code=400)
        except Exception as error:
            _log_fault(view, error)
            response = self._refused(request, Refused(500, "Fault", _FAULT))
        if _log.isEnabledFor(logging.INFO):
            spent = round((time.perf_counter() - started) * 1000, 1)
            line = {
                "at": now(),
                "operation": f"page {view.method} {view.path}",
                "status": response.status_code,
                "ms": spent,
                "who": who,
            }
            _log.info(json.dumps(line))
        return response

    def _admitted(self, request: Request) -> Visitor:
        peer = peer_of(request.scope)
        visitor = self._sessions.visitor(request.headers, request.cookies, peer)
        self._server.guard.check_rate(visitor.who, peer)
        return visitor

    def _do(self, view: View, request: Request, visitor: Visitor | None, form: dict[str, str]) -> tuple[str, Response]:
        """Runs in a worker thread: everything that may wait for a disk or a database."""
        visitor = visitor or self._admitted(request)
        visit = self._visit(request, visitor, form)
        try:
            self._server.guard.check_role(visitor.who, view.role)
            reply = view.do(visit)
        except RawkoError as error:
            reply = self._trouble(visit, error)
        except (UnicodeError, OverflowError, RecursionError) as error:
            reply = self._trouble(visit, Refused(422, "InvalidValue", f"That can't be used: {error}"))
        if reply.to:
            response: Response = Response(
                status_code=303, headers={**HEADERS, "Location": quote(reply.to, safe="/?#&=%:+~@,;")}
            )
        elif reply.pieces is not None:
            pieces = piece_by_piece(reply.pieces, self._server.run)
            response = Pieces(pieces, 200, {**HEADERS, **reply.headers}, f"{reply.media}; charset=utf-8")
        elif reply.begins:
            first, rest = beginning(visit, reply.template, reply.values)
            pieces = piece_by_piece(self._rest(view, visit, rest), self._server.run, first)
            response = Pieces(pieces, reply.status, {**HEADERS, **reply.headers}, HTML)
        else:
            body = rendered(visit, reply.template, reply.values)
            response = Response(body, reply.status, {**HEADERS, **reply.headers}, media_type=HTML)
        if visitor.is_new:
            self._set_cookie(request, response, visitor.cookie)
        return visitor.who.id, response

    @staticmethod
    def _rest(view: View, visit: Visit, texts: Iterator[str]) -> Iterator[bytes]:
        """The rest of a page that has begun, with what went wrong if something did: its status is sent already."""
        made: list[str] = []
        try:
            made.extend(texts)
        except Exception as error:
            if not isinstance(error, RawkoError):
                _log_fault(view, error)
            text = _said(visit, error) if isinstance(error, RawkoError) else _FAULT
            made.append(f'<p class="note bad" role="alert">{escape(text)}</p>')
        yield "".join(made).encode("utf-8", "replace")

    def _visit(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Visit:
        wanted = request.path_params.get("workspace")
        workspace = self._server.workspaces.get(self._server.guard.workspace(visitor.who, wanted))
        base = f"/w/{wanted}" if wanted else ""
        params = {name: str(value) for name, value in request.path_params.items()}
        cookies = request.cookies
        theme = cookies.get("rawko_theme", "")
        return Visit(
            self._server, visitor, workspace, base, request.url.path, request.query_params, params, form,
            peer_of(request.scope), theme if theme in _THEMES else "system", cookies.get("rawko_keys") != "off",
        )  # fmt: skip

    @staticmethod
    def _trouble(visit: Visit, error: RawkoError) -> Reply:
        status = problems.status_of(error)
        text = _said(visit, error)
        task_id = visit.params.get("id") if status != 404 else None
        headers = error.headers if isinstance(error, Refused) else {}
        return Reply(
            "trouble.html",
            {"place": "", "title": _TITLES.get(status, "That did not work"), "text": text, "task_id": task_id},
            status,
            dict(headers),
        )

    def _refused(self, request: Request, error: RawkoError) -> Response:
        """For those who are not let in, or not known yet."""
        status = problems.status_of(error)
        if status == 401 and request.method in ("GET", "HEAD") and request.query_params.get("part") != "1":
            back = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            return Response(status_code=303, headers={**HEADERS, "Location": f"/sign-in?{urlencode({'next': back})}"})
        headers = error.headers if isinstance(error, Refused) else {}
        return _bare(
            _TITLES.get(status, "That did not work"),
            str(error),
            status,
            {k: v for k, v in headers.items() if k != "WWW-Authenticate"},
        )

    # Who, and from where

    def _checked(self, request: Request) -> Response | None:
        """Rejects a foreign Host or Origin. A link on another site may lead here, but its first request comes without the cookie
        and says so: the answer makes the browser ask again from here."""
        headers = request.headers
        secure = request.url.scheme == "https"
        by_link = (
            headers.get("sec-fetch-site") in ("cross-site", "same-site")
            and request.method == "GET"
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
            and "origin" not in headers
        )
        if not by_link:
            self._server.guard.check_origin(headers, secure=secure)
            return None
        kept = MutableHeaders(raw=list(headers.raw))  # all of them: two Host headers stay two
        del kept["sec-fetch-site"]
        self._server.guard.check_origin(kept, secure=secure)
        address = str(escape(_inside(request.url.path + (f"?{request.url.query}" if request.url.query else ""))))
        body = (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>rawko</title><link rel="icon" href="/static/icon.svg">'
            f'<meta http-equiv="refresh" content="0; url={address}"><p><a href="{address}">Continue</a></p></html>'
        )
        return Response(body, 200, HEADERS, HTML)

    async def _visitor(self, request: Request) -> Visitor:
        found: Visitor = await self._server.run(
            self._sessions.visitor, request.headers, request.cookies, peer_of(request.scope)
        )
        return found

    async def _form(self, request: Request, visitor: Visitor) -> dict[str, str]:
        form = await _form_of(request)
        if not is_form_token(visitor.cookie, form.pop("token", "")):
            raise Refused(
                403, "ForeignForm", "This form is out of date or not from this page. Reload the page and try again."
            )
        return form

    def _set_cookie(self, request: Request, response: Response, value: str, seconds: int | None = None) -> None:
        response.set_cookie(
            cookie_name(request.headers), value, max_age=seconds, path="/", httponly=True, samesite="strict",
            secure=request.url.scheme == "https",
        )  # fmt: skip

    async def _sign_in(self, request: Request) -> Response:
        form: dict[str, str] = {}
        try:
            bounced = self._checked(request)
            if bounced is not None:
                return bounced
            if request.method in ("GET", "HEAD"):
                return await self._asked_in(_inside(request.query_params.get("next")))
            form = await _form_of(request)
            cookie = await self._server.run(self._sessions.sign_in, form.get("token", ""), peer_of(request.scope))
        except RawkoError as error:
            status = problems.status_of(error)
            return await self._asked_in(
                _inside(form.get("next") if request.method == "POST" else None), str(error), status
            )
        response = Response(status_code=303, headers={**HEADERS, "Location": _inside(form.get("next"))})
        self._set_cookie(request, response, cookie, SESSION_SECONDS)
        return response

    async def _asked_in(self, next_: str, trouble: str = "", status: int = 200) -> Response:
        by_token = self._links is None or await self._server.run(self._server.workspaces.state.has_tokens)
        return _signing_in(next_, trouble, status, by_token=by_token, by_link=self._links is not None)

    async def _sign_out(self, request: Request) -> Response:
        try:
            self._server.guard.check_origin(request.headers, secure=request.url.scheme == "https")
            visitor = await self._visitor(request)
            await self._form(request, visitor)
        except RawkoError as error:
            return self._refused(request, error)
        self._sessions.leave(visitor.cookie)
        response = Response(status_code=303, headers={**HEADERS, "Location": "/sign-in"})
        response.delete_cookie(cookie_name(request.headers), path="/")
        return response

    async def _settings(self, request: Request) -> Response:
        """Light or dark, and whether single keys do something: kept in this browser."""
        try:
            self._server.guard.check_origin(request.headers, secure=request.url.scheme == "https")
            visitor = await self._visitor(request)
            form = await self._form(request, visitor)
        except RawkoError as error:
            return self._refused(request, error)
        response = Response(status_code=303, headers={**HEADERS, "Location": _inside(form.get("next"))})
        for name, allowed in (("theme", _THEMES), ("keys", ("on", "off"))):
            if form.get(name) in allowed:
                response.set_cookie(
                    f"rawko_{name}", form[name], max_age=_YEAR, path="/", httponly=True, samesite="strict"
                )
        return response

    # One-time links

    async def _opened(self, request: Request) -> Response:
        assert self._links is not None
        try:
            bounced = self._checked(request)
            if bounced is not None:
                return bounced
        except RawkoError as error:
            return self._refused(request, error)
        cookie = self._links.take(request.query_params.get("once", ""))
        if cookie is None:
            text = "This link was used before, or is too old. Run 'rawko open' again: it makes a new one."
            return _bare("This link is no longer good", text, 403)
        response = Response(status_code=303, headers={**HEADERS, "Location": _inside(request.query_params.get("next"))})
        self._set_cookie(request, response, cookie)
        return response

    async def _link(self, request: Request) -> Response:
        """Another link, for a 'rawko open' that finds this server running."""
        assert self._links is not None
        try:
            self._server.guard.check_origin(request.headers, secure=request.url.scheme == "https")
            scheme, _, key = request.headers.get("authorization", "").partition(" ")
            if scheme != "Bearer" or not self._links.is_key(key):
                raise Refused(403, "Forbidden", "this needs the key of the server")
        except RawkoError as error:
            return self._refused(request, error)
        return Response(self._links.make(), 200, HEADERS, "text/plain")

    # What is not a page

    async def _live(self, stream: Any, request: Request) -> Any:
        try:
            self._server.guard.check_origin(request.headers, secure=request.url.scheme == "https")
            visitor = await self._visitor(request)
            self._server.guard.check_role(visitor.who, READ)
            visit = await self._server.run(self._visit, request, visitor, {})
            after = request.headers.get("last-event-id") or request.query_params.get("after")
            may = partial(self._sessions.visitor, request.headers, request.cookies, peer_of(request.scope))
            return await self._server.run(stream, visit, after, may)
        except RawkoError as error:
            return self._refused(request, error)

    async def _static(self, request: Request) -> Response:
        found = static_file(request.path_params.get("name", "icon.svg"))
        try:
            self._server.guard.check_origin(request.headers, secure=request.url.scheme == "https")
        except RawkoError as error:
            return self._refused(request, error)
        if found is None:
            return _bare("Not found", "There is no such file.", 404)
        data, media, tag = found
        headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, 200, headers, media)

    async def _missing(self, request: Request) -> Response:
        try:
            bounced = self._checked(request)
        except RawkoError as error:
            return self._refused(request, error)
        return bounced or _bare("Not found", "There is no page at this address.", 404)


_TITLES: Final = {
    400: "That can't be understood", 401: "Sign in first", 403: "Not allowed", 404: "Not found", 409: "Not possible now",
    412: "It has changed since", 421: "Not this server", 422: "That can't be used", 423: "In use", 429: "Too many requests",
    500: "A fault of the server", 503: "Not reachable now",
}  # fmt: skip


_FAULT: Final = "A fault of the server. Nothing is known to be lost."


def _said(visit: Visit, error: RawkoError) -> str:
    """Without where the server keeps its files."""
    return str(error).replace(f"{visit.host.root}/", "")


def _log_fault(view: View, error: Exception) -> None:
    """Our own fault: logged without the request's content."""
    _log.error(json.dumps({"at": now(), "operation": f"page {view.path}", "fault": type(error).__name__}))


async def _form_of(request: Request) -> dict[str, str]:
    """The fields of a form. Only what forms of ours send: text, one value each, not too long."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise Refused(415, "NotAForm", "This address takes forms of this page only.")
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _LARGEST_FORM:
            raise Refused(413, "TooLarge", f"A form is at most {_LARGEST_FORM} bytes.")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=100))


def _inside(address: str | None) -> str:
    """An address of this page; anything else leads to its start."""
    given = address or "/"
    inside = given.startswith("/") and not given.startswith(("//", "/\\")) and given.isprintable() and "\\" not in given
    return quote(given, safe="/?#&=%:+~@,;") if inside else "/"


def _bare(title: str, text: str, status: int, headers: dict[str, str] | None = None) -> Response:
    """A page that says one thing, to somebody who may be anybody."""
    body = _FRAME.format(
        title=escape(title), main=f"<h1>{escape(title)}</h1><p>{escape(text)}</p><p><a href='/'>To the tasks</a></p>"
    )
    return Response(body, status, {**HEADERS, **(headers or {})}, HTML)


def _signing_in(next_: str, trouble: str, status: int, *, by_token: bool, by_link: bool) -> Response:
    said = f'<p class="note bad" role="alert">{escape(trouble)}</p>' if trouble else ""
    token = (
        '<form method="post" action="/sign-in"><label for="token">Access token</label>'
        '<input class="field" id="token" name="token" type="password" autocomplete="current-password" required autofocus'
        ' spellcheck="false">'
        f'<input type="hidden" name="next" value="{escape(next_)}">'
        '<p class="sec"><button class="btn main">Sign in</button></p></form>'
        '<p class="dim">It is kept in this browser as a session, not as the token itself.'
        " Whoever runs the server makes one with <code>rawko token create</code>.</p>"
    )
    link = (
        f"<p{' class=dim' if by_token else ''}>Whoever runs the server signs in on this machine by a one-time link:"
        " <code>rawko open</code> makes one.</p>"
    )
    body = _FRAME.format(
        title="Sign in", main=f"<h1>Sign in to rawko</h1>{said}{token if by_token else ''}{link if by_link else ''}"
    )
    return Response(body, status, HEADERS, HTML)


_FRAME: Final = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
    '<title>{title} · rawko</title><link rel="icon" href="/static/icon.svg" type="image/svg+xml">'
    '<link rel="stylesheet" href="/static/style.css"></head>'
    '<body><main class="card">{main}</main></body></html>\n'
)
