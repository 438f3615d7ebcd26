"""Abandons a gateway that is lost for good: checks the request, stores it in the checkpoint, and waits for a driver.

Invariant: this module only writes the file of an abandoned gateway (`commit/log_locations`). The next driver carries it
out, also if this process is killed. Used by `procession gateways abandon`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from procession.commit.checkpoint import PIPELINE
from procession.commit.log_locations import LogLocations, abandon
from procession.deployment.part_arguments import GATEWAY
from procession.driver.driver_reports import PLAN
from procession.errors import ConfigError, ProcessionError, UsageError
from procession.gateway.control_client import ControlClient
from procession.planner.guarantee import POLICIES, Acknowledges, Guarantee
from procession.sos.replicated_files import MARKER
from procession.storage.driver_claim import checkpoint_of
from procession.storage.log_ranges import LogLocation
from procession.tls import ClientTls

ANSWER_S = 3.0
"""Seconds to wait for the leader, which may be unavailable, too."""
POLL_S = 0.2
ORDERED = "ordered"
"""Name of a log's directory in event-time order."""


def abandon_gateway(
    directory: Path, name: str, cookie: bytes, tls: ClientTls | None = None, *, despite_replicas: bool = False
) -> int:
    """Abandon a gateway of the pipeline in this directory. Returns the fence above which drivers carry it out. Raises
    an error if it is not a gateway of the pipeline, if it can be restored or reached, or if it is the first one."""
    root = checkpoint_of(directory)
    if not (root / PIPELINE).exists():
        raise ConfigError(f"{directory} has no checkpoint of a pipeline.", next_step="Check --dir.")
    places = LogLocations(root)
    if name in places.abandoned:
        return places.abandoned[name].fence
    if (directory / MARKER).exists() and not despite_replicas:
        raise UsageError(
            f"This pipeline has replicas, so {name} can continue with everything that it has acknowledged.",
            next_step="Start it elsewhere with `procession gateway --restore`. To give up what is not committed"
            " instead, add --despite-replicas.",
        )
    known, listed = places.all(), _listed(directory / GATEWAY, cookie, tls)
    if name not in known and name not in listed:
        raise ConfigError(
            f"{name!r} is not a gateway of this pipeline.",
            next_step=f"Name one of {', '.join(sorted({*known, *listed})) or 'its gateways'}.",
        )
    if listed.get(name, {}).get("is_connected"):
        raise ConfigError(
            f"{name} is connected, so it is not lost.",
            next_step=f"Remove it without losing records: procession gateways leave {name}. If it hangs, kill it.",
        )
    _check_order(known.values())
    _check_guarantee(directory)
    identity = known[name].identity if name in known else str(listed[name]["identity"])
    return abandon(root, name, identity).fence


def is_carried_out(directory: Path, fence: int, wait_s: float) -> bool:
    """Wait until a driver that knows of the abandonment has claimed the checkpoint. Returns False after `wait_s`."""
    root, deadline = checkpoint_of(directory), time.monotonic() + wait_s
    while not any(name.isdigit() and int(name) > fence for name in _names(root)):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _names(root: Path) -> list[str]:
    return [path.name for path in root.iterdir()]


def _listed(leader: Path, cookie: bytes, tls: ClientTls | None) -> Mapping[str, dict[str, Any]]:
    """Return the leader's list of gateways; empty if it does not answer."""
    with suppress(ProcessionError), ControlClient(leader, cookie, ANSWER_S, tls=tls) as client:
        return {str(member["name"]): member for member in client.gateways()}
    return {}


def _check_order(places: Iterable[LogLocation]) -> None:
    if any(Path(place.directory).name == ORDERED for place in places):
        raise UsageError(
            "A gateway of a pipeline with event-time order cannot be abandoned: the other gateways have put records in"
            " order that its streams would repeat.",
            next_step="Put back its directory, or restore it from its replicas.",
        )


def _check_guarantee(directory: Path) -> None:
    """Raise UsageError if gateways acknowledge records before they are committed. Such records cannot be voided."""
    try:
        plan = json.loads((directory / PLAN).read_bytes())
    except (OSError, ValueError):
        return  # no driver has begun an epoch
    if POLICIES[Guarantee(plan["guarantee"])].acknowledges is Acknowledges.BEGUN:
        raise UsageError(
            f"With the guarantee {plan['guarantee']!r}, records are acknowledged before their epoch is committed, so"
            " they cannot be voided.",
            next_step="Put back the gateway's directory, or reset the pipeline.",
        )
