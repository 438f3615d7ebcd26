"""Columns: decodes MESSAGE frames into arrays in one compiled pass over the bytes, and encodes arrays into frames.

Invariant: the compiled pass is an optimization with the same result. Before `make_ready` has run, and always for few
frames, `connection` decodes frame by frame into the same columns, and `v3` encodes with numpy and Arrow.
`frame_codec.Framer` holds the received bytes. A payload is copied once here, out of the receive buffer, which is then
reused.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from procession.wire.messages import Messages

COLUMNS_BYTES_MIN = 2048
"""Minimum number of bytes for a compiled pass. Below it, decoding frame by frame is faster."""

_FRAME_BYTES_MIN = 31
"""Size of a MESSAGE without key and payload."""

BYTES_MAX = 2**31 - 1
"""Maximum size of a binary column, by its 32-bit offsets. More bytes are decoded frame by frame."""


class PassEnd(enum.IntEnum):
    """Why a pass ended where it did."""

    END = 0  # no complete frame follows
    LENGTH = 1  # an invalid length word from the peer
    OTHER = 2  # a frame of another kind
    ENOUGH = 3  # the requested number of messages was reached, and another message follows
    TRUNCATED = 4  # a message too short for its fields


Item = TypeVar("Item", bound=np.generic)


class Kernels(NamedTuple):
    scan: Callable[..., tuple[int, int]]
    write_frames: Callable[..., None]


_kernels: Kernels | None = None


def make_ready() -> None:
    """Load the compiled passes from numba's cache, or compile them (takes seconds). May run in a thread."""
    global _kernels
    from procession.wire import kernels

    _kernels = Kernels(kernels.scan, kernels.write_frames)


def is_ready() -> bool:
    return _kernels is not None


class Columns:
    """Buffers for the messages of one receive of up to `size_bytes` bytes."""

    def __init__(self, size_bytes: int) -> None:
        # Sized for the worst case, because memory that is not written to costs nothing. Arrow's allocator reuses freed
        # memory. numpy's returns it to the system, and new pages cost more than the pass itself.
        rows = size_bytes // _FRAME_BYTES_MIN
        self._arena = pa.allocate_buffer(3 * 8 * rows + 2 * 4 * (rows + 1) + 2 * size_bytes)
        self._used = 0
        self._filled = np.zeros(3, np.int64)
        self._stream_ids = self._buffer(rows, np.uint64)
        self._message_ids = self._buffer(rows, np.uint64)
        self._event_times = self._buffer(rows, np.int64)
        self._key_offsets = self._buffer(rows + 1, np.int32)
        self._payload_offsets = self._buffer(rows + 1, np.int32)
        self._key_offsets[0] = self._payload_offsets[0] = 0
        self._keys = self._buffer(size_bytes, np.uint8)
        self._payloads = self._buffer(size_bytes, np.uint8)

    def _buffer(self, count: int, kind: type[Item]) -> npt.NDArray[Item]:
        room = np.frombuffer(self._arena, kind, count, self._used)
        self._used += room.nbytes
        return room

    def take(self, window: memoryview, position: int, frame_bytes_max: int, rows_max: int) -> tuple[int, PassEnd]:
        """Decode the messages from `position` on, up to `rows_max` rows. Return where and why it stopped."""
        assert _kernels is not None, "make_ready has run"
        position, why = _kernels.scan(
            np.frombuffer(window, np.uint8),
            position,
            frame_bytes_max,
            rows_max,
            self._filled,
            self._stream_ids,
            self._message_ids,
            self._event_times,
            self._key_offsets,
            self._keys,
            self._payload_offsets,
            self._payloads,
        )
        return position, PassEnd(why)

    def messages(self) -> Messages:
        """Return the decoded messages, without a copy."""
        rows, keys_end, payloads_end = self._filled.tolist()
        return Messages(
            self._stream_ids[:rows],
            self._message_ids[:rows],
            self._event_times[:rows],
            _binary(self._key_offsets[: rows + 1], self._keys[:keys_end]),
            _binary(self._payload_offsets[: rows + 1], self._payloads[:payloads_end]),
        )


def _binary(offsets: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def encode(
    stream_id: int,
    message_ids: npt.NDArray[np.uint64],
    event_times: npt.NDArray[np.int64],
    keys: pa.Array | None,
    payloads: pa.Array,
) -> pa.Buffer:
    """Encode these columns as frames. They must have equal lengths, no nulls, and be within the limits."""
    assert _kernels is not None, "make_ready has run"
    count = len(payloads)
    key_offsets, key_data = (np.zeros(count + 1, np.int64), _NO_BYTES) if keys is None else _parts(keys)
    payload_offsets, payload_data = _parts(payloads)
    lengths = key_offsets[-1] - key_offsets[0] + payload_offsets[-1] - payload_offsets[0]
    frames = pa.allocate_buffer(count * _FRAME_BYTES_MIN + int(lengths))
    room = np.frombuffer(frames, np.uint8)
    _kernels.write_frames(
        stream_id, message_ids, event_times, key_offsets, key_data, payload_offsets, payload_data, room
    )
    return frames


_NO_BYTES = np.frombuffer(b"", np.uint8)


def _parts(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    _, offsets, data = array.buffers()
    is_large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    kind = np.int64 if is_large else np.int32
    edges = np.frombuffer(offsets, kind, len(array) + 1, array.offset * np.dtype(kind).itemsize)
    return edges.astype(np.int64), _NO_BYTES if data is None else np.frombuffer(data, np.uint8)
