"""The leader's part of the control port: requests from other gateways and about them.

Invariant: a gateway's messages count only on the connection on which it joined. When that connection ends, its link is
lost. A gateway that is not the leader refuses these requests and names the leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog

from procession.errors import ConfigError, RemoteProtocolError
from procession.gateway.leader import EventTimeReport, Leadership
from procession.gateway.members import Member
from procession.gateway.request_parsing import clocks, integers, is_u64, positions

ConnectionTask = asyncio.Task[Any]
ON_A_LINK = ("notify", "relinquish", "beat", "left")
OPS = ("gateways", "leave", "join", *ON_A_LINK)

log = structlog.get_logger("gateway")


class LeaderControl:
    def __init__(self, leadership: Leadership | None, leader_at: str = "") -> None:
        self._leadership = leadership
        self._leader_at = leader_at
        self._links: dict[ConnectionTask, int] = {}

    def is_linked(self, connection: ConnectionTask) -> bool:
        return connection in self._links

    def lost(self, connection: ConnectionTask) -> None:
        """Handle the end of a connection."""
        link = self._links.pop(connection, None)
        if link is not None and self._leadership is not None:
            log.info("gateway.member_lost", gateway=self._leadership.lost(link), link=link)

    @property
    def names(self) -> frozenset[str]:
        """The gateways that have ever joined. Empty if this gateway is not the leader."""
        return frozenset() if self._leadership is None else self._leadership.names

    def gateways(self) -> dict[str, Any]:
        """The list of all gateways, for the driver. Empty if this gateway is not the leader."""
        if self._leadership is None:
            return {}
        return {"gateways": [member.as_dict() for member in self._leadership.gateways.values()]}

    def abandon(self, request: Mapping[str, Any]) -> None:
        """Handle a driver's report of a gateway that is lost for good. The caller has checked the driver's fence."""
        name, identity = request.get("name"), request.get("lost_identity")
        if self._leadership is None or not isinstance(name, str) or not isinstance(identity, str):
            raise RemoteProtocolError("abandon needs a leader, and the name and identity of a gateway")
        self._leadership.abandon(name, identity, *integers(request, "epochs"))
        log.warning("gateway.member_abandoned", gateway=name)

    def answer(self, connection: ConnectionTask, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the reply, or None if this is not a request to a leader."""
        op = request.get("op")
        if op not in OPS:
            return None
        if self._leadership is None:
            raise ConfigError(
                "This gateway does not lead.", next_step=f"Ask the first gateway, at {self._leader_at}, instead."
            )
        leadership = self._leadership
        match op:
            case "gateways":
                return {"gateways": leadership.status(), "departed": leadership.departed}
            case "leave":
                leadership.leave(str(request.get("name")))
                return {}
            case "join":
                return self._join(leadership, connection, request)
        if connection not in self._links:
            raise RemoteProtocolError(f"{op} before join")
        link = self._links[connection]
        match op:
            case "notify":
                return leadership.notify(link, *integers(request, "stream"))
            case "relinquish":
                committed = request.get("committed")
                if committed is not None and not is_u64(committed):
                    raise RemoteProtocolError("committed must be a whole number below 2^64, or null")
                (stream_id,) = integers(request, "stream")
                clock, name = clocks(request).get(stream_id), str(request.get("name", ""))
                return leadership.given_up(link, stream_id, committed, clock, name)
            case "beat":
                return leadership.beat(link)
            case _:
                is_left = leadership.left(link, *integers(request, "epochs"))
                if is_left:
                    log.info("gateway.member_left", link=link)
                return {"is_left": is_left}

    def _join(self, leadership: Leadership, connection: ConnectionTask, request: Mapping[str, Any]) -> dict[str, Any]:
        gateway, held = request.get("gateway"), request.get("held")
        if not isinstance(gateway, dict) or not isinstance(held, list) or not all(map(is_u64, held)):
            raise RemoteProtocolError("join needs a gateway and the ids of the streams that it holds")
        self.lost(connection)
        committed_end, starts, turn = integers(request, "committed_end", "starts", "turn")
        member, order = Member.from_dict(gateway), EventTimeReport(str(request.get("order", "")), clocks(request))
        self._links[connection], name = leadership.join(
            member,
            held,
            positions(request),
            committed_end,
            (starts, turn),
            order,
            is_confirmed=request.get("is_confirmed") is not False,
        )
        waits_for = leadership.registry.unreported
        log.info("gateway.member_joined", gateway=name, control=member.control, holds=len(held), waits_for=waits_for)
        return {"name": name}
