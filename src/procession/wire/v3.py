"""Version 3 of the connector protocol: encodes and decodes each frame.

Invariant: `encode(decode(body))` equals `body`, and a body that is not a frame is the peer's error. `frame_codec`
splits bytes into frame bodies; `connection` checks whether a frame is allowed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from procession.errors import LocalProtocolError, RemoteProtocolError
from procession.wire import columns, frame_codec
from procession.wire.frame_codec import Bytes, Reader
from procession.wire.messages import (
    LARGE_BYTES_MIN,
    Ack,
    Eos,
    Error,
    Frame,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Restart,
)

SOURCE_VERSION = "0.0.1"
"""The version in the HELLO of existing sources."""

SINK_VERSION = "v0.0.1"
"""The version that existing sinks expect in HELLO."""

VERSIONS = frozenset({SOURCE_VERSION, SINK_VERSION})

ERROR_TAG = 2
MESSAGE_TAG = 5

Integers = Sequence[int] | npt.NDArray[Any]
"""A column of integers. An Arrow array works too."""

_OK = struct.Struct(">BI")
_NOTIFY_ACK = struct.Struct(">B?QQ")
_NOTIFY_ACK_FIELDS = struct.Struct(">BQQ")
_MESSAGE = struct.Struct(">BQQqH")
_ACK = struct.Struct(">BII")
_POSITION = struct.Struct(">QQ")
_RESTART = struct.Struct(">BI")
_EOS = struct.Struct(">BQ")


def _hello(reader: Reader) -> Frame:
    return Hello(reader.short_text(), reader.short_bytes(), reader.short_text(), reader.short_text())


def _ok(reader: Reader) -> Frame:
    return Ok(reader.u32())


def _error(reader: Reader) -> Frame:
    return Error(reader.short_text())


def _notify(reader: Reader) -> Frame:
    return Notify(reader.u64(), reader.short_text(), reader.u64())


def _notify_ack(reader: Reader) -> Frame:
    success, stream_id, point = reader.fields(_NOTIFY_ACK_FIELDS)
    return NotifyAck(frame_codec.boolean(success), stream_id, point)


def _message(reader: Reader) -> Frame:
    return Message(reader.u64(), reader.u64(), reader.i64(), reader.short_bytes(), reader.remainder())


def _ack(reader: Reader) -> Frame:
    given, count = reader.u32(), reader.count(_POSITION.size)
    return Ack(given, tuple(_POSITION.iter_unpack(reader.bytes_of(count * _POSITION.size))) if count else ())


def _restart(reader: Reader) -> Frame:
    # In the protocol text a RESTART has no body; existing peers send a u32 length.
    length = reader.u32() if reader.remaining else 0
    return Restart(frame_codec.text(reader.bytes_of(length)) or None)


def _eos(reader: Reader) -> Frame:
    return Eos(reader.u64(), reader.u64() if reader.remaining else None)


_DECODERS: dict[int, Callable[[Reader], Frame]] = {
    0: _hello,
    1: _ok,
    2: _error,
    3: _notify,
    4: _notify_ack,
    MESSAGE_TAG: _message,
    6: _ack,
    7: _restart,
    8: _eos,
}


def decode(body: bytes) -> Frame:
    """Decode a frame body (tag and fields)."""
    if not body:
        raise RemoteProtocolError("truncated frame")
    decoder = _DECODERS.get(body[0])
    if decoder is None:
        raise RemoteProtocolError(f"unknown frame tag {body[0]}")
    reader = Reader(body, 1)
    frame = decoder(reader)
    reader.finish()
    return frame


def _encode_hello(frame: Hello) -> bytes:
    names = frame_codec.short_text(frame.program) + frame_codec.short_text(frame.instance)
    return b"\x00" + frame_codec.short_text(frame.version) + frame_codec.short_bytes(frame.cookie) + names


def _encode_error(frame: Error) -> bytes:
    return b"\x02" + frame_codec.short_text(frame.reason)


def _encode_notify(frame: Notify) -> bytes:
    name = frame_codec.short_text(frame.stream_name)
    return b"\x03" + frame_codec.u64(frame.stream_id) + name + frame_codec.u64(frame.point_of_reference)


def _encode_message(frame: Message) -> bytes:
    key = frame.key
    if len(key) > frame_codec.SHORT_BYTES_MAX:
        raise LocalProtocolError(f"a key of {len(key)} bytes, the limit is {frame_codec.SHORT_BYTES_MAX}")
    fields = _MESSAGE.pack(MESSAGE_TAG, frame.stream_id, frame.message_id, frame.event_time, len(key))
    return fields + key + frame.payload


def _encode_ack(frame: Ack) -> bytes:
    positions = frame.positions
    fields = _ACK.pack(6, frame.credits, len(positions))
    return fields + b"".join([_POSITION.pack(*position) for position in positions]) if positions else fields


def _encode_restart(frame: Restart) -> bytes:
    where = (frame.address or "").encode()
    return _RESTART.pack(7, len(where)) + where


def _encode_eos(frame: Eos) -> bytes:
    fields = _EOS.pack(8, frame.stream_id)
    return fields if frame.message_id is None else fields + frame_codec.u64(frame.message_id)


_ENCODERS: dict[type[Frame], Callable[[Any], bytes]] = {
    Hello: _encode_hello,
    Ok: lambda frame: _OK.pack(1, frame.credits),
    Error: _encode_error,
    Notify: _encode_notify,
    NotifyAck: lambda frame: _NOTIFY_ACK.pack(4, frame.success, frame.stream_id, frame.point_of_reference),
    Message: _encode_message,
    Ack: _encode_ack,
    Restart: _encode_restart,
    Eos: _encode_eos,
}


_MESSAGE_FIELDS = struct.Struct(">xQQqH")


def message_fields(body: memoryview, *, is_own: bool = False) -> tuple[int, int, int, bytes, Bytes]:
    """Return the fields of a MESSAGE, three times as fast as `decode`. They do not refer to the body, except for a
    large payload of a body that `is_own`: such a body is never overwritten."""
    try:
        stream_id, message_id, event_time, key_length = _MESSAGE_FIELDS.unpack_from(body)
    except struct.error:
        raise RemoteProtocolError("truncated frame") from None
    payload_start = _MESSAGE_FIELDS.size + key_length
    if payload_start > len(body):
        raise RemoteProtocolError("truncated frame")
    key = bytes(body[_MESSAGE_FIELDS.size : payload_start]) if key_length else b""
    payload = body[payload_start:]
    is_kept = is_own and len(payload) >= LARGE_BYTES_MIN
    return stream_id, message_id, event_time, key, payload if is_kept else bytes(payload)


def encode(frame: Frame) -> bytes:
    """Encode a frame with its length word."""
    encoder = _ENCODERS.get(type(frame))
    if encoder is None:
        raise LocalProtocolError(f"{type(frame).__name__} is not a frame of version 3")
    try:
        body = encoder(frame)
    except struct.error as error:
        raise LocalProtocolError(f"a number in {type(frame).__name__} does not fit its field: {error}") from None
    return frame_codec.frame(body)


_MESSAGE_HEADER = np.dtype(
    [
        ("length", ">u4"),
        ("tag", "u1"),
        ("stream_id", ">u8"),
        ("message_id", ">u8"),
        ("event_time", ">i8"),
        ("key_length", ">u2"),
    ]
)
_LENGTH_BYTES = 4


def encode_messages(
    stream_id: int,
    message_ids: Integers | None,
    event_times: Integers,
    keys: pa.Array | None,
    payloads: pa.Array,
    frame_bytes_max: int = frame_codec.FRAME_BYTES_MAX,
) -> pa.Buffer:
    """Encode many MESSAGE frames of one stream by column operations, without a loop over records.

    `keys` and `payloads` are binary (or large binary) arrays without nulls; no `keys` means that every key is empty.
    """
    if message_ids is None:
        raise LocalProtocolError("version 3 has no ephemeral messages: each needs a message id")
    count = len(payloads)
    payload_lengths = _lengths(payloads, "payload")
    key_lengths = np.zeros(count, dtype=np.int64) if keys is None else _lengths(keys, "key")
    if not len(message_ids) == len(event_times) == len(key_lengths) == count:
        raise LocalProtocolError("columns of different lengths")
    if count == 0:
        return pa.py_buffer(b"")
    if int(key_lengths.max()) > frame_codec.SHORT_BYTES_MAX:
        raise LocalProtocolError(f"a key of {int(key_lengths.max())} bytes, the limit is {frame_codec.SHORT_BYTES_MAX}")
    body_lengths = _MESSAGE_HEADER.itemsize - _LENGTH_BYTES + key_lengths + payload_lengths
    if int(body_lengths.max()) > frame_bytes_max:
        raise LocalProtocolError(f"a frame of {int(body_lengths.max())} bytes, the limit is {frame_bytes_max}")
    if count == 1:
        return _single_frame(stream_id, int(message_ids[0]), int(event_times[0]), keys, payloads)
    if columns.is_ready():
        ids, times = np.ascontiguousarray(message_ids, np.uint64), np.ascontiguousarray(event_times, np.int64)
        return columns.encode(stream_id, ids, times, keys, payloads)
    size = int(payload_lengths[0])
    if keys is None and size > 0 and bool((payload_lengths == size).all()):
        return _even_frames(stream_id, message_ids, event_times, payloads, size)
    header = np.empty(count, dtype=_MESSAGE_HEADER)
    header["length"] = body_lengths
    header["tag"] = MESSAGE_TAG
    header["stream_id"] = stream_id
    header["message_id"] = message_ids
    header["event_time"] = event_times
    header["key_length"] = key_lengths
    size_bytes = int(body_lengths.sum()) + count * _LENGTH_BYTES
    edges = np.arange(count + 1, dtype=np.int64) * header.itemsize
    kind = pa.binary() if size_bytes <= columns.BYTES_MAX else pa.large_binary()
    offsets = edges.astype(np.int32) if kind == pa.binary() else edges
    fixed = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), pa.py_buffer(header)])
    # Joining the parts of each record into one data buffer gives the bytes on the wire.
    parts = [fixed] + ([] if keys is None else [keys.cast(kind)]) + [payloads.cast(kind)]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", kind)).buffers()[2].slice(0, size_bytes)


def _single_frame(
    stream_id: int, message_id: int, event_time: int, keys: pa.Array | None, payloads: pa.Array
) -> pa.Buffer:
    """Encode one frame, which may be large, such as a block of records: its payload is copied once."""
    key = b"" if keys is None else bytes(_data_of(keys))
    payload = memoryview(_data_of(payloads)).cast("B")
    frame = pa.allocate_buffer(_MESSAGE_HEADER.itemsize + len(key) + len(payload))
    room = memoryview(frame).cast("B")
    length = len(room) - _LENGTH_BYTES
    fields = (length, MESSAGE_TAG, stream_id, message_id, event_time, len(key))
    start = _MESSAGE_HEADER.itemsize
    room[:start] = np.array(fields, _MESSAGE_HEADER).tobytes()
    room[start : start + len(key)] = key
    room[start + len(key) :] = payload
    return frame


def _even_frames(
    stream_id: int, message_ids: Integers, event_times: Integers, payloads: pa.Array, size: int
) -> pa.Buffer:
    """Encode frames without keys and with payloads of equal length: repeats one frame, then sets the other fields as
    columns."""
    kind = np.dtype([*_MESSAGE_HEADER.descr, ("payload", f"V{size}")])
    template = np.zeros((), kind)
    template["length"], template["tag"], template["stream_id"] = kind.itemsize - _LENGTH_BYTES, MESSAGE_TAG, stream_id
    frames = np.frombuffer(bytearray(template.tobytes()) * len(payloads), kind)
    frames["message_id"] = message_ids
    frames["event_time"] = event_times
    frames["payload"] = np.frombuffer(_data_of(payloads), f"V{size}", len(payloads))
    return pa.py_buffer(frames)


def _data_of(array: pa.Array) -> pa.Buffer:
    """Return the concatenated bytes of the rows."""
    _, offsets, data = array.buffers()
    if data is None:
        return pa.py_buffer(b"")
    is_large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    edges = np.frombuffer(offsets, np.int64 if is_large else np.int32)
    return data[int(edges[array.offset]) : int(edges[array.offset + len(array)])]


def _lengths(array: pa.Array, noun: str) -> npt.NDArray[np.int64]:
    if array.null_count:
        raise LocalProtocolError(f"a {noun} that is null")
    return np.asarray(pc.binary_length(array)).astype(np.int64, copy=False)
