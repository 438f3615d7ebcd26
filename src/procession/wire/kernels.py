"""The compiled passes over bytes: MESSAGE frames of version 3 to columns, and columns to frames.

Invariant: the passes never read or write outside of their buffers. `scan` stops at the first bytes that it cannot
decode, and returns the reason. Importing this module imports numba, which takes half a second and about 60 MB, so only
`columns.make_ready` imports it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from procession.compiled_kernels import compiled

END, LENGTH, OTHER, ENOUGH, TRUNCATED = range(5)
"""Why a scan stopped: see `columns.PassEnd`."""

FIELDS_BYTES = 27
"""Size of the tag, stream id, message id, event time and key length."""

FRAME_BYTES_MIN = 4 + FIELDS_BYTES

_MESSAGE_TAG = 5


def _generate_big_endian(_: Any, data: Any, position: Any) -> Any:
    """Load eight bytes as one unaligned load, which is ten times as fast as byte by byte."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        where = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(64).as_pointer())
        return builder.bswap(builder.load(where, align=1))

    return types.uint64(data, types.int64), generate


def _generate_copy(_: Any, target: Any, at: Any, source: Any, position: Any, count: Any) -> Any:
    """Copy with memcpy, which is much faster than a loop, even for a short payload."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        into = context.make_array(signature.args[0])(context, builder, arguments[0])
        out_of = context.make_array(signature.args[2])(context, builder, arguments[2])
        begin, end = builder.gep(into.data, [arguments[1]]), builder.gep(out_of.data, [arguments[3]])
        cgutils.raw_memcpy(  # type: ignore[no-untyped-call]
            builder, begin, end, arguments[4], 1
        )
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


def _generate_store(_: Any, data: Any, position: Any, value: Any) -> Any:
    """Store eight bytes in big-endian order."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        where = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(64).as_pointer())
        builder.store(builder.bswap(arguments[2]), where, align=1)
        return context.get_dummy_value()

    return types.void(data, types.int64, types.uint64), generate


_big_endian: Any = intrinsic(_generate_big_endian)
_store: Any = intrinsic(_generate_store)
_copy: Any = intrinsic(_generate_copy)


def _read_only(kind: Any) -> Any:
    """Return the type of an array that a kernel only reads. A writable array is accepted, too."""
    return types.Array(kind, 1, "C", readonly=True)


@compiled(
    types.UniTuple(types.int64, 2)(  # type: ignore[no-untyped-call]
        _read_only(types.uint8),
        types.int64,
        types.int64,
        types.int64,
        types.int64[::1],
        types.uint64[::1],
        types.uint64[::1],
        types.int64[::1],
        types.int32[::1],
        types.uint8[::1],
        types.int32[::1],
        types.uint8[::1],
    )
)
def scan(
    window: Any,
    position: int,
    frame_bytes_max: int,
    rows_max: int,
    filled: Any,
    stream_ids: Any,
    message_ids: Any,
    event_times: Any,
    key_offsets: Any,
    keys: Any,
    payload_offsets: Any,
    payloads: Any,
) -> tuple[int, int]:
    """Append the messages from `position` on to the columns. Return the position after them, and the reason for the
    stop.

    `filled` holds the number of rows, key bytes and payload bytes that are already in the columns. The columns must
    have room for everything in the window.
    """
    end = len(window)
    row, key_end, payload_end = filled[0], filled[1], filled[2]
    why = END
    while position + 4 <= end:
        length = (
            (np.int64(window[position]) << 24)
            | (np.int64(window[position + 1]) << 16)
            | (np.int64(window[position + 2]) << 8)
            | np.int64(window[position + 3])
        )
        if length == 0 or length > frame_bytes_max:
            why = LENGTH
            break
        if length > end - position - 4:
            break
        if window[position + 4] != _MESSAGE_TAG:
            why = OTHER
            break
        if row == rows_max:
            why = ENOUGH
            break
        if length < FIELDS_BYTES:
            why = TRUNCATED
            break
        key_length = (np.int64(window[position + 29]) << 8) | np.int64(window[position + 30])
        payload_length = length - FIELDS_BYTES - key_length
        if payload_length < 0:
            why = TRUNCATED
            break
        stream_ids[row] = _big_endian(window, position + 5)
        message_ids[row] = _big_endian(window, position + 13)
        event_times[row] = np.int64(_big_endian(window, position + 21))
        _copy(keys, key_end, window, position + FRAME_BYTES_MIN, key_length)
        _copy(payloads, payload_end, window, position + FRAME_BYTES_MIN + key_length, payload_length)
        key_end += key_length
        payload_end += payload_length
        row += 1
        key_offsets[row] = key_end
        payload_offsets[row] = payload_end
        position += 4 + length  # type: ignore[assignment]  # numba has one integer type
    filled[0], filled[1], filled[2] = row, key_end, payload_end
    return position, why


@compiled(
    types.void(
        types.uint64,
        _read_only(types.uint64),
        _read_only(types.int64),
        _read_only(types.int64),
        _read_only(types.uint8),
        _read_only(types.int64),
        _read_only(types.uint8),
        types.uint8[::1],
    )
)
def write_frames(
    stream_id: int,
    message_ids: Any,
    event_times: Any,
    key_offsets: Any,
    keys: Any,
    payload_offsets: Any,
    payloads: Any,
    frames: Any,
) -> None:
    """Write the frames of these columns back to back. The buffer has exactly their size."""
    position = 0
    for row in range(len(message_ids)):
        key, payload = key_offsets[row], payload_offsets[row]
        key_length, payload_length = key_offsets[row + 1] - key, payload_offsets[row + 1] - payload
        length = FIELDS_BYTES + key_length + payload_length
        frames[position] = (length >> 24) & 0xFF
        frames[position + 1] = (length >> 16) & 0xFF
        frames[position + 2] = (length >> 8) & 0xFF
        frames[position + 3] = length & 0xFF
        frames[position + 4] = _MESSAGE_TAG
        _store(frames, position + 5, stream_id)
        _store(frames, position + 13, message_ids[row])
        _store(frames, position + 21, np.uint64(event_times[row]))
        frames[position + 29] = (key_length >> 8) & 0xFF
        frames[position + 30] = key_length & 0xFF
        _copy(frames, position + FRAME_BYTES_MIN, keys, key, key_length)
        _copy(frames, position + FRAME_BYTES_MIN + key_length, payloads, payload, payload_length)
        position += 4 + length
