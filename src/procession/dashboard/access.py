"""Controls access to the dashboard: the one-time secret of its link, the cookie for which the secret is exchanged,
Host and Origin.

Invariant: without a valid cookie only the exchange of the link is answered. A link works once, even after a restart.
A request with another Host is refused, so that no other site can reach the page under its own name (DNS rebinding). A
request with another Origin is refused, so that no other site can act for the user. All secrets are compared in
constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from starlette.datastructures import Headers, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE_AGE_S = 12 * 3600
"""Time for which a cookie is valid, in seconds."""
SPENT_MAX = 100
"""Maximum number of used links that are remembered."""
SPENT = "dashboard-links.json"

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Sessions:
    """Exchanges links for cookies. `key` signs the cookies; `link` is the secret of the current link."""

    def __init__(self, directory: Path, key: bytes, link: str, now: Callable[[], float] = time.time) -> None:
        self._spent_file = directory / SPENT
        self._key = key
        self._link = link
        self._now = now

    def exchange(self, secret: str) -> str | None:
        """Return a cookie for the link's secret. None if the secret is wrong or was used before."""
        mark = hashlib.sha256(self._link.encode()).hexdigest()
        if not self._link or not hmac.compare_digest(secret.encode(), self._link.encode()) or mark in self._spent():
            return None
        draft = self._spent_file.with_suffix(".draft")
        draft.write_text(json.dumps([*self._spent(), mark][-SPENT_MAX:]))
        draft.replace(self._spent_file)
        content = f"{int(self._now() + COOKIE_AGE_S)}.{secrets.token_hex(8)}"
        return f"{content}.{self._signature(content)}"

    def is_valid(self, cookie: str) -> bool:
        content, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(content).encode()):
            return False
        expires = content.partition(".")[0]
        return expires.isdecimal() and int(expires) > self._now()

    def _signature(self, content: str) -> str:
        return hmac.new(self._key, content.encode(), hashlib.sha256).hexdigest()

    def _spent(self) -> list[str]:
        try:
            found = json.loads(self._spent_file.read_text())
        except (OSError, ValueError):
            return []
        return found if isinstance(found, list) else []


def own_hosts(host: str, port: int, also: Iterable[str] = ()) -> frozenset[str]:
    """Return the accepted values of `Host`: the address, its names on this machine, and names that an operator
    adds."""
    names = {host, *(("localhost", "127.0.0.1", "[::1]") if host in ("127.0.0.1", "localhost", "::1", "[::1]") else ())}
    shown = {f"[{name}]" if ":" in name and not name.startswith("[") else name for name in names}
    return frozenset({f"{name}:{port}" for name in shown} | set(also) | (shown if port == 80 else set()))


class Guard:
    """Checks every request before it reaches the app, and adds security headers to every answer."""

    def __init__(self, app: ASGIApp, sessions: Sessions, hosts: frozenset[str], cookie: str) -> None:
        self._app = app
        self._sessions = sessions
        self._hosts = hosts
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        if headers.get("host", "") not in self._hosts:
            return _refused(421, "This name is not one of the dashboard's. Use the link that `procession run` printed.")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] not in self._hosts:
            return _refused(403, "Requests from other sites are refused.")
        if scope["method"] not in ("GET", "HEAD") and origin is None:
            return _refused(403, "A request for an action must have an Origin header.")
        if scope["path"] == "/" and "secret" in QueryParams(scope["query_string"]):
            return None
        if not self._sessions.is_valid(cookie_parser(headers.get("cookie", "")).get(self._cookie, "")):
            return _refused(
                401,
                "Open the link that `procession run` printed; it can be opened once. For a new link run"
                " `procession dashboard --dir DIR`.",
            )
        return None


def _refused(status: int, sentence: str) -> PlainTextResponse:
    return PlainTextResponse(f"{sentence}\n", status, {"Cache-Control": "no-store"})
