"""The messages between a driver and an emitter process, as bytes.

Invariant: a frame is a length and a JSON document, at most FRAME_BYTES_MAX bytes. The driver first names the
connections to open, then what to do on each; the process answers with the events of the round. Used by
`commit/emitter_client` and `commit/emitter_process`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from procession.commit.emitter import ConnectionRuns
from procession.commit.round_events import (
    EmitEpoch,
    Event,
    Phase2Confirmed,
    SinkConnected,
    SinkLost,
    VoteReceived,
)
from procession.commit.sink_link import SinkOptions
from procession.errors import ProcessionError, RemoteProtocolError
from procession.storage.run_store import Run
from procession.tls import ClientTls
from procession.wire.lane_blocks import LaneIdentity

LENGTH_BYTES = 4
READ_BYTES = 65_536
FRAME_BYTES_MAX = 64 * 1024 * 1024
"""Maximum size of a frame. A run takes about 150 bytes, so this is enough for 400,000 runs of one connection and
epoch."""
EVENTS: Mapping[str, type[Event]] = {
    kind.__name__: kind for kind in (SinkConnected, SinkLost, VoteReceived, Phase2Confirmed)
}


@dataclass(frozen=True)
class OpenConnections:
    """The first request: the connections that an emitter process should open, and the directory with the runs."""

    runs: str
    options: tuple[SinkOptions, ...]


@dataclass(frozen=True)
class SendRuns:
    """Send a connection its runs of an epoch, then ask for the vote."""

    action: EmitEpoch
    given: ConnectionRuns


@dataclass(frozen=True)
class SendDecision:
    """Send phase 2 of a transaction."""

    sink: str
    txn: str
    commit: bool


@dataclass(frozen=True)
class OpenAgain:
    """Close a connection, and open it again after a delay."""

    sink: str
    delay_s: float


@dataclass(frozen=True)
class GatewaysLeft:
    """Notify a sink of the gateways that have left the pipeline."""

    sink: str
    names: tuple[str, ...]


Request = OpenConnections | SendRuns | SendDecision | OpenAgain | GatewaysLeft


@dataclass(frozen=True)
class Notice:
    """A message for the user."""

    sentence: str


@dataclass(frozen=True)
class LinkFailed:
    """A connection has ended permanently, or its runs cannot be sent."""

    sink: str
    error: ProcessionError
    is_unsendable: bool = False
    """Whether the reason is a record that does not fit into the protocol."""


Answer = SinkConnected | SinkLost | VoteReceived | Phase2Confirmed | Notice | LinkFailed


def written_request(request: Request) -> bytes:
    match request:
        case OpenConnections(runs, options):
            return _frame({"open": [_written_options(each) for each in options], "runs": runs})
        case SendRuns(action, given):
            return _frame({"emit": asdict(action), "runs": [asdict(run) for run in given.runs], "total": given.total})
        case SendDecision():
            return _frame({"decide": asdict(request)})
        case OpenAgain():
            return _frame({"again": asdict(request)})
        case GatewaysLeft():
            return _frame({"left": asdict(request)})


def read_request(document: Mapping[str, Any]) -> Request:
    """Parse a request. Raises RemoteProtocolError if the document is not a request."""
    try:
        match document:
            case {"open": list(options), "runs": str(runs)}:
                return OpenConnections(runs, tuple(map(_read_options, options)))
            case {"emit": dict(action), "runs": list(runs), "total": int(total)}:
                return SendRuns(EmitEpoch(**action), ConnectionRuns([Run(**run) for run in runs], total))
            case {"decide": dict(fields)}:
                return SendDecision(**fields)
            case {"again": dict(fields)}:
                return OpenAgain(**fields)
            case {"left": {"sink": str(sink), "names": list(names)}}:
                return GatewaysLeft(sink, tuple(names))
    except (TypeError, KeyError, ValueError) as error:
        raise RemoteProtocolError(f"A request to an emitter cannot be read: {error}.") from error
    raise RemoteProtocolError(f"A request to an emitter has an unknown kind: {', '.join(map(str, document))}.")


def written_answer(answer: Answer) -> bytes:
    match answer:
        case Notice(sentence):
            return _frame({"said": sentence})
        case LinkFailed(sink, error, is_unsendable):
            return _frame({"failed": sink, "error": error.as_dict(), "is_unsendable": is_unsendable})
        case event:
            return _frame({"event": type(event).__name__, **asdict(event)})


def read_answer(document: Mapping[str, Any]) -> Answer:
    """Parse an answer. Raises RemoteProtocolError if the document is not an answer."""
    try:
        match document:
            case {"said": str(sentence)}:
                return Notice(sentence)
            case {"failed": str(sink), "error": dict(error), "is_unsendable": bool(is_unsendable)}:
                return LinkFailed(sink, ProcessionError.from_dict(error), is_unsendable)
            case {"event": "SinkConnected", "sink": str(sink), "listed": list(listed), "position": position}:
                return SinkConnected(sink, tuple(listed), position)
            case {"event": ("SinkLost" | "VoteReceived" | "Phase2Confirmed") as kind, **fields}:
                return EVENTS[kind](**fields)  # type: ignore[return-value]
    except (TypeError, KeyError, ValueError) as error:
        raise RemoteProtocolError(f"An answer of an emitter cannot be read: {error}.") from error
    raise RemoteProtocolError(f"An answer of an emitter has an unknown kind: {', '.join(map(str, document))}.")


class FrameReader:
    """Splits received bytes into documents."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def take(self, data: bytes) -> Iterator[Mapping[str, Any]]:
        self._waiting += data
        while len(self._waiting) >= LENGTH_BYTES:
            length = int.from_bytes(self._waiting[:LENGTH_BYTES], "big")
            if length > FRAME_BYTES_MAX:
                raise RemoteProtocolError(f"A frame of an emitter has {length} bytes, more than {FRAME_BYTES_MAX}.")
            end = LENGTH_BYTES + length
            if len(self._waiting) < end:
                return
            try:
                document = json.loads(self._waiting[LENGTH_BYTES:end])
            except ValueError as error:
                raise RemoteProtocolError(f"A frame of an emitter is not JSON: {error}.") from error
            del self._waiting[:end]
            if not isinstance(document, dict):
                raise RemoteProtocolError("A frame of an emitter is not a JSON object.")
            yield document


async def documents(reader: asyncio.StreamReader) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the documents of the other side, until it closes the connection."""
    frames = FrameReader()
    while data := await reader.read(READ_BYTES):
        for document in frames.take(data):
            yield document


def _frame(document: Mapping[str, Any]) -> bytes:
    body = json.dumps(document, separators=(",", ":")).encode()
    if len(body) > FRAME_BYTES_MAX:
        raise ProcessionError(
            f"An epoch has too many runs for one connection: {len(body)} bytes, at most {FRAME_BYTES_MAX}.",
            next_step="Lower the parallelism, or give the sink more connections.",
        )
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def _written_options(options: SinkOptions) -> dict[str, Any]:
    tls = options.tls
    return {
        **asdict(replace(options, cookie=b"", tls=None, lane=None)),
        "cookie": options.cookie.hex(),
        "tls": None if tls is None else {name: _text(value) for name, value in asdict(tls).items()},
        "lane": None if options.lane is None else asdict(options.lane),
    }


def _read_options(document: Any) -> SinkOptions:
    fields = dict(document)
    tls, lane = fields["tls"], fields["lane"]
    fields["cookie"] = bytes.fromhex(fields["cookie"])
    if tls is not None:
        paths = {name: _path(tls[name]) for name in ("ca", "cert", "key")}
        fields["tls"] = ClientTls(**paths, name=tls["name"])
    if lane is not None:
        fields["lane"] = LaneIdentity(**{**lane, "covers": tuple(lane["covers"])})
    return SinkOptions(**fields)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _path(text: str | None) -> Any:
    return None if text is None else Path(text)
