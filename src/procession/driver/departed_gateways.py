"""Polls the leader for gateways that left, and notifies the sinks.

Invariant: the leader keeps the list of departed gateways on disk, so the driver asks it and stores nothing. The next
driver gets the same names and notifies the sinks again. Reads from `gateway/leader`; passes the names to
`commit/performer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from procession.driver.gateway_clients import PATIENCE_S
from procession.errors import ProcessionError
from procession.gateway.control_client import ControlClient
from procession.tls import ClientTls

POLL_INTERVAL_S = 1.0
"""Polling interval. A gateway leaves without a record in its log, so sinks need no earlier notice."""


async def watch(
    at: str | Path,
    cookie: bytes,
    tls: ClientTls | None,
    notify: Callable[[tuple[str, ...]], None],
    poll_interval_s: float = POLL_INTERVAL_S,
) -> None:
    """Poll until cancelled. Pass the names of all departed gateways to `notify` whenever they change."""
    known: tuple[str, ...] = ()
    loop = asyncio.get_running_loop()
    with ControlClient(at, cookie, PATIENCE_S, tls=tls) as client:
        while True:
            try:
                found = await loop.run_in_executor(None, client.departed)
            except ProcessionError:
                found = (
                    known  # the leader is unreachable or refuses the request: the reader of its records reports that
                )
            if found != known:
                notify(found)
                known = found
            await asyncio.sleep(poll_interval_s)
