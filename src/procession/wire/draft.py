"""The draft of the connector protocol: encodes and decodes each frame.

Invariant: `encode(decode(body))` equals `body`, and a body that is not a frame is the peer's error. `frame_codec`
splits bytes into frame bodies; `connection` checks whether a frame is allowed. The tags are letters, so a frame of the
draft is never mistaken for one of version 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat

import pyarrow as pa

from procession.errors import LocalProtocolError, RemoteProtocolError
from procession.wire import frame_codec
from procession.wire.draft_messages import (
    DEBUG_COUNT_MAX,
    AckCounts,
    Debug,
    DebugFault,
    DraftFrame,
    DraftMessage,
    DraftOk,
    Extension,
    Flag,
)
from procession.wire.frame_codec import Reader
from procession.wire.messages import Ack, Error, Hello, Notify, Restart
from procession.wire.v3 import Integers

VERSION = "draft"
"""The version in HELLO. Requested extensions follow, each after a `+`: `draft+counts+debug`."""

IN_USE = "the stream is in use, or its end is not committed yet"
"""Beginning of an ERROR that refuses a NOTIFY, because the draft has no NOTIFY_ACK. The source retries later."""

MESSAGE_TAG = ord("M")

# Plain integers, because operations on enum flags are much slower.
_EPHEMERAL, _BOUNDARY, _EOS, _UNSTABLE_REFERENCE, _EVENT_TIME, _KEY = map(int, Flag)
_UNKNOWN = ~sum(map(int, Flag))


def version(extensions: frozenset[Extension] = frozenset()) -> str:
    """Return the version for HELLO that requests these extensions."""
    return "+".join([VERSION, *(extension.value for extension in Extension if extension in extensions)])


VERSIONS: dict[str, frozenset[Extension]] = {
    version(wanted): wanted
    for wanted in map(frozenset[Extension], ((), (Extension.COUNTS,), (Extension.DEBUG,), tuple(Extension)))
}
"""Every valid version, matched exactly, and its extensions."""


def _hello(reader: Reader) -> DraftFrame:
    return Hello(reader.short_text(), reader.short_bytes(), reader.short_text(), reader.short_text())


def _ok(reader: Reader) -> DraftFrame:
    def streams() -> Iterator[tuple[int, str, int]]:
        while reader.remaining:
            yield reader.u64(), reader.short_text(), reader.u64()

    return DraftOk(reader.u32(), tuple(streams()))


def _error(reader: Reader) -> DraftFrame:
    return Error(reader.short_text())


def _notify(reader: Reader) -> DraftFrame:
    return Notify(reader.u64(), reader.short_text(), reader.u64())


def _message(reader: Reader) -> DraftFrame:
    flags = reader.u16()
    if flags & _UNKNOWN:
        raise RemoteProtocolError(f"unknown message flags {flags & _UNKNOWN:#x}")
    message = DraftMessage(
        stream_id=reader.u64(),
        message_id=None if flags & _EPHEMERAL else reader.u64(),
        event_time=reader.u64() if flags & _EVENT_TIME else None,
        key=reader.short_bytes() if flags & _KEY else None,
        payload=None if flags & _BOUNDARY else reader.remainder(),
        is_last=bool(flags & _EOS),
        is_unstable=bool(flags & _UNSTABLE_REFERENCE),
    )
    if _is_meaningless(message):
        raise RemoteProtocolError("a boundary without a message id that ends nothing")
    return message


def _ack(reader: Reader) -> DraftFrame:
    return Ack(reader.u32(), tuple((reader.u64(), reader.u64()) for _ in range(reader.count(16))))


def _ack_counts(reader: Reader) -> DraftFrame:
    credits_given, count = reader.u32(), reader.count(24)
    return AckCounts(credits_given, tuple((reader.u64(), reader.u64(), reader.u64()) for _ in range(count)))


def _restart(reader: Reader) -> DraftFrame:
    return Restart()


_FAULTS = {fault.value: fault for fault in DebugFault}


def _debug(reader: Reader) -> DraftFrame:
    number, count = reader.u8(), reader.u32()
    if number not in _FAULTS:
        raise RemoteProtocolError(f"unknown fault {number}")
    if count > DEBUG_COUNT_MAX:
        raise RemoteProtocolError(f"a fault {count} times, the limit is {DEBUG_COUNT_MAX}")
    return Debug(_FAULTS[number], count)


_DECODERS: dict[int, Callable[[Reader], DraftFrame]] = {
    ord("H"): _hello,
    ord("O"): _ok,
    ord("E"): _error,
    ord("N"): _notify,
    MESSAGE_TAG: _message,
    ord("A"): _ack,
    ord("!"): _restart,
    ord("C"): _ack_counts,
    ord("D"): _debug,
}

TAGS = frozenset(_DECODERS)


def decode(body: bytes) -> DraftFrame:
    """Decode a frame body (tag and fields)."""
    reader = Reader(body)
    tag = reader.u8()
    decoder = _DECODERS.get(tag)
    if decoder is None:
        raise RemoteProtocolError(f"unknown frame tag {tag}")
    frame = decoder(reader)
    reader.finish()
    return frame


def encode(frame: DraftFrame) -> bytes:
    """Encode a frame with its length word."""
    return frame_codec.frame(_body(frame))


def _body(frame: DraftFrame) -> bytes:
    u32, u64 = frame_codec.u32, frame_codec.u64
    match frame:
        case Hello(said, cookie, program, instance):
            names = frame_codec.short_text(program) + frame_codec.short_text(instance)
            return b"H" + frame_codec.short_text(said) + frame_codec.short_bytes(cookie) + names
        case DraftOk(granted, streams):
            known = (u64(stream_id) + frame_codec.short_text(name) + u64(point) for stream_id, name, point in streams)
            return b"O" + u32(granted) + b"".join(known)
        case Error(reason):
            return b"E" + frame_codec.short_text(reason)
        case Notify(stream_id, name, point):
            return b"N" + u64(stream_id) + frame_codec.short_text(name) + u64(point)
        case DraftMessage():
            return _message_body(frame)
        case Ack(granted, positions):
            pairs = b"".join(u64(number) for pair in positions for number in pair)
            return b"A" + u32(granted) + u32(len(positions)) + pairs
        case AckCounts(granted, counted):
            triples = b"".join(u64(number) for triple in counted for number in triple)
            return b"C" + u32(granted) + u32(len(counted)) + triples
        case Restart(address):
            if address is not None:
                raise LocalProtocolError("a RESTART of the draft has no address")
            return b"!"
        case Debug(fault, count):
            if count > DEBUG_COUNT_MAX:
                raise LocalProtocolError(f"a fault {count} times, the limit is {DEBUG_COUNT_MAX}")
            return b"D" + frame_codec.u8(fault.value) + u32(count)
        case _:
            raise LocalProtocolError(f"{type(frame).__name__} is not a frame of the draft")


def _message_body(message: DraftMessage) -> bytes:
    if _is_meaningless(message):
        raise LocalProtocolError("a boundary without a message id that ends nothing")
    parts = [b"M", message.flags.to_bytes(2), frame_codec.u64(message.stream_id)]
    if message.message_id is not None:
        parts.append(frame_codec.u64(message.message_id))
    if message.event_time is not None:
        parts.append(frame_codec.u64(message.event_time))
    if message.key is not None:
        parts.append(frame_codec.short_bytes(message.key))
    if message.payload is not None:
        parts.append(message.payload)
    return b"".join(parts)


def _is_meaningless(message: DraftMessage) -> bool:
    """Whether a boundary is neither a point of reference, which needs an id, nor the end of a stream."""
    return message.payload is None and message.message_id is None and not message.is_last


def encode_messages(
    stream_id: int,
    message_ids: Integers | None,
    event_times: Integers,
    keys: pa.Array | None,
    payloads: pa.Array,
    frame_bytes_max: int = frame_codec.FRAME_BYTES_MAX,
) -> pa.Buffer:
    """Encode many MESSAGE frames of one stream. Without message ids they are ephemeral."""
    if payloads.null_count or (keys is not None and keys.null_count):
        raise LocalProtocolError("a key or payload that is null")
    no_keys: Iterable[bytes] = repeat(b"", len(payloads))
    columns = (
        repeat(None, len(payloads)) if message_ids is None else map(int, message_ids),
        payloads.to_pylist(),
        (int(time) or None for time in event_times),
        (key or None for key in (no_keys if keys is None else keys.to_pylist())),
    )
    try:
        frames = [encode(DraftMessage(stream_id, *row)) for row in zip(*columns, strict=True)]
    except ValueError:
        raise LocalProtocolError("columns of different lengths") from None
    if (largest := max(map(len, frames), default=0) - 4) > frame_bytes_max:
        raise LocalProtocolError(f"a frame of {largest} bytes, the limit is {frame_bytes_max}")
    return pa.py_buffer(b"".join(frames))
