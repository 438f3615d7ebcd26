"""The names and addresses of the simulated gateways.

Invariant: a part has one name and two addresses for the whole run, as a gateway with fixed ports has. The shipped
gateway code listens and connects at the addresses; fault schedules use the parts.
"""

from __future__ import annotations

from procession.gateway.global_registry import LEADER

LISTEN_PORT, CONTROL_PORT = 1, 2


def name_of(part: str) -> str:
    """A gateway's name among gateways; in fault schedules the first is simply the gateway."""
    return part if "-" in part else LEADER


def part_of(name: str) -> str:
    return name if name != LEADER else LEADER.partition("-")[0]


def listen_address(part: str) -> str:
    """Where producers connect."""
    return f"{part}:{LISTEN_PORT}"


def control_address(part: str) -> str:
    """Where drivers, operators and other gateways connect."""
    return f"{part}:{CONTROL_PORT}"
