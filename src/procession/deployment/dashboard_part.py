"""Manages the dashboard of a run: its port, its link and its process.

Invariant: the dashboard uses no process until a user opens the link. The run listens on the port, and starts the
serving process when the first connection waits. A port that is in use, or a dashboard that fails, is reported in one
sentence, and the pipeline continues. Used by `jobs/run_app`.
"""

from __future__ import annotations

import secrets
import select
import socket
import sys
from pathlib import Path

from procession.address import parse_address
from procession.deployment.settings import Settings
from procession.errors import ProcessionError
from procession.supervisor.part import Part
from procession.supervisor.supervisor import Supervisor

DASHBOARD = "dashboard"
LINK_VARIABLE = "PROCESSION_DASHBOARD_SECRET"
"""Environment variable with the secret of the link. Unlike an argument, other users cannot read it."""


class DashboardPort:
    """Listens for the first connection, if the port is free. `sentence` has the address, or the reason why there is
    no dashboard."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        self._directory = directory
        self._settings = settings
        self._secret = secrets.token_urlsafe(18)
        self._socket: socket.socket | None = None
        self._is_started = False
        self.sentence = ""
        if not settings.dashboard:
            return
        try:
            host, port = parse_address(settings.dashboard_listen)
            self._socket = socket.create_server((host, port), backlog=64)
        except (OSError, ProcessionError) as error:
            self.sentence = f"no dashboard: {settings.dashboard_listen} cannot be used ({error})"
            return
        bound = self._socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.sentence = f"dashboard: http://{shown}:{bound}/?secret={self._secret}"

    def poll(self, supervisor: Supervisor) -> None:
        """Start the process if a connection waits."""
        if self._socket is None or self._is_started:
            return
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        if not waiting.poll(0):
            return
        self._is_started = True
        descriptor = self._socket.fileno()
        argv = [sys.executable, "-m", "procession", "dashboard", "--dir", str(self._directory), "--fd", str(descriptor)]
        if self._settings.control_cookie_file is not None:
            argv += ["--control-cookie-file", str(self._settings.control_cookie_file)]
        for name in ("tls_ca", "tls_cert", "tls_key", "tls_name"):
            value = getattr(self._settings, name)
            if value is not None and self._settings.tls_ca is not None:
                argv += [f"--{name.replace('_', '-')}", str(value)]
        supervisor.start(
            Part(
                DASHBOARD,
                tuple(argv),
                env={LINK_VARIABLE: self._secret},
                stop_timeout_s=3.0,
                pass_fds=(descriptor,),
                is_needed=False,
            )
        )

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
