"""A gateway's connection to the leader, over the leader's control port.

Invariant: every wait is bounded, and a reply counts only on the connection of its request. The gateway sends a
heartbeat every `link_interval_s`, and the leader replies. Without a reply for `link_timeout_s` the link is lost: all
pending requests fail, and the next link starts with a report of the streams that this gateway holds. `performer` sends
requests through the link.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from procession.address import SocketFile, connected_file, notice_silence, parse_endpoint
from procession.errors import ConfigError
from procession.gateway.gateway_events import (
    LeaderFound,
    LeaderKeeps,
    LeaderLost,
    StreamGranted,
    StreamRefused,
    StreamRelinquished,
)
from procession.gateway.leader import join_request
from procession.gateway.listen_address import control_of
from procession.gateway.members import Member
from procession.gateway.performer import GatewayPerformer
from procession.gateway.request_parsing import FORMAT, check_answer, clocks, written_clocks
from procession.merge.stream_clocks import StreamClock
from procession.tls import complaint, connect

DELAY_S_MIN = 0.05
DELAY_S_MAX = 1.0
REPLY_BYTES_MAX = 1024 * 1024

Request = dict[str, Any]

log = structlog.get_logger("gateway")


class LeaderLink:
    """Connects a gateway to the leader. Calls `depart` with the addresses of other gateways each time the leader tells
    it to leave."""

    def __init__(
        self,
        gateway: GatewayPerformer,
        at: str | Path,
        member: Member,
        depart: Callable[[list[str]], None],
        starts: int = 0,
    ) -> None:
        """`starts` is the number of earlier starts of this gateway. With a counter, it identifies each link."""
        self.name = member.name
        self.has_left = asyncio.get_running_loop().create_future()
        """Done when the leader has removed this gateway."""
        self._gateway = gateway
        self._config = gateway.config
        self._at = at
        self._member = member
        self._starts = starts
        self._turn = 0
        self._depart = depart
        self._writer: asyncio.StreamWriter | None = None
        self._unanswered: deque[Request] = deque()
        """Requests without a reply, in the order of the leader's replies."""
        self._is_leaving = False

    # Requests of the gateway, which are sent only between LeaderFound and LeaderLost.

    def ask(self, stream_id: int) -> None:
        self._send({"op": "notify", "stream": stream_id})

    def relinquish(self, stream_id: int, committed: int | None, clock: StreamClock | None = None) -> None:
        clocks = {} if clock is None else {stream_id: clock}
        registry = self._gateway.state.registry
        name = registry[stream_id].name if stream_id in registry else ""
        fields = {"stream": stream_id, "name": name, "committed": committed, "clocks": written_clocks(clocks)}
        self._send({"op": "relinquish", **fields})

    def _send(self, request: Request) -> None:
        if self._writer is None:  # the link broke meanwhile; the sessions wait until `LeaderLost`
            return
        self._unanswered.append(request)
        line = json.dumps(
            {**request, "format": FORMAT, "cookie": self._config.control_cookie.hex()}, separators=(",", ":")
        )
        self._writer.write(line.encode() + b"\n")

    # Connecting and reconnecting

    async def run(self) -> None:
        """Open one link after the other, until cancelled. If the leader refuses this gateway, the gateway ends."""
        delay_s = DELAY_S_MIN
        is_reported = False
        while not self.has_left.done():
            try:
                await self._link()
                delay_s, is_reported = DELAY_S_MIN, False
            except ConfigError as error:
                if not self._gateway.failure.done():
                    self._gateway.failure.set_exception(error)
                return
            except (OSError, ValueError, KeyError, TypeError) as error:
                if not is_reported:
                    log.warning(
                        "gateway.leader_lost", leader=str(self._at), reason=f"not found: {complaint(error) or error}"
                    )
                is_reported = True
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, DELAY_S_MAX)

    async def _link(self) -> None:
        """Run one link. Returns when it is lost; raises if it was never established."""
        async with asyncio.timeout(self._config.link_timeout_s):
            reader, writer = await self._connect()
        beats: asyncio.Task[None] | None = None
        try:
            notice_silence(writer.get_extra_info("socket"), self._config.silence_s)
            self._writer = writer
            self._send(self._join_request())
            joined = await self._reply(reader)
            self._unanswered.clear()
            self.name = self._gateway.name = str(joined["name"])
            log.info("gateway.leader_found", leader=str(self._at), name=self.name)
            self._gateway.handle(LeaderFound())
            beats = asyncio.get_running_loop().create_task(self._beat())
            with suppress(OSError, ValueError):  # not an error: the next link is opened
                while not self.has_left.done():
                    self._handle_reply(await self._reply(reader))
        finally:
            if beats is not None:
                beats.cancel()
            self._writer = None
            self._unanswered.clear()
            writer.close()
            self._gateway.handle(LeaderLost())

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = parse_endpoint(self._at) if isinstance(self._at, str) else control_of(self._at)
        if isinstance(address, SocketFile):
            peer = connected_file(address.path, self._config.link_timeout_s)
            return await asyncio.open_unix_connection(sock=peer, limit=REPLY_BYTES_MAX)
        return await connect(address, self._config.link_tls, REPLY_BYTES_MAX)

    def _join_request(self) -> Request:
        self._turn += 1
        member = replace(self._member, name=self.name)
        gateway = self._gateway
        return join_request(
            gateway.state, member, self._starts, self._turn, gateway.order, is_confirmed=gateway.is_confirmed
        )

    def join_again(self) -> None:
        """End this link. The next link begins with a report of the streams that this gateway holds now."""
        if self._writer is not None:
            self._writer.close()

    async def _reply(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        async with asyncio.timeout(self._config.link_timeout_s):
            line = await reader.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the leader closed the connection")
        reply = json.loads(line)
        if not isinstance(reply, dict):
            raise ValueError("its answer is not an object")
        check_answer(reply)
        if not reply.get("ok"):
            if reply.get("kind") == "config":
                raise ConfigError(str(reply.get("error")), next_step=str(reply.get("next_step", "")))
            raise ConnectionError(str(reply.get("error")))
        return reply

    def _handle_reply(self, reply: dict[str, Any]) -> None:
        if not self._unanswered:
            raise ValueError("it sent a reply without a request")
        request = self._unanswered.popleft()
        match request["op"]:
            case "notify" if reply["granted"]:
                stream_id = request["stream"]
                self._gateway.handle(StreamGranted(stream_id, reply["committed"], clocks(reply).get(stream_id)))
            case "notify":
                self._gateway.handle(StreamRefused(request["stream"]))
            case "relinquish":
                self._gateway.handle(StreamRelinquished(request["stream"]))
            case "beat":
                self._gateway.handle(LeaderKeeps(int(reply.get("epoch", -1))))
                if reply["is_leaving"]:
                    self._is_leaving = True
                    self._depart([str(address) for address in reply["others"]])
            case "left" if reply["is_left"] and not self.has_left.done():
                self.has_left.set_result(None)

    async def _beat(self) -> None:
        while True:
            if self._is_leaving and self._gateway.state.is_settled:
                self._send({"op": "left", "epochs": self._gateway.state.snapshot.epoch + 1})
            else:
                self._send({"op": "beat"})
            await asyncio.sleep(self._config.link_interval_s)
