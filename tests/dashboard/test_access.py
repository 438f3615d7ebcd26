"""The dashboard is closed without the link, a link works once, and other sites are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from procession.dashboard.access import COOKIE_AGE_S, SECURITY_HEADERS, Guard, Sessions, own_hosts

HOST = "127.0.0.1:8000"


def sessions_in(directory: Path, link: str = "the-link", now: float = 1000.0) -> Sessions:
    return Sessions(directory, b"key", link, lambda: now)


def guarded(sessions: Sessions) -> Callable[..., httpx.Response]:
    """Send a request to an app behind the guard."""

    async def answer(_request: Request) -> PlainTextResponse:
        return PlainTextResponse("inside")

    app = Starlette(routes=[Route("/", answer), Route("/act", answer, methods=["GET", "POST"])])
    guard = Guard(app, sessions, own_hosts("127.0.0.1", 8000), "procession")

    async def ask(method: str, path: str, headers: dict[str, str]) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url=f"http://{HOST}") as client:
            return await client.request(method, path, headers=headers)

    return lambda method, path, headers: asyncio.run(ask(method, path, headers))


def test_a_link_is_valid_once_also_after_a_restart(tmp_path: Path) -> None:
    sessions = sessions_in(tmp_path)
    assert sessions.exchange("the-linc") is None
    cookie = sessions.exchange("the-link")
    assert cookie is not None
    assert sessions.is_valid(cookie)
    assert sessions.exchange("the-link") is None
    assert sessions_in(tmp_path).exchange("the-link") is None
    assert sessions_in(tmp_path, "another").exchange("another") is not None


def test_without_a_link_no_session_is_created(tmp_path: Path) -> None:
    assert sessions_in(tmp_path, "").exchange("") is None


def test_a_cookie_expires_and_cannot_be_changed(tmp_path: Path) -> None:
    cookie = sessions_in(tmp_path).exchange("the-link")
    assert cookie is not None
    assert sessions_in(tmp_path, now=1000.0 + COOKIE_AGE_S - 1).is_valid(cookie)
    assert not sessions_in(tmp_path, now=1000.0 + COOKIE_AGE_S + 1).is_valid(cookie)
    expires, nonce, signature = cookie.split(".")
    assert not sessions_in(tmp_path).is_valid(f"{int(expires) + 1}.{nonce}.{signature}")
    assert not Sessions(tmp_path, b"another key", "the-link", lambda: 1000.0).is_valid(cookie)
    for nonsense in ("", ".", "..", "a.b.c", "ä.ö.ü"):
        assert not sessions_in(tmp_path).is_valid(nonsense)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:8000"}, 200),
        ({"host": "evil.example:8000"}, 421),
        ({"host": "127.0.0.1:8001"}, 421),
        ({"host": ""}, 421),
        ({"origin": f"http://{HOST}"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"cookie": "procession=1.2.3"}, 401),
        ({"cookie": ""}, 401),
    ],
)
def test_host_origin_and_cookie_are_checked(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    sessions = sessions_in(tmp_path)
    given = {"cookie": f"procession={sessions.exchange('the-link')}", **headers}
    answer = guarded(sessions)("GET", "/", given)
    assert answer.status_code == status
    for name, value in SECURITY_HEADERS.items():
        assert answer.headers[name] == value


def test_a_request_that_changes_something_must_come_from_our_own_page(tmp_path: Path) -> None:
    sessions = sessions_in(tmp_path)
    ask, cookie = guarded(sessions), {"cookie": f"procession={sessions.exchange('the-link')}"}
    assert ask("POST", "/act", cookie).status_code == 403
    assert ask("POST", "/act", {**cookie, "origin": f"http://{HOST}"}).status_code == 200


def test_an_operator_may_add_the_name_of_a_proxy() -> None:
    assert "dash.example.org" in own_hosts("10.0.0.1", 80, ["dash.example.org"])
    assert "localhost:80" not in own_hosts("10.0.0.1", 80)
    assert "[::1]:9" in own_hosts("::1", 9)
