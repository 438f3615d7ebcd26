"""The gateway's side door: JSON lines over TCP, for the driver and the operator.

The one rule: one request object a line, one reply object a line, `{"ok": true, ...}` or `{"ok": false, "error": ...,
"kind": ...}`; every request may be sent again. Before it: `client`. After it: `core`.

    offer   fence, start, records_max, bytes_max      -> end, start_sequence
    commit  fence, epoch, end, positions              ->
    fence   fence                                     -> committed_end, next_sequence
    status                                            -> see `Gateway.status`
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
from typing import Any

import structlog

from procession.errors import ConfigError, ProcessionError, RemoteProtocolError
from procession.gateway.core import Gateway
from procession.gateway.events import Committed
from procession.gateway.refusal import KINDS, Garbled

Request = dict[str, Any]
Reply = dict[str, Any]

U64_DIGITS = 20

log = structlog.get_logger("gateway")


class ControlServer:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._config = gateway.config
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[Any]] = set()
        self._strangers: dict[asyncio.Task[Any], None] = {}
        """Those that have not shown the cookie in a request yet, the oldest first."""

    async def start(self, listening: socket.socket) -> None:
        self._server = await asyncio.start_server(self._talk, sock=listening, limit=self._config.request_bytes_max)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._talks:
            task.cancel()
        if self._talks:
            await asyncio.wait(self._talks)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        self._strangers[task] = None
        self._make_room()
        deadline = asyncio.timeout(self._config.handshake_timeout_s)
        try:
            async with deadline:
                while line := await self._line(reader):
                    reply = await self._answer(line, task)
                    if task not in self._strangers:
                        deadline.reschedule(None)
                    writer.write(json.dumps(reply, separators=(",", ":")).encode() + b"\n")
                    await writer.drain()
        except (OSError, asyncio.CancelledError):
            # The other side is gone, or too slow, or we are gone: in any case the request may be sent again.
            pass
        finally:
            self._talks.discard(task)
            self._strangers.pop(task, None)
            writer.close()

    def _make_room(self) -> None:
        """Strangers shut nobody out: the oldest goes. If all have shown the cookie, that is the one who came last."""
        if len(self._talks) > self._config.controls_max:
            log.warning("!", control="too many connections", controls_max=self._config.controls_max)
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()

    async def _line(self, reader: asyncio.StreamReader) -> bytes:
        """The next request; nothing when the peer is done, or says too much."""
        try:
            return await reader.readline()
        except ValueError:
            log.warning("!", control="request too long", request_bytes_max=self._config.request_bytes_max)
            return b""

    async def _answer(self, line: bytes, talk: asyncio.Task[Any]) -> Reply:
        try:
            request = _parse(line)
            self._check_cookie(request)
            self._strangers.pop(talk, None)
            return {"ok": True, **await self._do(request)}
        except ProcessionError as error:
            kind = KINDS.get(type(error), "invalid")
            return {"ok": False, "error": error.sentence, "next_step": error.next_step, "kind": kind}

    def _check_cookie(self, request: Request) -> None:
        given = str(request.get("cookie", "")).encode()
        if not hmac.compare_digest(given, self._config.limits.cookie.hex().encode()):
            raise ConfigError(
                "The gateway was asked with a wrong cookie, or none.", next_step="Give both the same cookie file."
            )

    async def _do(self, request: Request) -> Reply:
        gateway = self._gateway
        match request.get("op"):
            case "offer":
                fence, start, records_max, bytes_max = _integers(request, "fence", "start", "records_max", "bytes_max")
                end = await gateway.offer(fence, start, records_max, bytes_max)
                return {"end": end, "start_sequence": gateway.log.start_sequence}
            case "commit":
                fence, epoch, end = _integers(request, "fence", "epoch", "end")
                await gateway.commit(Committed(fence, epoch, end, _positions(request)))
                return {}
            case "fence":
                await gateway.fence(*_integers(request, "fence"))
                end_sequence = gateway.state.snapshot.end_sequence
                found = {"committed_end": end_sequence, "next_sequence": gateway.state.next_sequence}
                return {**found, "identity": gateway.identity}
            case "status":
                return gateway.status()
            case other:
                raise RemoteProtocolError(f"unknown op {str(other)[:40]!r}")


def _parse(line: bytes) -> Request:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        raise Garbled("a request that is not JSON") from None
    if not isinstance(request, dict):
        raise Garbled("a request that is not an object")
    return request


def _integers(request: Request, *names: str) -> list[int]:
    for name in names:
        if not _is_u64(request.get(name)):
            raise RemoteProtocolError(f"{name} must be a whole number below 2^64")
    return [request[name] for name in names]


def _positions(request: Request) -> dict[int, int]:
    positions = request.get("positions")
    if not isinstance(positions, dict):
        raise RemoteProtocolError("positions must be an object")
    for stream_id, message_id in positions.items():
        if not (stream_id.isdecimal() and len(stream_id) <= U64_DIGITS and _is_u64(int(stream_id))):
            raise RemoteProtocolError("positions must map stream ids to message ids")
        if not _is_u64(message_id):
            raise RemoteProtocolError("positions must map stream ids to message ids")
    return {int(stream_id): message_id for stream_id, message_id in positions.items()}


def _is_u64(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 2**64
