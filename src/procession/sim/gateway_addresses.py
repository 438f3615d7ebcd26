"""Maps the simulated gateways to names and addresses.

Invariant: a part has one name and two addresses for the whole run, like a gateway with fixed ports. The shipped
gateway code listens and connects at the addresses; fault schedules use the parts.
"""

from __future__ import annotations

from procession.gateway.global_registry import LEADER

LISTEN_PORT, CONTROL_PORT = 1, 2


def name_of(part: str) -> str:
    """Return a gateway's name among gateways, which differs from its part's name for the first gateway."""
    return part if "-" in part else LEADER


def part_of(name: str) -> str:
    return name if name != LEADER else LEADER.partition("-")[0]


def listen_address(part: str) -> str:
    """Return the address at which producers connect."""
    return f"{part}:{LISTEN_PORT}"


def control_address(part: str) -> str:
    """Return the address at which drivers, operators and other gateways connect."""
    return f"{part}:{CONTROL_PORT}"
