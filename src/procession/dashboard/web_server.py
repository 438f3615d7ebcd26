"""Serves the dashboard of one pipeline until it is asked to stop.

Invariant: the server listens before it reports its address. A failure here does not affect the pipeline.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

import uvicorn

from procession.dashboard.access import Sessions, own_hosts
from procession.dashboard.web_app import web_app
from procession.storage.secret import Secret, make_secret
from procession.tls import ClientTls

CONNECTIONS_MAX = 128
"""Maximum number of concurrent requests. Further requests are answered with 503."""
STOP_S = 2
"""Time to wait for open pages when the server stops."""


def serve_dashboard(
    directory: Path,
    listening: socket.socket,
    control_cookie: bytes,
    tls: ClientTls | None = None,
    link: str = "",
    hosts: Iterable[str] = (),
    control_arguments: tuple[str, ...] = (),
    say: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Serve until SIGTERM or SIGINT. `link` is the secret of the link; without it, a new secret is created."""
    link = link or secrets.token_urlsafe(18)
    host, port = listening.getsockname()[:2]
    sessions = Sessions(directory, make_secret(directory, Secret.DASHBOARD), link)
    names = own_hosts(host, port, hosts)
    app = web_app(directory, sessions, names, f"procession-{port}", control_cookie, tls, control_arguments)
    shown = f"[{host}]" if ":" in host else host
    say(f"dashboard: http://{shown}:{port}/?secret={link}")
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=STOP_S,
        ws="none",
        lifespan="on",
    )
    uvicorn.Server(config).run(sockets=[listening])
