"""Framing: splits the bytes of a file, pipe or socket into records.

Invariant: a record is identified by the position of its first byte, independent of how the bytes were read. Many
records are split at once, by column operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from procession.errors import UsageError
from procession.sdk.source_records import PAYLOAD_BYTES_MAX

RECORD_BYTES_MAX = PAYLOAD_BYTES_MAX
LENGTH_BYTES = 4
NEWLINE = 10
SHORT_BYTES = 48
"""Average line length below which newlines are removed byte by byte; above it, `bytes.replace` is faster."""

Positions = npt.NDArray[np.int64]
Peek = Callable[[int, int], bytes]
"""Returns a number of bytes from a position on; fewer at the end."""


@dataclass(frozen=True, slots=True)
class CutRecords:
    """The complete records in some bytes."""

    starts: Positions
    """Start of each record."""
    payloads: pa.Array
    end: int
    """End of the last record."""

    def __len__(self) -> int:
        return len(self.payloads)


class RecordFraming(Protocol):
    name: str
    overhead_bytes: int
    """Bytes per record besides its payload."""

    def cut(self, data: bytes, *, is_end: bool) -> CutRecords:
        """Return the complete records at the beginning of `data`. `is_end`: nothing follows it."""

    def begins_at(self, position: int, peek: Peek) -> bool:
        """Return whether a complete record can begin at this position."""


class LineFraming:
    """A record is a line without its newline. A last line without a newline is a record too."""

    name = "lines"
    overhead_bytes = 1

    def cut(self, data: bytes, *, is_end: bool) -> CutRecords:
        newlines = np.flatnonzero(np.frombuffer(data, np.uint8) == NEWLINE)
        if is_end and data and data[-1] != NEWLINE:
            newlines = np.append(newlines, len(data))
        if not len(newlines):
            return _nothing()
        count, last = len(newlines), int(newlines[-1])
        # The bytes without newlines, and the end of each line in them.
        text = data[:last]
        text = text.translate(None, b"\n") if last < count * SHORT_BYTES else text.replace(b"\n", b"")
        offsets = np.concatenate(([0], newlines - np.arange(count))).astype(np.int32)
        payloads = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)])
        return CutRecords(np.concatenate(([0], newlines[:-1] + 1)), payloads, min(last + 1, len(data)))

    def begins_at(self, position: int, peek: Peek) -> bool:
        before = peek(position - 1, 2) if position else b"\n" + peek(0, 1)
        return len(before) == 2 and before[0] == NEWLINE


class FixedFraming:
    """A record has a fixed number of bytes."""

    def __init__(self, size: int) -> None:
        self.name = f"fixed:{size}"
        self.overhead_bytes = 0
        self._size = size

    def cut(self, data: bytes, *, is_end: bool) -> CutRecords:
        count = len(data) // self._size
        edges = np.arange(count + 1) * self._size
        offsets = pa.py_buffer(edges.astype(np.int32))
        payloads = pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(data)])
        return CutRecords(edges[:-1], payloads, count * self._size)

    def begins_at(self, position: int, peek: Peek) -> bool:
        return position % self._size == 0 and len(peek(position, self._size)) == self._size


class LengthFraming:
    """A record is a big-endian length of four bytes, then its bytes."""

    name = "framed"
    overhead_bytes = LENGTH_BYTES

    def cut(self, data: bytes, *, is_end: bool) -> CutRecords:
        from procession.connectors.frame_scan import frame_starts  # imported late, because numba takes half a second

        edges = frame_starts(np.frombuffer(data, np.uint8), RECORD_BYTES_MAX)
        count, end = len(edges) - 1, int(edges[-1])
        if not count:
            return _nothing()
        # One column of alternating length words and payloads; every second value is a payload.
        offsets = np.empty(2 * count + 1, np.int32)
        offsets[0::2] = edges
        offsets[1::2] = edges[:-1] + LENGTH_BYTES
        both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        return CutRecords(edges[:-1], both.take(pa.array(np.arange(1, 2 * count, 2))), end)

    def begins_at(self, position: int, peek: Peek) -> bool:
        head = peek(position, LENGTH_BYTES)
        length = int.from_bytes(head)
        if len(head) < LENGTH_BYTES or length > RECORD_BYTES_MAX:
            return False
        return not length or bool(peek(position + LENGTH_BYTES + length - 1, 1))


def parse_framing(text: str) -> RecordFraming:
    """Parse `lines`, `fixed:N` or `framed`."""
    kind, _, number = text.partition(":")
    if text == "lines":
        return LineFraming()
    if text == "framed":
        return LengthFraming()
    if kind == "fixed" and number.isascii() and number.isdigit() and 0 < int(number) <= RECORD_BYTES_MAX:
        return FixedFraming(int(number))
    if kind == "fixed":
        raise UsageError(
            f"{text!r} has no valid record size.",
            next_step=f"Use fixed:N with N from 1 to {RECORD_BYTES_MAX}, such as fixed:64.",
        )
    raise UsageError(f"{text!r} is not a framing.", next_step="Choose one of lines, fixed:N, framed.")


def _nothing() -> CutRecords:
    return CutRecords(np.empty(0, np.int64), pa.array([], pa.binary()), 0)
