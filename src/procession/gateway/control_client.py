"""A client of a gateway's control port: blocking calls that survive a restart of the gateway.

Invariant: a call returns the gateway's reply or raises an error that says who must act. A gateway that cannot be
reached is tried again, with back-off, until `timeout_s` has passed. Every request is idempotent. Use a client in one
thread at a time.
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
    """The end of the offered records, and the identity of the log."""
    start_sequence: int
    gateways: list[Member]
    """All gateways, if this one is the leader."""
    is_behind: bool = False
    """Whether the gateway admits producers only after it has received the last commit."""
    start: str = ""
    """If the gateway's log is not confirmed: the id that the driver repeats after a check of its fence."""


class StreamWatermarks(NamedTuple):
    """The watermarks of streams that a gateway knows."""

    clocks: dict[int, StreamClock]
    gateways: list[Member]


class OfferShare(NamedTuple):
    """The records that one of several gateways offers in event-time order."""

    end: int
    offset: LogOffset
    last: Key | None
    complete: Key | None
    is_behind: bool = False
    start: str = ""


class FenceReply(NamedTuple):
    committed_end: int
    next_sequence: int
    identity: str
    gateways: list[Member]
    order: str = ""
    """A description of the gateway's event-time order. Empty: order of arrival."""
    is_behind: bool = False
    start: str = ""


class ControlClient:
    """A client of the gateway at an address or of a directory. With a directory, it finds the gateway again after a
    change of port."""

    def __init__(
        self,
        at: str | Path,
        cookie: bytes = b"",
        timeout_s: float = 30.0,
        identity: str | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """With an `identity`, another gateway that has taken the port is not asked. Without a `cookie`, the client
        sends the secret of the directory's pipeline, if it has one."""
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
        """Return the end up to which the driver may read from `start` on. All these records are on disk. If `start` is
        a LogOffset, the gateway refuses it for a different log. With a number it cannot compare the logs, and holds
        producers back if it was restarted."""
        fields = {**_start(start), "known": known._asdict(), "records_max": records_max, "bytes_max": bytes_max}
        reply = self._ask("offer", fence=fence, **fields)
        return EpochOffer(reply["end"], _offset(reply), reply["start_sequence"], _members(reply), *_confirmation(reply))

    def clocks(self, fence: int) -> StreamWatermarks:
        """Return the watermarks of streams. The records up to them are on disk."""
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
        """Return the end up to which the driver may read, at most up to the place `upto`. `clocks` is the progress of
        the streams at the other gateways."""
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
        last, complete = place(reply, "last"), place(reply, "complete")
        return OfferShare(reply["end"], _offset(reply), last, complete, *_confirmation(reply))

    def commit(
        self, fence: int, epoch: int, end: int, positions: Mapping[int, int], epochs_kept: int | None = None
    ) -> None:
        """Commit epoch `epoch`, which ends below sequence `end`, with these last message ids per stream. A gateway with
        fewer than `epochs_kept` committed epochs on disk refuses, because the positions lack some changes that it
        needs."""
        named = {str(stream_id): message_id for stream_id, message_id in positions.items()}
        kept = {} if epochs_kept is None else {"epochs_kept": epochs_kept}
        self._ask("commit", fence=fence, epoch=epoch, end=end, positions=named, **kept)

    def fence(self, fence: int, offered: LogOffset | None = None, known: KnownGateway = NOTHING_KNOWN) -> FenceReply:
        """Fence off all earlier drivers. `offered` is the log offset up to which the driver has read; the gateway
        refuses it for a different log. Otherwise it admits producers, if it has the last commit and `known` names its
        start."""
        fields = {} if offered is None else {"offered": offered.as_json()}
        reply = self._ask("fence", fence=fence, **fields, known=known._asdict())
        order = str(reply.get("order", ""))
        ends = reply["committed_end"], reply["next_sequence"]
        return FenceReply(*ends, reply["identity"], _members(reply), order, *_confirmation(reply))

    def abandon(self, fence: int, epochs: int, name: str, identity: str) -> None:
        """Report that a gateway is lost for good, and that no later epoch than the first `epochs` has records of it.
        Leader only."""
        self._ask("abandon", fence=fence, epochs=epochs, name=name, lost_identity=identity)

    def gateways(self) -> list[dict[str, Any]]:
        """Return all gateways, whether they are connected, and how many streams each holds. Leader only."""
        members: list[dict[str, Any]] = self._ask("gateways")["gateways"]
        return members

    def departed(self) -> tuple[str, ...]:
        """Return the names of the gateways that have left and not come back. Leader only."""
        return tuple(map(str, self._ask("gateways").get("departed", ())))

    def order(self) -> DeclaredOrder | None:
        """Return the gateway's event-time order. None: order of arrival."""
        order = self._ask("order")["order"]
        return (
            None if order is None else DeclaredOrder(frozenset(order["streams"]), order["lateness_ns"], order["idle_s"])
        )

    def leave(self, name: str) -> None:
        """Ask a gateway to leave as soon as all its records are committed. Leader only."""
        self._ask("leave", name=name)

    def pause(self, *, is_kept: bool) -> None:
        """Stop reading from producers. `is_kept`: stay paused after a restart of the gateway."""
        self._ask("pause", is_kept=is_kept)

    def resume(self) -> None:
        self._ask("resume")

    def status(self) -> dict[str, Any]:
        return self._ask("status")

    def streams(self) -> Iterator[dict[str, Any]]:
        """Iterate all streams that the gateway knows, ordered by id. They are fetched page by page."""
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
                # The deadline may cut the last attempt short. Then the error of an earlier attempt is the reason.
                failure = error if failure is None or not isinstance(error, TimeoutError) else failure
                if time.monotonic() + delay_s > deadline:
                    raise RoundError(
                        f"The gateway at {self._at} does not answer: {complaint(failure) or failure}.",
                        next_step="Start the gateway, or look at its log. The request is sent again.",
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
            # Files are read for each connection, because they may have been renewed.
            return self._tls.context().wrap_socket(plain, server_hostname=self._tls.name or host)
        except (OSError, ConfigError) as error:
            plain.close()
            raise error if isinstance(error, OSError) else ConnectionError(error.sentence) from error

    def _address(self) -> Endpoint:
        return parse_endpoint(self._at) if isinstance(self._at, str) else control_of(self._at)


def _left(deadline: float) -> float:
    """Return the remaining seconds, but never 0, because a socket takes 0 for non-blocking."""
    return max(0.001, deadline - time.monotonic())


def _start(start: int | LogOffset) -> dict[str, Any]:
    return {"start": start.sequence, "offered": start.as_json()} if isinstance(start, LogOffset) else {"start": start}


def _offset(reply: Mapping[str, Any]) -> LogOffset:
    return offset(reply, "offset") or LogOffset(reply["end"])


def _confirmation(reply: Mapping[str, Any]) -> tuple[bool, str]:
    return bool(reply.get("is_behind", False)), str(reply.get("start", ""))


def _members(reply: Mapping[str, Any]) -> list[Member]:
    return [Member.from_dict(fields) for fields in reply.get("gateways", ())]


def checked(reply: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a reply. Raises the error that the reply reports."""
    check_answer(reply)
    reply.pop("format", None)
    if not reply.pop("ok"):
        kind = _ERRORS.get(str(reply.get("kind")), ProcessionError)
        raise kind(str(reply["error"]), next_step=str(reply.get("next_step", "")))
    return reply
