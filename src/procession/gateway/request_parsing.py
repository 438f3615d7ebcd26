"""Parses requests at the control port: numbers, positions and clocks of streams. Also names the errors of replies.
Pure.

Invariant: a malformed request is the peer's error, reported in one short sentence. Used by `control` and
`leader_control`. A reply names the class of an error; `control_client` raises the same class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from procession.errors import (
    ConfigError,
    DiskError,
    FencedError,
    ProcessionError,
    RemoteProtocolError,
    RoundError,
    StorageError,
)
from procession.format_number import is_known_format
from procession.gateway.confirmation import KnownGateway
from procession.merge.stream_clocks import StreamClock
from procession.merge.waiting_rows import Key
from procession.storage.log_ranges import LogOffset


class GarbledRequest(RemoteProtocolError):
    """The request could not be decoded. The client sends it again."""


KINDS: dict[type[ProcessionError], str] = {
    FencedError: "fenced",
    StorageError: "storage",
    DiskError: "disk",
    RoundError: "unready",
    ConfigError: "config",
    RemoteProtocolError: "invalid",
    GarbledRequest: "garbled",
}


U64_DIGITS = 20

FORMAT = 3
"""Format number of requests at the control port and of their answers. A request without a number has format 1, which
cannot name the log of the offered records. A request of format 2 cannot repeat the id of the gateway's start. So
neither of these formats can confirm a gateway's log. Everything else has the same meaning in all formats."""


ONE_VERSION = "Start gateways, driver and commands in the same version."


def check_format(request: Mapping[str, Any]) -> None:
    """Raise ConfigError if a request has a newer format."""
    if not is_known_format(number := request.get("format", 1), FORMAT):
        raise ConfigError(
            f"A request has format {str(number)[:20]}, and this gateway understands formats 1 to {FORMAT}.",
            next_step=ONE_VERSION,
        )


def check_answer(answer: Mapping[str, Any]) -> None:
    """Raise ConfigError if a gateway answers in a newer format."""
    if not is_known_format(number := answer.get("format", 1), FORMAT):
        raise ConfigError(
            f"The gateway answers in format {str(number)[:20]}, and this program understands formats 1 to {FORMAT}.",
            next_step=ONE_VERSION,
        )


def integers(request: Mapping[str, Any], *names: str) -> list[int]:
    for name in names:
        if not is_u64(request.get(name)):
            raise RemoteProtocolError(f"{name} must be a whole number below 2^64")
    return [request[name] for name in names]


def positions(request: Mapping[str, Any]) -> dict[int, int]:
    positions = request.get("positions")
    if not isinstance(positions, dict):
        raise RemoteProtocolError("positions must be an object")
    for stream_id, message_id in positions.items():
        if not (stream_id.isdecimal() and len(stream_id) <= U64_DIGITS and is_u64(int(stream_id))):
            raise RemoteProtocolError("positions must map stream ids to message ids")
        if not is_u64(message_id):
            raise RemoteProtocolError("positions must map stream ids to message ids")
    return {int(stream_id): message_id for stream_id, message_id in positions.items()}


def clocks(request: Mapping[str, Any], name: str = "clocks") -> dict[int, StreamClock]:
    try:
        return read_clocks(request.get(name) or {})
    except (ValueError, TypeError, AttributeError):
        raise RemoteProtocolError(f"{name} must map stream ids to [time, whether it has ended, last id]") from None


def written_clocks(clocks: Mapping[int, StreamClock]) -> dict[str, list[int | bool | None]]:
    return {str(stream_id): [clock.time, clock.is_ended, clock.seen] for stream_id, clock in clocks.items()}


def read_clocks(written: Mapping[str, Any]) -> dict[int, StreamClock]:
    """Parse the clocks of streams. Raises ValueError, TypeError or AttributeError if the text has another form."""
    return {int(stream_id): _clock(*clock) for stream_id, clock in written.items()}


def _clock(time: int, is_ended: bool, seen: int | None = None) -> StreamClock:
    return StreamClock(int(time), bool(is_ended), None if seen is None else int(seen))


def place(request: Mapping[str, Any], name: str) -> Key | None:
    """Parse a place in event-time order: order time, stream id, message id."""
    value = request.get(name)
    if value is None:
        return None
    if not (
        isinstance(value, list) and len(value) == len(Key._fields) and all(isinstance(number, int) for number in value)
    ):
        raise RemoteProtocolError(f"{name} must be an order time, a stream id and a message id, or null")
    return Key(*value)


def offset(request: Mapping[str, Any], name: str) -> LogOffset | None:
    """Parse the end of the offered records and the identity of their log. None: the request does not contain it."""
    value = request.get(name)
    if value is None:
        return None
    fields = value if isinstance(value, list) else [value, "", ""]
    if not (
        len(fields) == len(LogOffset._fields)
        and is_u64(fields[0])
        and all(isinstance(text, str) for text in fields[1:])
    ):
        raise RemoteProtocolError(f"{name} must be a sequence, an incarnation and a checksum, or a sequence")
    return LogOffset(*fields)


def known_gateway(request: Mapping[str, Any]) -> KnownGateway:
    """Parse the driver's knowledge about this gateway. By default, the driver knows nothing."""
    known = request.get("known")
    if known is None:
        return KnownGateway()
    if not isinstance(known, dict) or not isinstance(identity := known.get("identity"), str):
        raise RemoteProtocolError("known must be an object with epochs, epochs_kept and an identity")
    gateways = known.get("gateways", [])
    start = known.get("start", "")
    if not isinstance(start, str):
        raise RemoteProtocolError("the start that is known must be the id from an answer")
    if not isinstance(gateways, list) or not all(isinstance(name, str) for name in gateways):
        raise RemoteProtocolError("the gateways that are known must be a list of names")
    epochs, epochs_kept = integers(known, "epochs", "epochs_kept")
    return KnownGateway(epochs, epochs_kept, identity, tuple(gateways), start)


def is_u64(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 2**64
