"""A client of a gateway's control port: blocking calls that survive a restart of the gateway.

Invariant: a call returns the gateway's reply or raises an error that says who must act. A gateway that cannot be
reached is tried again, with back-off, until `timeout_s` has passed; every request is idempotent. One thread at a time.
"""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from procession.address import Endpoint, SocketFile, connected_file, parse_endpoint
from procession.errors import ConfigError, ProcessionError, RoundError
from procession.gateway.confirmation import KnownGateway
from procession.gateway.listen_address import control_of
from procession.gateway.members import Member
from procession.gateway.request_parsing import (
    FORMAT,
    KINDS,
    GarbledRequest,
    check_answer,
    offset,
    place,
    read_clocks,
    written_clocks,
)
from procession.merge.event_time import DeclaredOrder
from procession.merge.stream_clocks import StreamClock
from procession.merge.waiting_rows import Key
from procession.storage.log_ranges import LogOffset
from procession.storage.secret import Secret, find_secret, pipeline_of
from procession.tls import ClientTls, complaint

DELAY_S_MIN = 0.02
DELAY_S_MAX = 1.0
REPLY_BYTES_MAX = 16 * 1024 * 1024
STREAMS_ASKED = 1000
CLOSED = "it closed the connection"

NOTHING_KNOWN = KnownGateway()

_ERRORS = {kind: error for error, kind in KINDS.items()}


class EpochOffer(NamedTuple):
    end: int
    offset: LogOffset
    """The end, and which log it refers to."""
    start_sequence: int
    gateways: list[Member]
    """All gateways, if this one is the leader."""
    is_behind: bool = False
    """Whether the gateway admits producers only after it has received the last commit."""


class StreamWatermarks(NamedTuple):
    """The watermarks of streams, as far as a gateway knows them."""

    clocks: dict[int, StreamClock]
    gateways: list[Member]


class OfferShare(NamedTuple):
    """What one of several gateways offers, in the order of event time."""

    end: int
    offset: LogOffset
    last: Key | None
    complete: Key | None
    is_behind: bool = False


class FenceReply(NamedTuple):
    committed_end: int
    next_sequence: int
    identity: str
    gateways: list[Member]
    order: str = ""
    """A description of the gateway's event-time order. Empty: order of arrival."""


class ControlClient:
    """A client of the gateway at an address, or of a directory: then it is found again if its port changes."""

    def __init__(
        self,
        at: str | Path,
        cookie: bytes = b"",
        timeout_s: float = 30.0,
        identity: str | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """With an `identity`, no other gateway that may have taken this one's port is asked. Without a `cookie`, the
        secret of the directory's pipeline is shown, if it has one."""
        self._tls = tls
        self._at = at
        self._whom = {} if identity is None else {"identity": identity}
        self._cookie = cookie
        self._shown = cookie
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None

    def offer(
        self,
        fence: int,
        start: int | LogOffset,
        records_max: int,
        bytes_max: int,
        known: KnownGateway = NOTHING_KNOWN,
    ) -> EpochOffer:
        """How far the driver may read from `start` on; all of it is on disk. With an Offset, the gateway refuses if its
        log is another one; with a number it does not know, and holds producers back if it was started again."""
        fields = {**_start(start), "known": known._asdict(), "records_max": records_max, "bytes_max": bytes_max}
        reply = self._ask("offer", fence=fence, **fields)
        is_behind = bool(reply.get("is_behind", False))
        return EpochOffer(reply["end"], _offset(reply), reply["start_sequence"], _members(reply), is_behind)

    def clocks(self, fence: int) -> StreamWatermarks:
        """The watermarks of streams. Their records are on disk."""
        reply = self._ask("clocks", fence=fence)
        return StreamWatermarks(read_clocks(reply["clocks"]), _members(reply))

    def offer_among(
        self,
        fence: int,
        start: int | LogOffset,
        limits: tuple[int, int],
        clocks: Mapping[int, StreamClock],
        upto: Key | None = None,
        known: KnownGateway = NOTHING_KNOWN,
    ) -> OfferShare:
        """How far the driver may read, if streams have come so far at other gateways, and at most up to this place."""
        records_max, bytes_max = limits
        reply = self._ask(
            "offer-among",
            fence=fence,
            **_start(start),
            known=known._asdict(),
            records_max=records_max,
            bytes_max=bytes_max,
            clocks=written_clocks(clocks),
            upto=upto,
        )
        is_behind = bool(reply.get("is_behind", False))
        return OfferShare(reply["end"], _offset(reply), place(reply, "last"), place(reply, "complete"), is_behind)

    def commit(
        self, fence: int, epoch: int, end: int, positions: Mapping[int, int], epochs_kept: int | None = None
    ) -> None:
        """Epoch `epoch` ends below sequence `end` and is committed, with these last message ids per stream. A gateway
        that has fewer than `epochs_kept` committed epochs on disk refuses: the positions do not cover what it lacks."""
        named = {str(stream_id): message_id for stream_id, message_id in positions.items()}
        kept = {} if epochs_kept is None else {"epochs_kept": epochs_kept}
        self._ask("commit", fence=fence, epoch=epoch, end=end, positions=named, **kept)

    def fence(self, fence: int, offered: LogOffset | None = None, known: KnownGateway = NOTHING_KNOWN) -> FenceReply:
        """Fences off all earlier drivers. With `offered`, the log offset that the driver has read up to, the gateway
        refuses if its log is a different one. Otherwise it admits producers, unless it lacks the last commit."""
        fields = {} if offered is None else {"offered": offered.as_json()}
        reply = self._ask("fence", fence=fence, **fields, known=known._asdict())
        order = str(reply.get("order", ""))
        return FenceReply(reply["committed_end"], reply["next_sequence"], reply["identity"], _members(reply), order)

    def gateways(self) -> list[dict[str, Any]]:
        """All gateways, whether they are connected, and how many streams each holds. Leader only."""
        members: list[dict[str, Any]] = self._ask("gateways")["gateways"]
        return members

    def departed(self) -> tuple[str, ...]:
        """Names of the gateways that have left and not come back. Leader only."""
        return tuple(map(str, self._ask("gateways").get("departed", ())))

    def order(self) -> DeclaredOrder | None:
        """The gateway's event-time order. None: order of arrival."""
        order = self._ask("order")["order"]
        return (
            None if order is None else DeclaredOrder(frozenset(order["streams"]), order["lateness_ns"], order["idle_s"])
        )

    def leave(self, name: str) -> None:
        """Ask a gateway to leave when all its records are committed. Leader only."""
        self._ask("leave", name=name)

    def pause(self, *, is_kept: bool) -> None:
        """Stop reading from producers. `is_kept`: even after a restart of the gateway."""
        self._ask("pause", is_kept=is_kept)

    def resume(self) -> None:
        self._ask("resume")

    def status(self) -> dict[str, Any]:
        return self._ask("status")

    def streams(self) -> Iterator[dict[str, Any]]:
        """All streams that the gateway knows, in the order of their ids, fetched page by page."""
        first_id: int | None = 0
        while first_id is not None:
            page = self._ask("streams", first_id=first_id, streams_max=STREAMS_ASKED)
            yield from page["streams"]
            first_id = page["next_id"]

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        request = {"op": op, "format": FORMAT, **self._whom, **fields}
        deadline = time.monotonic() + self._timeout_s
        delay_s = DELAY_S_MIN
        failure: Exception | None = None
        while True:
            try:
                return checked(self._exchange(request, deadline))
            except (OSError, ValueError, GarbledRequest) as error:
                self.close()
                # Our own deadline may cut the last try short. Then the error of an earlier try is the reason.
                failure = error if failure is None or not isinstance(error, TimeoutError) else failure
                if time.monotonic() + delay_s > deadline:
                    raise RoundError(
                        f"The gateway at {self._at} does not answer: {complaint(failure) or failure}.",
                        next_step="Start it, or look at its log. The request is sent again.",
                    ) from failure
            time.sleep(delay_s * random.uniform(0.5, 1.0))
            delay_s = min(2 * delay_s, DELAY_S_MAX)

    def _exchange(self, request: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        if self._socket is None:
            self._socket = self._connected(deadline)
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(json.dumps({**request, "cookie": self._shown.hex()}).encode() + b"\n")
        reply = bytearray()
        while not reply.endswith(b"\n"):
            self._socket.settimeout(_left(deadline))
            part = self._socket.recv(65536)
            if not part or len(reply) > REPLY_BYTES_MAX:
                raise ConnectionError(CLOSED)
            reply += part
        answer = json.loads(reply)
        if not isinstance(answer, dict):
            raise ValueError("its answer is not an object")
        return answer

    def _connected(self, deadline: float) -> socket.socket:
        address = self._address()
        beside = address.path.parent if isinstance(address, SocketFile) else self._at
        if isinstance(beside, Path) and not self._cookie:
            self._shown = find_secret(pipeline_of(beside), Secret.CONTROL)
        if isinstance(address, SocketFile):
            return connected_file(address.path, _left(deadline))
        host, port = address
        plain = socket.create_connection((host, port), timeout=_left(deadline))
        if self._tls is None:
            return plain
        try:
            # Files are read each time: they may have been renewed.
            return self._tls.context().wrap_socket(plain, server_hostname=self._tls.name or host)
        except (OSError, ConfigError) as error:
            plain.close()
            raise error if isinstance(error, OSError) else ConnectionError(error.sentence) from error

    def _address(self) -> Endpoint:
        return parse_endpoint(self._at) if isinstance(self._at, str) else control_of(self._at)


def _left(deadline: float) -> float:
    """The remaining seconds, never 0: a socket takes 0 for non-blocking."""
    return max(0.001, deadline - time.monotonic())


def _start(start: int | LogOffset) -> dict[str, Any]:
    return {"start": start.sequence, "offered": start.as_json()} if isinstance(start, LogOffset) else {"start": start}


def _offset(reply: Mapping[str, Any]) -> LogOffset:
    return offset(reply, "offset") or LogOffset(reply["end"])


def _members(reply: Mapping[str, Any]) -> list[Member]:
    return [Member.from_dict(fields) for fields in reply.get("gateways", ())]


def checked(reply: dict[str, Any]) -> dict[str, Any]:
    """The fields of a reply. Raises the error that it reports."""
    check_answer(reply)
    reply.pop("format", None)
    if not reply.pop("ok"):
        kind = _ERRORS.get(str(reply.get("kind")), ProcessionError)
        raise kind(str(reply["error"]), next_step=str(reply.get("next_step", "")))
    return reply
