"""Polls the leader for gateways that left, and notifies the sinks.

The one rule: the leader keeps the list of departed gateways on disk, so the driver asks it and stores nothing. The next
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

LOOK_S = 1.0
"""Polling interval. A gateway leaves without a record in its log, so sinks need no earlier notice."""


async def watch(
    at: str | Path,
    cookie: bytes,
    tls: ClientTls | None,
    tell: Callable[[tuple[str, ...]], None],
    look_s: float = LOOK_S,
) -> None:
    """Until cancelled: passes on the names of all gateways that have left, each time that they change."""
    known: tuple[str, ...] = ()
    loop = asyncio.get_running_loop()
    with ControlClient(at, cookie, PATIENCE_S, tls=tls) as client:
        while True:
            try:
                found = await loop.run_in_executor(None, client.departed)
            except ProcessionError:
                found = known  # it is away, or refuses us: whoever asks it for records says so
            if found != known:
                tell(found)
                known = found
            await asyncio.sleep(look_s)
