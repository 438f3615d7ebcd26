"""Several gateways: the link of each to the leader, both ends of it, and the leader's file of members.

The one rule, as in `gateway/leader_link`: an answer counts only on the connection on which it was asked; when a link is
lost, all that waits is told so, and the next one begins with what the gateway holds. Real are the words, `Leadership`,
the global registry and the members; modelled are the rims, `gateway/leader_link`, `leader_control` and `control`.
Before it: `simulated_gateway`, which asks. After it: `simulated_gateway` again, at the leader.
"""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from procession.errors import ConfigError, ProcessionError, RemoteProtocolError, StorageError
from procession.gateway.gateway_events import Granted, LeaderFound, LeaderKeeps, LeaderLost, Refused, Relinquished
from procession.gateway.global_registry import LEADER
from procession.gateway.leader import Leadership, greeting
from procession.gateway.members import Member, Members, members_of
from procession.gateway.request_parsing import positions
from procession.sim.disk_calls import Files
from procession.sim.network import End
from procession.sim.violation import Breach

if TYPE_CHECKING:
    from procession.sim.simulated_gateway import Gateway

LEADERS_DOOR = "leader"
"""Where the others find the leader."""
MEMBERS, STARTS = "gateways.json", "starts"
LINK_INTERVAL_S = 0.15
LINK_TIMEOUT_S = 0.5
RETRY_S = 0.05

Words = dict[str, Any]


def name_of(part: str) -> str:
    """A gateway's name among gateways; in fault schedules the first is simply the gateway."""
    return part if "-" in part else LEADER


def part_of(name: str) -> str:
    return name if name != LEADER else LEADER.partition("-")[0]


def member_of(part: str) -> Member:
    return Member(name_of(part), f"of {part}", part, part, part)


class SimMembers(Members):
    """The real ones, on a virtual disk."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder
        super().__init__(Path(folder))

    def _load(self) -> dict[str, Member]:
        document = self._files.read(f"{self._folder}/{MEMBERS}")
        try:
            return {} if document is None else members_of(document)
        except ValueError as error:
            raise StorageError(f"{MEMBERS} cannot be read: {error!r}.", next_step="Restore it.") from error

    def _write(self, document: bytes) -> None:
        self._files.write_durably(self._folder, MEMBERS, document)


class Lines:
    """Words over a connection, one object a line."""

    def __init__(self, end: End) -> None:
        self.end = end
        self._rest = b""

    def say(self, words: Words) -> None:
        self.end.write(json.dumps(words).encode() + b"\n")

    def heard(self, data: bytes) -> list[Words]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


class Talk(Lines):
    """The leader's end of a link: as `control` and `doorway`."""

    def __init__(self, end: End, leader: Gateway, leadership: Leadership) -> None:
        super().__init__(end)
        self._leader = leader
        self._leadership = leadership
        self._link: int | None = None
        self._heard_s = leader.site.clock.now
        leader.later(LINK_TIMEOUT_S, self._watch)

    def _watch(self) -> None:
        """A gateway that is linked speaks steadily, or is sent away."""
        left_s = self._heard_s + LINK_TIMEOUT_S - self._leader.site.clock.now
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
        self._heard_s = self._leader.site.clock.now
        for request in self.heard(data):
            try:
                reply = {"ok": True, **self._answer(request)}
            except ProcessionError as error:
                if error.fields.get("is_done_to_us"):
                    raise
                reply = {"ok": False, "error": error.sentence, "is_config": isinstance(error, ConfigError)}
            self._leader.site.tell(self._leader.part, "< %s > %s", request, reply)
            if self.end.is_open:
                self.say(reply)

    def _answer(self, request: Words) -> Words:
        leads = self._leadership
        if request["op"] == "join":
            self.lost()
            told, turn = Member.from_dict(request["gateway"]), (request["starts"], request["turn"])
            self._link, name = leads.join(told, request["held"], positions(request), request["committed_end"], turn)
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


class LeaderLink:
    """A gateway's end, over all its links: as `gateway.link.LeaderLink`."""

    def __init__(self, gateway: Gateway, starts: int) -> None:
        self._gateway = gateway
        self._starts = starts
        self._turn = 0
        self._lines: Lines | None = None
        self._asked: deque[Words] = deque()
        self._is_linked = False
        self._is_leaving = False
        self._heard_s = 0.0

    def connect(self) -> None:
        self._gateway.site.network.connect(self._gateway, LEADERS_DOOR, self._connected)

    def _connected(self, end: End | None) -> None:
        gateway = self._gateway
        if end is None:
            gateway.later(RETRY_S * (0.5 + gateway.site.chance.random()), self.connect)
            return
        end.tag = self
        self._lines, self._is_linked = Lines(end), False
        self._asked.clear()
        self._heard_s = gateway.site.clock.now
        self._say(self._greeting())
        gateway.later(LINK_TIMEOUT_S, self._watch, end)

    def _greeting(self) -> Words:
        self._turn += 1
        return greeting(self._gateway.state, member_of(self._gateway.part), self._starts, self._turn)

    def _say(self, words: Words) -> None:
        if self._lines is not None:
            self._asked.append(words)
            self._lines.say(words)

    def ask(self, stream_id: int) -> None:
        self._say({"op": "notify", "stream": stream_id})

    def relinquish(self, stream_id: int, committed: int | None) -> None:
        self._say({"op": "relinquish", "stream": stream_id, "committed": committed})

    # The life of links

    def _is_this(self, end: End) -> bool:
        return self._lines is not None and self._lines.end is end

    def _watch(self, end: End) -> None:
        if not self._is_this(end):
            return
        left_s = self._heard_s + LINK_TIMEOUT_S - self._gateway.site.clock.now
        if left_s > 0:
            self._gateway.later(left_s, self._watch, end)
        else:
            self.lost(end)

    def lost(self, end: End) -> None:
        """The link is gone, or the leader says nothing: the next one is begun."""
        if self._is_this(end):
            self._lines = None
            self._asked.clear()
            end.close()
            self._gateway.handle(LeaderLost())
            self._gateway.later(RETRY_S * (0.5 + self._gateway.site.chance.random()), self.connect)

    def take(self, end: End, data: bytes) -> None:
        if not self._is_this(end) or self._lines is None:
            return
        self._heard_s = self._gateway.site.clock.now
        for reply in self._lines.heard(data):
            if not reply["ok"]:
                if reply["is_config"]:
                    raise Breach("I8", f"the leader has no place for {self._gateway.part}: {reply['error']}")
                self.lost(end)
                return
            self._heard(end, self._asked.popleft(), reply)

    def _heard(self, end: End, request: Words, reply: Words) -> None:
        gateway = self._gateway
        match request["op"]:
            case "join":
                gateway.handle(LeaderFound())
                self._beat(end)
            case "notify" if reply["granted"]:
                gateway.handle(Granted(request["stream"], reply["committed"]))
            case "notify":
                gateway.handle(Refused(request["stream"]))
            case "relinquish":
                gateway.handle(Relinquished(request["stream"]))
            case "beat":
                gateway.handle(LeaderKeeps(reply["epoch"]))
                if reply["is_leaving"]:
                    self._is_leaving = True
                    gateway.depart(reply["others"])
            case "left" if reply["is_left"]:
                gateway.leave()

    def _beat(self, end: End) -> None:
        if self._is_this(end):
            if self._is_leaving and self._gateway.is_settled:
                self._say({"op": "left", "epochs": self._gateway.state.snapshot.epoch + 1})
            else:
                self._say({"op": "beat"})
            self._gateway.later(LINK_INTERVAL_S, self._beat, end)
