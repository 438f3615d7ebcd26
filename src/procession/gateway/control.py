"""The gateway's control port: JSON lines, for the driver, the operator and, at the leader, the other gateways.

Invariant: each request is one JSON object on a line, and so is each reply: `{"ok": true, ...}` or `{"ok": false,
"error": ..., "kind": ...}`. Every request is idempotent. If a request names an `identity`, only the gateway with this
identity accepts it. Clients are `control_client` and `leader_link`; `performer` and `leader_control` handle the
requests.

    offer   fence, start, offered, known, records_max, bytes_max -> end, offset, start_sequence, is_behind, gateways
    clocks  fence                                     -> clocks, gateways
    offer-among  fence, start, offered, known, records_max, bytes_max, clocks, upto
                                                      -> end, offset, last, complete, is_behind
    commit  fence, epoch, end, positions, epochs_kept ->
    fence   fence, offered, known                     -> committed_end, next_sequence, identity, order, gateways
    abandon fence, epochs, name, lost_identity        -> at the leader: the gateway is lost for good
    status                                            -> see `Gateway.status`
    pause   is_kept                                   -> producers are not read; after a restart neither if is_kept
    resume                                            -> producers are read again, after a restart too
    order                                             -> order: what streams are put in order by, or null
    streams first_id, streams_max                     -> streams, next_id: see `gateway_metrics.stream_rows`
    and what `leader_control` has: gateways, leave, join, notify, relinquish, beat, left
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog

from procession.address import peer_of
from procession.errors import ConfigError, DiskError, ProcessionError, RemoteProtocolError, RoundError, StorageError
from procession.gateway.confirmation import KnownGateway, check_directory, check_gateways, check_offered
from procession.gateway.gateway_events import EpochCommitted
from procession.gateway.gateway_metrics import stream_rows
from procession.gateway.leader_control import LeaderControl
from procession.gateway.performer import GatewayPerformer
from procession.gateway.request_parsing import (
    FORMAT,
    KINDS,
    GarbledRequest,
    check_format,
    clocks,
    integers,
    known_gateway,
    offset,
    place,
    positions,
    written_clocks,
)
from procession.merge.event_time import DeclaredOrder
from procession.storage.log_ranges import LogOffset
from procession.tls import TlsListener

OP_CHARS_MAX = 40

Request = dict[str, Any]
Reply = dict[str, Any]

log = structlog.get_logger("gateway")


class ControlServer:
    def __init__(self, gateway: GatewayPerformer, leader_control: LeaderControl) -> None:
        self._gateway = gateway
        self._leader_control = leader_control
        self._config = gateway.config
        self._server: asyncio.Server | TlsListener | None = None
        self._connections: dict[asyncio.Task[Any], None] = {}
        self._is_compared = False
        """Whether a driver's request has matched this log since the gateway started."""
        self._unauthenticated: dict[asyncio.Task[Any], None] = {}
        """Connections that have not sent the cookie in a request yet, the oldest first."""

    async def start(self, listening: socket.socket) -> None:
        limit, tls = self._config.request_bytes_max, self._config.tls
        if listening.family == socket.AF_UNIX:  # a Unix socket needs no TLS
            self._server = await asyncio.start_unix_server(self._serve_connection, sock=listening, limit=limit)
            return
        if tls is None:
            self._server = await asyncio.start_server(self._serve_connection, sock=listening, limit=limit)
            return

        def protocol() -> asyncio.StreamReaderProtocol:
            return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit), self._serve_connection)

        self._server = TlsListener(listening, tls, protocol, handshake_timeout_s=self._config.handshake_timeout_s)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = None
        self._unauthenticated[task] = None
        self._make_room()
        deadline = asyncio.timeout(self._config.handshake_timeout_s)
        try:
            async with deadline:
                while line := await self._line(reader):
                    reply = await self._answer(line, task, writer)
                    if task not in self._unauthenticated:
                        deadline.reschedule(self._patience(task))
                    writer.write(json.dumps({"format": FORMAT, **reply}, separators=(",", ":")).encode() + b"\n")
                    await writer.drain()
        except (OSError, asyncio.CancelledError):
            # The peer is gone or too slow, or this gateway stops. In each case, the request may be sent again.
            pass
        finally:
            self._connections.pop(task, None)
            self._unauthenticated.pop(task, None)
            self._leader_control.lost(task)
            writer.close()

    def _patience(self, task: asyncio.Task[Any]) -> float | None:
        """Return the deadline for a peer's next request. Linked gateways send heartbeats; other peers have no
        deadline."""
        is_linked = self._leader_control.is_linked(task)
        return asyncio.get_running_loop().time() + self._config.link_timeout_s if is_linked else None

    def _make_room(self) -> None:
        """Close the oldest unauthenticated connection above the limit, so that such connections do not use up the
        limit. If all others are authenticated, the oldest unauthenticated connection is the newest connection."""
        if len(self._connections) > self._config.controls_max:
            log.warning("control.connections_exceeded", controls_max=self._config.controls_max)
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            oldest.cancel()

    async def _line(self, reader: asyncio.StreamReader) -> bytes:
        """Read the next request. Empty if the peer has closed the connection or the request is too long."""
        try:
            return await reader.readline()
        except ValueError:
            log.warning("control.request_too_long", request_bytes_max=self._config.request_bytes_max)
            return b""

    async def _answer(self, line: bytes, connection: asyncio.Task[Any], writer: asyncio.StreamWriter) -> Reply:
        request: Request = {}
        try:
            request = _parse(line)
            self._check_cookie(request)
            check_format(request)
            self._unauthenticated.pop(connection, None)
            if request.get("identity", self._gateway.identity) != self._gateway.identity:
                raise GarbledRequest("the request is for another gateway")
            if (reply := self._leader_control.answer(connection, request)) is not None:
                return {"ok": True, **reply}
            return {"ok": True, **await self._do(request)}
        except ProcessionError as error:
            failure = self._gateway.failure
            if isinstance(error, DiskError) and not failure.done():
                failure.set_exception(error)
            if failure.done():
                # A disk error ends this gateway. The client retries after the restart.
                raise ConnectionAbortedError(error.sentence) from error
            kind = KINDS.get(type(error), "invalid")
            op = str(request.get("op"))[:OP_CHARS_MAX]
            log.warning("control.refused", peer=peer_of(writer.get_extra_info("socket")), op=op, reason=error.sentence)
            return {"ok": False, "error": error.sentence, "next_step": error.next_step, "kind": kind}

    def _check_cookie(self, request: Request) -> None:
        given = str(request.get("cookie", "")).encode(errors="replace")
        if not hmac.compare_digest(given, self._config.control_cookie.hex().encode()):
            raise ConfigError(
                "The request has a wrong secret, or no secret.",
                next_step="Give its pipeline's --dir, or a copy of its secrets/control as --control-cookie-file.",
            )

    @asynccontextmanager
    async def _confirming(self, request: Request) -> AsyncIterator[None]:
        """Handle a request that names the log from which records were offered to the driver. Inside the block,
        producers are admitted if the request names this log, the driver is the current one, and no commit is
        missing."""
        offered, known, gateway = offset(request, "offered"), known_gateway(request), self._gateway
        try:
            check_offered(gateway.offered, offered or LogOffset(), gateway.name)
            check_directory(gateway.identity, gateway.state.snapshot.epoch + 1, known, gateway.name)
            check_gateways(self._leader_control.names, known, gateway.name)
        except StorageError as error:
            log.error("gateway.log_refused", reason=error.sentence)
            raise
        if offered is None:  # the driver only wants the list of gateways, and names no log
            yield
            return
        self._is_compared = True
        yield
        if known.start == gateway.start_id and not self._is_behind(known):
            gateway.confirm()

    def _unconfirmed(self) -> Reply:
        """Return the id that the driver repeats to confirm the log."""
        return {} if self._gateway.is_confirmed else {"start": self._gateway.start_id}

    def _is_behind(self, known: KnownGateway) -> bool:
        """Whether producers wait until the driver has sent the last commit to this gateway."""
        return not self._gateway.is_confirmed and self._gateway.state.snapshot.epoch + 1 < known.epochs

    def _check_compared(self) -> None:
        """Raise RoundError if no driver has compared this log yet; the driver then sends its commit again. An older
        copy of the directory must not report a commit as on disk. Otherwise the driver would refuse the right
        directory, which lacks the commit."""
        if not self._is_compared and not self._gateway.is_confirmed:
            raise RoundError(
                f"No driver has compared the log of {self._gateway.name or 'the gateway'} since its start.",
                next_step="Wait: the driver does so with its next offer, and sends the commit again.",
            )

    async def _do(self, request: Request) -> Reply:
        gateway = self._gateway
        match request.get("op"):
            case "offer":
                fence, start, records_max, bytes_max = integers(request, "fence", "start", "records_max", "bytes_max")
                async with self._confirming(request):
                    end = await gateway.offer(fence, start, records_max, bytes_max)
                reply = {"end": end, "offset": gateway.offered.offset(end).as_json()}
                reply["is_behind"] = self._is_behind(known_gateway(request))
                reply |= {"start_sequence": gateway.offered.start_sequence, **self._unconfirmed()}
                return {**reply, **self._leader_control.gateways()}
            case "clocks":
                reached = await gateway.clocks(*integers(request, "fence"))
                return {"clocks": written_clocks(reached), **self._leader_control.gateways()}
            case "offer-among":
                fence, start, records_max, bytes_max = integers(request, "fence", "start", "records_max", "bytes_max")
                limits = (records_max, bytes_max)
                async with self._confirming(request):
                    offered = await gateway.offer_among(fence, start, limits, clocks(request), place(request, "upto"))
                reply = {**offered._asdict(), "offset": gateway.offered.offset(offered.end).as_json()}
                reply |= self._unconfirmed()
                return {**reply, "is_behind": self._is_behind(known_gateway(request))}
            case "commit":
                fence, epoch, end = integers(request, "fence", "epoch", "end")
                kept = integers(request, "epochs_kept")[0] if "epochs_kept" in request else None
                self._check_compared()
                await gateway.commit(EpochCommitted(fence, epoch, end, positions(request), kept))
                return {}
            case "fence":
                async with self._confirming(request):
                    await gateway.fence(*integers(request, "fence"))
                end_sequence = gateway.state.snapshot.end_sequence
                found = {"committed_end": end_sequence, "next_sequence": gateway.offered.next_sequence}
                return {
                    **found,
                    "identity": gateway.identity,
                    "order": gateway.order,
                    **self._unconfirmed(),
                    **self._leader_control.gateways(),
                }
            case "abandon":
                self._check_compared()
                await gateway.fence(*integers(request, "fence"))
                self._leader_control.abandon(request)
                return {}
            case "status":
                return gateway.status()
            case "pause":
                await gateway.pause(True, is_kept=request.get("is_kept") is True)
                return {}
            case "resume":
                await gateway.pause(False, is_kept=True)
                return {}
            case "order":
                return {"order": _order_json(self._config.declared)}
            case "streams":
                return stream_rows(gateway, *integers(request, "first_id", "streams_max"))
            case other:
                raise RemoteProtocolError(f"unknown op {str(other)[:OP_CHARS_MAX]!r}")


def _order_json(declared: DeclaredOrder | None) -> dict[str, Any] | None:
    if declared is None:
        return None
    streams = sorted(declared.streams)
    return {"streams": streams, "lateness_ns": declared.lateness_ns, "idle_s": declared.idle_timeout_s}


def _parse(line: bytes) -> Request:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        raise GarbledRequest("a request that is not JSON") from None
    if not isinstance(request, dict):
        raise GarbledRequest("a request that is not an object")
    return request
