"""The messages between a driver and an emitter, as bytes.

Invariant: a frame is a length and a JSON document, at most FRAME_BYTES_MAX bytes. The driver first names the
connections to open, then what to do on each; the emitter answers with the events of the round. Over the network a
greeting comes before that, of at most GREETING_BYTES_MAX bytes, and the emitter accepts or refuses it. Used by
`commit/emitter_client` and `commit/emitter_session`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
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
from procession.storage.flight_reader import FlightAccess
from procession.storage.host_runs import HostRuns
from procession.storage.run_store import Run
from procession.tls import ClientTls
from procession.wire.lane_blocks import LaneIdentity

LENGTH_BYTES = 4
READ_BYTES = 65_536
FORMAT = 1
"""Format number of the messages. The greeting has it."""
GREETING_BYTES_MAX = 4096
FRAME_BYTES_MAX = 64 * 1024 * 1024
"""Maximum size of a frame. A run takes about 150 bytes, so this is enough for 400,000 runs of one connection and
epoch."""
RUNS_IDENTITY = "identity"
"""File in a directory of runs with a text that the driver has chosen. It tells an emitter whether it sees the driver's
directory, or another one at the same path."""
EVENTS: Mapping[str, type[Event]] = {
    kind.__name__: kind for kind in (SinkConnected, SinkLost, VoteReceived, Phase2Confirmed)
}


@dataclass(frozen=True)
class DriverGreeting:
    """The first message over the network: the driver of this checkpoint, and its fence."""

    checkpoint_id: str
    fence: int
    cookie: bytes = field(default=b"", repr=False)
    format: int = FORMAT


@dataclass(frozen=True)
class RunPlace:
    """Where the runs are: in a directory, or on the machines of host services."""

    directory: str = ""
    identity: str = ""
    """The text that the file RUNS_IDENTITY of the directory must have. Empty: it is not compared."""
    hosts: HostRuns | None = None


@dataclass(frozen=True)
class OpenConnections:
    """The first request: the connections that an emitter should open, and the place of the runs."""

    runs: RunPlace
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


def written_greeting(greeting: DriverGreeting) -> bytes:
    return _frame({**asdict(greeting), "cookie": greeting.cookie.hex()})


def read_greeting(document: Mapping[str, Any]) -> DriverGreeting:
    """Parse a greeting. Raises RemoteProtocolError if the document is not a greeting."""
    match document:
        case {"checkpoint_id": str(checkpoint), "fence": int(fence), "cookie": str(cookie), "format": int(number)}:
            with suppress(ValueError):
                return DriverGreeting(checkpoint, fence, bytes.fromhex(cookie), number)
    raise RemoteProtocolError("The first message to an emitter is not the greeting of a driver.")


def written_reply(refusal: ProcessionError | None) -> bytes:
    """Return the reply to a greeting. None: it is accepted."""
    return _frame({"accepted": True} if refusal is None else {"refused": refusal.as_dict()})


def read_reply(document: Mapping[str, Any]) -> ProcessionError | None:
    """Parse the reply to a greeting. Raises RemoteProtocolError if the document is not a reply."""
    try:
        match document:
            case {"accepted": True}:
                return None
            case {"refused": dict(error)}:
                return ProcessionError.from_dict(error)
    except (TypeError, KeyError) as error:
        raise RemoteProtocolError(f"The reply of an emitter cannot be read: {error}.") from error
    raise RemoteProtocolError("The reply to a greeting is not that of an emitter.")


def written_request(request: Request) -> bytes:
    match request:
        case OpenConnections(runs, options):
            return _frame({"open": [_written_options(each) for each in options], "runs": _written_place(runs)})
        case SendRuns(action, given):
            return _frame({"emit": asdict(action), "runs": [vars(run) for run in given.runs], "total": given.total})
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
            case {"open": list(options), "runs": dict(runs)}:
                return OpenConnections(_read_place(runs), tuple(map(_read_options, options)))
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
    """Splits received bytes into documents of up to `bytes_max` bytes."""

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._waiting = bytearray()

    def take(self, data: bytes) -> Iterator[Mapping[str, Any]]:
        self._waiting += data
        while len(self._waiting) >= LENGTH_BYTES:
            length = int.from_bytes(self._waiting[:LENGTH_BYTES], "big")
            if length > self.bytes_max:
                raise RemoteProtocolError(f"A frame has {length} bytes, at most {self.bytes_max} are allowed.")
            end = LENGTH_BYTES + length
            if len(self._waiting) < end:
                return
            try:
                document = json.loads(self._waiting[LENGTH_BYTES:end])
            except (ValueError, RecursionError) as error:
                raise RemoteProtocolError(f"A frame is not JSON: {error}.") from error
            del self._waiting[:end]
            if not isinstance(document, dict):
                raise RemoteProtocolError("A frame is not a JSON object.")
            yield document


async def documents(
    reader: asyncio.StreamReader, frames: FrameReader | None = None
) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the documents of the other side, until it closes the connection."""
    frames = frames or FrameReader()
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


def _written_place(place: RunPlace) -> dict[str, Any]:
    hosts, found = place.hosts, {"directory": place.directory, "identity": place.identity}
    if hosts is None:
        return found
    access = {"cookie": hosts.access.cookie.hex(), "tls": _written_tls(hosts.access.tls)}
    return found | {"hosts": {"pipeline": hosts.pipeline, "fence": hosts.fence, **access}}


def _read_place(document: Mapping[str, Any]) -> RunPlace:
    hosts, named = document.get("hosts"), (str(document["directory"]), str(document["identity"]))
    if hosts is None:
        return RunPlace(*named)
    access = FlightAccess(bytes.fromhex(hosts["cookie"]), _read_tls(hosts["tls"]))
    return RunPlace(*named, HostRuns(str(hosts["pipeline"]), int(hosts["fence"]), access))


def _written_options(options: SinkOptions) -> dict[str, Any]:
    return {
        **asdict(replace(options, cookie=b"", tls=None, lane=None)),
        "cookie": options.cookie.hex(),
        "tls": _written_tls(options.tls),
        "lane": None if options.lane is None else asdict(options.lane),
    }


def _read_options(document: Any) -> SinkOptions:
    fields = dict(document)
    lane = fields["lane"]
    fields["cookie"] = bytes.fromhex(fields["cookie"])
    fields["tls"] = _read_tls(fields["tls"])
    if lane is not None:
        fields["lane"] = LaneIdentity(**{**lane, "covers": tuple(lane["covers"])})
    return SinkOptions(**fields)


def _written_tls(tls: ClientTls | None) -> dict[str, Any] | None:
    return None if tls is None else {name: _text(getattr(tls, name)) for name in ("ca", "cert", "key", "name")}


def _read_tls(document: Mapping[str, Any] | None) -> ClientTls | None:
    if document is None:
        return None
    return ClientTls(**{name: _path(document[name]) for name in ("ca", "cert", "key")}, name=document["name"])


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _path(text: str | None) -> Any:
    return None if text is None else Path(text)
