"""Defines the web application of the dashboard: its page, live feed, requests and the operator's buttons.

Invariant: a request that changes the pipeline needs the operator's secret (the secret of the control port) in
addition to the cookie. Wrong secrets are answered slowly, one at a time. Answers are computed in threads, one at a
time, so that a browser cannot take more than one core.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from procession.dashboard import views
from procession.dashboard.access import COOKIE_AGE_S, Guard, Sessions
from procession.dashboard.feed import SnapshotFeed
from procession.deployment.run_claim import stop
from procession.deployment.run_details import read_events
from procession.driver.driver_reports import EPOCHS
from procession.errors import ConfigError, ProcessionError
from procession.jobs.intake import Intake
from procession.monitoring.content_check import STAYING_BYTES_MAX
from procession.monitoring.epoch_history import page, read_all
from procession.monitoring.pipeline_snapshot import PipelineSnapshots
from procession.savepoints.savepoint_create import create
from procession.supervisor import cleanup
from procession.supervisor.part_log import last_lines
from procession.tls import ClientTls

STATIC = Path(__file__).parent / "static"
BODY_MAX = 4096
"""Maximum size of a request's body, in bytes."""
DRAIN_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 90.0
WRONG_SECRET_S = 1.0
"""Delay of the answer to a wrong secret."""
FOREVER_S = 1e12

# The page loads the next page itself, so that the browser sends the cookie. After a redirect from a link on another
# site, the browser would not send it.
ENTERED = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/"><title>Procession</title>'
    '<p><a href="/">Open the dashboard</a></p>'
)
USED = (
    '<!doctype html><meta charset="utf-8"><title>Procession</title><p>This link was used, or is not the present one.'
    " For a new link run <code>procession dashboard --dir DIR</code>.</p>"
)


@dataclass
class Dashboard:
    """The data and the handlers of all routes."""

    directory: Path
    sessions: Sessions
    cookie_name: str
    control_cookie: bytes
    tls: ClientTls | None
    control_arguments: tuple[str, ...] = ()
    """The options with which a command finds the secret and the certificates of the control port."""
    feed: SnapshotFeed = field(init=False)
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    guessing: asyncio.Lock = field(default_factory=asyncio.Lock)
    last_action: dict[str, Any] | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.feed = SnapshotFeed(
            PipelineSnapshots(self.directory, self.control_cookie, self.tls, contents_bytes_max=STAYING_BYTES_MAX)
        )

    async def home(self, request: Request) -> Response:
        """Return the page or, for a request with the link's secret, the cookie."""
        given = request.query_params.get("secret")
        if given is None:
            return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-store"})
        cookie = self.sessions.exchange(given)
        if cookie is None:
            return HTMLResponse(USED, 401, {"Cache-Control": "no-store"})
        response = HTMLResponse(ENTERED, headers={"Cache-Control": "no-store"})
        response.set_cookie(self.cookie_name, cookie, max_age=COOKIE_AGE_S, httponly=True, samesite="strict", path="/")
        return response

    async def events(self, request: Request) -> Response:
        if self.feed.is_full:
            return JSONResponse({"error": "Too many pages are open. Close some."}, 503)
        return EventSourceResponse(self.feed.events(request.headers.get("last-event-id", "")), ping=15)

    async def snapshot(self, _request: Request) -> Response:
        return JSONResponse(await self.feed.take())

    async def streams(self, _request: Request) -> Response:
        async with self.feed.lock:
            return await self._read(self.feed.snapshots.streams)

    async def history(self, request: Request) -> Response:
        from_s = _number(request.query_params.get("from"), 0.0)
        to_s = _number(request.query_params.get("to"), FOREVER_S)

        def recent() -> dict[str, Any]:
            points = page(read_all(self.directory / EPOCHS), from_s, to_s)
            happened = [event for event in read_events(self.directory) if from_s <= event["at_s"] <= to_s]
            return points | {"events": happened[-200:]}

        return await self._read(recent)

    async def letters(self, _request: Request) -> Response:
        return await self._read(partial(views.letters, self.directory))

    async def logs(self, request: Request) -> Response:
        return await self._read(partial(views.log_events, self.directory, request.query_params.get("part", "driver")))

    async def states(self, request: Request) -> Response:
        return await self._read(partial(views.largest_states, self.directory, request.query_params.get("stage", "")))

    async def settings(self, _request: Request) -> Response:
        return await self._read(partial(views.settings, self.directory))

    async def plan(self, _request: Request) -> Response:
        return await self._read(partial(views.plan, self.directory))

    async def _read(self, read: Callable[[], dict[str, Any]]) -> Response:
        async with self.reading:
            try:
                return JSONResponse(await asyncio.to_thread(read))
            except (ProcessionError, OSError) as error:
                return JSONResponse({"error": views.sentence_of(error)}, 409)

    async def act(self, request: Request) -> Response:
        """Pause, resume, drain or stop the pipeline, or create a savepoint, for a user who knows the operator's
        secret."""
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > BODY_MAX:
                return JSONResponse({"error": "The request is too long."}, 413)
        secret = request.headers.get("x-operator-secret", "")
        async with self.guessing:
            if not self.control_cookie or not hmac.compare_digest(secret.encode(), self.control_cookie):
                await asyncio.sleep(WRONG_SECRET_S)
                why = f"That is not the operator's secret. It is in {self.directory}/secrets/control."
                return JSONResponse({"error": why}, 403)
        name = str(request.path_params["action"])
        intake = Intake(self.directory, self.control_cookie, self.tls)
        actions: dict[str, Callable[[], Any]] = {
            "pause": intake.pause,
            "resume": intake.resume,
            "drain": partial(drain_apart, self.directory, self.control_arguments),
            "savepoint": partial(create, self.directory, f"dashboard-{datetime.now(UTC):%Y%m%d-%H%M%S}"),
            "stop": partial(stop, self.directory, STOP_TIMEOUT_S),
        }
        if name not in actions:
            return JSONResponse({"error": f"There is no action {name!r}."}, 404)
        if self.last_action is not None and self.last_action["state"] == "running":
            return JSONResponse({"error": f"The pipeline is still busy with: {self.last_action['action']}."}, 409)
        self.last_action = {"action": name, "state": "running", "sentence": "", "at_s": time.time()}
        task = asyncio.create_task(self._do(actions[name], self.last_action))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return JSONResponse(self.last_action, 202)

    async def _do(self, work: Callable[[], Any], action: dict[str, Any]) -> None:
        try:
            await asyncio.to_thread(work)
            action["state"] = "done"
        except (ProcessionError, OSError) as error:
            action |= {"state": "failed", "sentence": views.sentence_of(error)}

    async def action(self, _request: Request) -> Response:
        """Return the last action and its result."""
        return JSONResponse(self.last_action or {"action": None, "state": "none", "sentence": ""})


def drain_apart(directory: Path, arguments: tuple[str, ...]) -> None:
    """Drain the pipeline in a separate process, because the pipeline ends this dashboard when it stops."""
    environment = {name: value for name, value in os.environ.items() if name != cleanup.VARIABLE}
    command = [sys.executable, "-m", "procession", "drain", "--dir", str(directory), *arguments]
    command += ["--timeout-s", str(DRAIN_TIMEOUT_S)]
    done = subprocess.run(
        command,
        env=environment,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ConfigError(last_lines(done.stderr) or f"`procession drain` ended with status {done.returncode}.")


def _number(text: str | None, otherwise: float) -> float:
    try:
        return float(text) if text else otherwise
    except ValueError:
        return otherwise


def web_app(
    directory: Path,
    sessions: Sessions,
    hosts: frozenset[str],
    cookie_name: str,
    control: bytes,
    tls: ClientTls | None = None,
    control_arguments: tuple[str, ...] = (),
) -> ASGIApp:
    """Return the application behind its guard."""
    dashboard = Dashboard(directory, sessions, cookie_name, control, tls, control_arguments)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await dashboard.feed.close()

    return Starlette(
        routes=[
            Route("/", dashboard.home),
            Route("/events", dashboard.events),
            Route("/api/snapshot", dashboard.snapshot),
            Route("/api/streams", dashboard.streams),
            Route("/api/history", dashboard.history),
            Route("/api/letters", dashboard.letters),
            Route("/api/logs", dashboard.logs),
            Route("/api/states", dashboard.states),
            Route("/api/settings", dashboard.settings),
            Route("/api/plan", dashboard.plan),
            Route("/api/action", dashboard.action),
            Route("/api/actions/{action}", dashboard.act, methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[
            Middleware(Guard, sessions=sessions, hosts=hosts, cookie=cookie_name),
            Middleware(GZipMiddleware, minimum_size=2048),
        ],
        lifespan=lifespan,
    )
