"""Carries out that gateways are abandoned: the driver ignores them, and informs the leader.

Invariant: a driver reports a gateway to the leader only if its own copy of the checkpoint is complete and without
undecided records of the gateway (`commit/abandoned_gateways`). The leader has the last commit before it gets the
report, because the streams of the gateway continue at these positions. Used by `driver/offsets` and the simulator's
driver; uses `gateway/control_client`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

from procession.commit.abandoned_gateways import Abandoned, is_abandoned
from procession.commit.checkpoint import Checkpoint
from procession.commit.log_locations import LogLocations
from procession.driver.last_commit import LastCommit, send_commit
from procession.errors import ProcessionError, RoundError
from procession.gateway.control_client import ControlClient
from procession.gateway.members import Member
from procession.storage.log_ranges import FIRST_GATEWAY

POLL_S = 1.0
"""Interval at which a driver checks whether a gateway was abandoned since it started."""


def remaining(gateways: Iterable[Member], abandoned: Abandoned) -> list[Member]:
    """Return the gateways of the leader's list that were not abandoned."""
    return [gateway for gateway in gateways if not is_abandoned(gateway, abandoned)]


def unreported(gateways: Iterable[Member], abandoned: Abandoned) -> list[Member]:
    """Return the abandoned gateways that the leader still lists."""
    return [gateway for gateway in gateways if is_abandoned(gateway, abandoned)]


def report_abandoned(last: LastCommit, gateways: Iterable[Member], abandoned: Abandoned, leader: ControlClient) -> None:
    """Inform the leader of abandoned gateways that it still lists. Raises RoundError if it is unreachable."""
    gone = unreported(gateways, abandoned)
    if gone and last.record is not None:
        send_commit(last.fence, last.record, FIRST_GATEWAY, leader)
    for gateway in gone:
        leader.abandon(last.fence, last.epochs, gateway.name, gateway.identity)


async def watch_gateways(
    departures: Coroutine[Any, Any, None], checkpoint: Checkpoint, fail: Callable[[ProcessionError], None]
) -> None:
    """Watch which gateways leave and which are abandoned, until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(departures)
        tasks.create_task(watch_abandoned(checkpoint, fail))


async def watch_abandoned(checkpoint: Checkpoint, fail: Callable[[ProcessionError], None]) -> None:
    """Poll the checkpoint until a gateway is abandoned that this driver still reads from. Then the driver must end: the
    next one claims the checkpoint, and carries it out."""
    loop = asyncio.get_running_loop()
    while True:
        with suppress(ProcessionError):  # the next claim reports a file that cannot be read
            places = await loop.run_in_executor(None, LogLocations, checkpoint.root)
            if names := [name for name, lost in places.abandoned.items() if lost.fence >= checkpoint.fence]:
                fail(RoundError(f"{', '.join(names)} was abandoned; the next driver continues without it."))
                return
        await asyncio.sleep(POLL_S)
