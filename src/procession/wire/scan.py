"""The compiled pass over received bytes: many MESSAGE frames of version 3 to columns.

The one rule: it reads no byte that is not there and writes no byte that there is no room for; what it does not
understand it leaves where it is, and says why it stopped. Importing this module imports numba, which takes half a
second and some 60 MB: only `columns` does, when it is told to. numba itself caches what it compiled, beside the module.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

END, LENGTH, OTHER, ENOUGH, TRUNCATED = range(5)
"""Why a scan stopped: see `columns.Stop`."""

FIELDS_BYTES = 27
"""Tag, stream id, message id, event time and the key's length."""

FRAME_BYTES_MIN = 4 + FIELDS_BYTES

_MESSAGE_TAG = 5


def _generate_big_endian(_: Any, data: Any, position: Any) -> Any:
    """Eight bytes at a position as one unaligned load; put together byte by byte they cost ten times as much."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        where = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(64).as_pointer())
        return builder.bswap(builder.load(where, align=1))

    return types.uint64(data, types.int64), generate


def _generate_copy(_: Any, target: Any, at: Any, source: Any, position: Any, count: Any) -> Any:
    """memcpy: a loop over the bytes of a short payload is slower by far."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        into = context.make_array(signature.args[0])(context, builder, arguments[0])
        out_of = context.make_array(signature.args[2])(context, builder, arguments[2])
        begin, end = builder.gep(into.data, [arguments[1]]), builder.gep(out_of.data, [arguments[3]])
        cgutils.raw_memcpy(  # type: ignore[no-untyped-call]
            builder, begin, end, arguments[4], 1
        )
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


_big_endian: Any = intrinsic(_generate_big_endian)
_copy: Any = intrinsic(_generate_copy)

_READ_ONLY = types.Array(types.uint8, 1, "C", readonly=True)
_SIGNATURE = types.UniTuple(types.int64, 2)(  # type: ignore[no-untyped-call]
    _READ_ONLY,
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


@numba.njit(_SIGNATURE, nogil=True, cache=True)
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
    """Append the messages from `position` on to the columns. Gives where it stopped, and why.

    `filled` says how many rows, key bytes and payload bytes the columns have already. They must have room for all that
    the window can hold.
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
        position += 4 + length  # type: ignore[assignment]  # numba's integers are all alike
    filled[0], filled[1], filled[2] = row, key_end, payload_end
    return position, why
