"""Framing: where one record of a byte medium ends and the next begins.

The one rule: a record is known by the position of its first byte, whatever the reads that brought it; many are cut
out at once, by column operations. Before it on the walk: a file, a pipe or a socket. After it: sdk/source_client, as a
batch.
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
"""Newlines of lines that are shorter, on average, are left out byte by byte; of longer ones from newline to newline."""

Positions = npt.NDArray[np.int64]
Look = Callable[[int, int], bytes]
"""So many bytes of the medium from a position on; fewer where it ends."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The whole records of some bytes."""

    starts: Positions
    """Where each record begins."""
    payloads: pa.Array
    end: int
    """Where the last one ends, and the next begins."""

    def __len__(self) -> int:
        return len(self.payloads)


class Framing(Protocol):
    name: str
    overhead_bytes: int
    """What a record takes beside its payload."""

    def cut(self, data: bytes, *, is_end: bool) -> Cut:
        """The whole records at the beginning of `data`; `is_end` if nothing follows it."""

    def begins_at(self, position: int, look: Look) -> bool:
        """Whether a record could begin there, and does not end before its end."""


class Lines:
    """A line without its newline. A last line without one is a record too."""

    name = "lines"
    overhead_bytes = 1

    def cut(self, data: bytes, *, is_end: bool) -> Cut:
        newlines = np.flatnonzero(np.frombuffer(data, np.uint8) == NEWLINE)
        if is_end and data and data[-1] != NEWLINE:
            newlines = np.append(newlines, len(data))
        if not len(newlines):
            return _nothing()
        count, last = len(newlines), int(newlines[-1])
        # The bytes without newlines, and where each line ends among them.
        text = data[:last]
        text = text.translate(None, b"\n") if last < count * SHORT_BYTES else text.replace(b"\n", b"")
        offsets = np.concatenate(([0], newlines - np.arange(count))).astype(np.int32)
        payloads = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)])
        return Cut(np.concatenate(([0], newlines[:-1] + 1)), payloads, min(last + 1, len(data)))

    def begins_at(self, position: int, look: Look) -> bool:
        before = look(position - 1, 2) if position else b"\n" + look(0, 1)
        return len(before) == 2 and before[0] == NEWLINE


class Fixed:
    """So many bytes each."""

    def __init__(self, size: int) -> None:
        self.name = f"fixed:{size}"
        self.overhead_bytes = 0
        self._size = size

    def cut(self, data: bytes, *, is_end: bool) -> Cut:
        count = len(data) // self._size
        edges = np.arange(count + 1) * self._size
        offsets = pa.py_buffer(edges.astype(np.int32))
        payloads = pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(data)])
        return Cut(edges[:-1], payloads, count * self._size)

    def begins_at(self, position: int, look: Look) -> bool:
        return position % self._size == 0 and len(look(position, self._size)) == self._size


class Framed:
    """A length of four bytes, big-endian, and so many bytes."""

    name = "framed"
    overhead_bytes = LENGTH_BYTES

    def cut(self, data: bytes, *, is_end: bool) -> Cut:
        from procession.connectors.frame_scan import frame_starts  # numba takes half a second, and not all need it

        edges = frame_starts(np.frombuffer(data, np.uint8), RECORD_BYTES_MAX)
        count, end = len(edges) - 1, int(edges[-1])
        if not count:
            return _nothing()
        # Length words and payloads in turn, as one column; every second value is a payload.
        offsets = np.empty(2 * count + 1, np.int32)
        offsets[0::2] = edges
        offsets[1::2] = edges[:-1] + LENGTH_BYTES
        both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        return Cut(edges[:-1], both.take(pa.array(np.arange(1, 2 * count, 2))), end)

    def begins_at(self, position: int, look: Look) -> bool:
        head = look(position, LENGTH_BYTES)
        length = int.from_bytes(head)
        if len(head) < LENGTH_BYTES or length > RECORD_BYTES_MAX:
            return False
        return not length or bool(look(position + LENGTH_BYTES + length - 1, 1))


def parse_framing(text: str) -> Framing:
    """`lines`, `fixed:N` or `framed`."""
    kind, _, number = text.partition(":")
    if text == "lines":
        return Lines()
    if text == "framed":
        return Framed()
    if kind == "fixed" and number.isascii() and number.isdigit() and 0 < int(number) <= RECORD_BYTES_MAX:
        return Fixed(int(number))
    if kind == "fixed":
        raise UsageError(
            f"{text!r} says no size of a record.",
            next_step=f"Write fixed:N with N from 1 to {RECORD_BYTES_MAX}, such as fixed:64.",
        )
    raise UsageError(f"{text!r} is no framing.", next_step="Choose one of lines, fixed:N, framed.")


def _nothing() -> Cut:
    return Cut(np.empty(0, np.int64), pa.array([], pa.binary()), 0)
