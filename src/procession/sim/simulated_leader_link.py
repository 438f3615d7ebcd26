"""Several gateways: both ends of the link between each gateway and the leader.

Invariant, as in `gateway/leader_link`: a reply counts only on the connection of its request. When a link is lost, all
waiting requests fail, and the next link starts with the list of streams that the gateway holds. The messages,
`Leadership`, the global registry and the members are the real ones; `gateway/leader_link`, `leader_control` and
`control` are modelled. Upstream: `simulated_gateway`. Downstream: `simulated_gateway` of the leader.
"""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from procession.errors import ConfigError, ProcessionError, RemoteProtocolError
from procession.gateway.gateway_events import (
    LeaderFound,
    LeaderKeeps,
    LeaderLost,
    StreamGranted,
    StreamRefused,
    StreamRelinquished,
)
from procession.gateway.global_registry import LEADER
from procession.gateway.leader import Leadership, greeting
from procession.gateway.members import Member
from procession.gateway.request_parsing import positions
from procession.sim.network import Endpoint
from procession.sim.oracle import InvariantViolation
from procession.sim.simulated_files import SimulatedFileSystem, is_injected_damage
from procession.storage.durable import read_if_there, write_durably

if TYPE_CHECKING:
    from procession.sim.simulated_gateway import SimulatedGateway

LEADERS_DOOR = "leader"
"""Where the others find the leader."""
STARTS = "starts"
LINK_INTERVAL_S = 0.15
LINK_TIMEOUT_S = 0.5
RETRY_S = 0.05

JsonMessage = dict[str, Any]


def name_of(part: str) -> str:
    """A gateway's name among gateways; in fault schedules the first is simply the gateway."""
    return part if "-" in part else LEADER


def part_of(name: str) -> str:
    return name if name != LEADER else LEADER.partition("-")[0]


def member_of(part: str, identity: str) -> Member:
    return Member(name_of(part), identity or f"of {part}", part, part, part)


def next_start(directory: Path, files: SimulatedFileSystem, now: float) -> int:
    """Number of this start of the gateway: higher than that of any earlier one."""
    path = directory / STARTS
    starts = max(int(read_if_there(path, files) or b"0"), int(1000 * now))
    write_durably(path, b"%d" % (starts + 1), files)
    return starts


class LineChannel:
    """Words over a connection, one object a line."""

    def __init__(self, end: Endpoint) -> None:
        self.end = end
        self._rest = b""

    def say(self, message: JsonMessage) -> None:
        self.end.write(json.dumps(message).encode() + b"\n")

    def received(self, data: bytes) -> list[JsonMessage]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


class LeaderEnd(LineChannel):
    """The leader's end of a link, as `gateway/control` and `gateway/leader_control`."""

    def __init__(self, end: Endpoint, leader: SimulatedGateway, leadership: Leadership) -> None:
        super().__init__(end)
        self._leader = leader
        self._leadership = leadership
        self._link: int | None = None
        self._received_s = leader.site.clock.now
        leader.later(LINK_TIMEOUT_S, self._watch)

    def _watch(self) -> None:
        """Drops the link of a gateway that has not sent a heartbeat in time."""
        left_s = self._received_s + LINK_TIMEOUT_S - self._leader.site.clock.now
        if not self.end.is_open:
            return
        if left_s > 0:
            self._leader.later(left_s, self._watch)
            return
        self.lost()
        self.end.close()

    def lost(self) -> None:
        if self._link is not None:
            self._leadership.lost(self._link)
            self._link = None

    def take(self, data: bytes) -> None:
        self._received_s = self._leader.site.clock.now
        for request in self.received(data):
            try:
                reply = {"ok": True, **self._answer(request)}
            except ProcessionError as error:
                if is_injected_damage(error):
                    raise
                reply = {"ok": False, "error": error.sentence, "is_config": isinstance(error, ConfigError)}
            self._leader.site.tell(self._leader.part, "< %s > %s", request, reply)
            if self.end.is_open:
                self.say(reply)

    def _answer(self, request: JsonMessage) -> JsonMessage:
        leads = self._leadership
        if request["op"] == "join":
            self.lost()
            gateway, turn = Member.from_dict(request["gateway"]), (request["starts"], request["turn"])
            held, end, is_confirmed = request["held"], request["committed_end"], request.get("is_confirmed", True)
            self._link, name = leads.join(gateway, held, positions(request), end, turn, is_confirmed=is_confirmed)
            return {"name": name}
        if self._link is None:
            raise RemoteProtocolError(f"{request['op']} before join")
        match request["op"]:
            case "notify":
                return leads.notify(self._link, request["stream"])
            case "relinquish":
                return leads.given_up(self._link, request["stream"], request["committed"])
            case "beat":
                return leads.beat(self._link)
            case _:
                return {"is_left": leads.left(self._link, request["epochs"])}


class SimulatedLeaderLink:
    """A gateway's end, over all its links: as `gateway.link.LeaderLink`."""

    def __init__(self, gateway: SimulatedGateway, starts: int) -> None:
        self._gateway = gateway
        self._starts = starts
        self._turn = 0
        self._lines: LineChannel | None = None
        self._unanswered: deque[JsonMessage] = deque()
        self._is_leaving = False
        self._received_s = 0.0

    def connect(self) -> None:
        self._gateway.site.network.connect(self._gateway, LEADERS_DOOR, self._connected)

    def _connected(self, end: Endpoint | None) -> None:
        gateway = self._gateway
        if end is None:
            gateway.later(RETRY_S * (0.5 + gateway.site.chance.random()), self.connect)
            return
        end.tag = self
        self._lines = LineChannel(end)
        self._unanswered.clear()
        self._received_s = gateway.site.clock.now
        self._send(self._greeting())
        gateway.later(LINK_TIMEOUT_S, self._watch, end)

    def _greeting(self) -> JsonMessage:
        self._turn += 1
        gateway = self._gateway
        member, is_confirmed = member_of(gateway.part, gateway.confirmation.identity), gateway.confirmation.is_confirmed
        return greeting(gateway.state, member, self._starts, self._turn, is_confirmed=is_confirmed)

    def greet_again(self) -> None:
        """End this link: the next one begins with what this gateway holds now."""
        if self._lines is not None:
            self.lost(self._lines.end)

    def _send(self, request: JsonMessage) -> None:
        if self._lines is not None:
            self._unanswered.append(request)
            self._lines.say(request)

    def ask(self, stream_id: int) -> None:
        self._send({"op": "notify", "stream": stream_id})

    def relinquish(self, stream_id: int, committed: int | None) -> None:
        self._send({"op": "relinquish", "stream": stream_id, "committed": committed})

    # The life of links

    def _is_this(self, end: Endpoint) -> bool:
        return self._lines is not None and self._lines.end is end

    def _watch(self, end: Endpoint) -> None:
        if not self._is_this(end):
            return
        left_s = self._received_s + LINK_TIMEOUT_S - self._gateway.site.clock.now
        if left_s > 0:
            self._gateway.later(left_s, self._watch, end)
        else:
            self.lost(end)

    def lost(self, end: Endpoint) -> None:
        """The link is lost, or the leader does not answer: opens another link."""
        if self._is_this(end):
            self._lines = None
            self._unanswered.clear()
            end.close()
            self._gateway.handle(LeaderLost())
            self._gateway.later(RETRY_S * (0.5 + self._gateway.site.chance.random()), self.connect)

    def take(self, end: Endpoint, data: bytes) -> None:
        if not self._is_this(end) or self._lines is None:
            return
        self._received_s = self._gateway.site.clock.now
        for reply in self._lines.received(data):
            if not reply["ok"]:
                part, site = self._gateway.part, self._gateway.site
                if reply["is_config"] and not site.set_back:
                    raise InvariantViolation("I8", f"the leader has no place for {part}: {reply['error']}")
                if reply["is_config"]:
                    site.tell(part, "! refuses: %s", reply["error"])
                    site.refused(part)
                self.lost(end)
                return
            self._handle_reply(end, self._unanswered.popleft(), reply)

    def _handle_reply(self, end: Endpoint, request: JsonMessage, reply: JsonMessage) -> None:
        gateway = self._gateway
        match request["op"]:
            case "join":
                gateway.handle(LeaderFound())
                self._beat(end)
            case "notify" if reply["granted"]:
                gateway.handle(StreamGranted(request["stream"], reply["committed"]))
            case "notify":
                gateway.handle(StreamRefused(request["stream"]))
            case "relinquish":
                gateway.handle(StreamRelinquished(request["stream"]))
            case "beat":
                gateway.handle(LeaderKeeps(reply["epoch"]))
                if reply["is_leaving"]:
                    self._is_leaving = True
                    gateway.depart(reply["others"])
            case "left" if reply["is_left"]:
                gateway.leave()

    def _beat(self, end: Endpoint) -> None:
        if self._is_this(end):
            if self._is_leaving and self._gateway.is_settled:
                self._send({"op": "left", "epochs": self._gateway.state.snapshot.epoch + 1})
            else:
                self._send({"op": "beat"})
            self._gateway.later(LINK_INTERVAL_S, self._beat, end)
