"""Splits a stream of bytes into records (lines), and checks quickly whether two streams are equal.

Invariant: a record is a line, and a line is complete only with its newline. Streams are read in chunks, so memory is
bounded. Pure. A stream can be read several times from its beginning; used by `verify/verifier`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

RECORD_BYTES_MAX = 16 * 1024 * 1024
SHOWN_BYTES_MAX = 200

# Each call returns a byte stream from its beginning.
Chunks = Callable[[], Iterator[bytes]]
Numbers = npt.NDArray[np.int64]


class CommonLines(NamedTuple):
    """The equal beginning of two streams: its number of lines, and whether both streams or only the second one ended
    there."""

    lines: int
    is_equal: bool
    is_prefix: bool


def terminated(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Add a missing newline at the end, because an input's last line is a record even without a newline."""
    last = b"\n"
    for chunk in filter(None, chunks):
        yield chunk
        last = chunk[-1:]
    if last != b"\n":
        yield b"\n"


def sameness(expected: Iterator[bytes], actual: Iterator[bytes]) -> CommonLines:
    """Compare two streams byte by byte, until they differ or one of them ends."""
    lines = 0
    expected_bytes, actual_bytes = memoryview(b""), memoryview(b"")
    last = b""
    while True:
        expected_bytes = expected_bytes or memoryview(next(filter(None, expected), b""))
        actual_bytes = actual_bytes or memoryview(next(filter(None, actual), b""))
        size = min(len(expected_bytes), len(actual_bytes))
        if expected_bytes[:size] != actual_bytes[:size]:
            return CommonLines(lines, is_equal=False, is_prefix=False)
        if size == 0:
            is_prefix = not actual_bytes and last == b"\n"
            return CommonLines(lines, is_equal=is_prefix and not expected_bytes, is_prefix=is_prefix)
        same = bytes(expected_bytes[:size])
        lines += same.count(b"\n")
        last = same[-1:]
        expected_bytes, actual_bytes = expected_bytes[size:], actual_bytes[size:]


def count_lines(chunks: Iterable[bytes], end: int | None = None) -> int:
    """Count the newlines, in total or before a position."""
    count = position = 0
    for chunk in chunks:
        if end is not None and position + len(chunk) >= end:
            return count + chunk[: end - position].count(b"\n")
        count += chunk.count(b"\n")
        position += len(chunk)
    return count


def split_lines(chunks: Iterable[bytes]) -> Iterator[tuple[list[bytes], bool]]:
    """Yield lists of lines without newlines, and whether they are complete: the last one may have no newline."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield lines, True
        if len(rest) > RECORD_BYTES_MAX:  # longer than any record
            yield [rest], False
            rest = b""
    if rest:
        yield [rest], False


def hashes(lines: list[bytes]) -> Numbers:
    """Return a 64-bit hash per line. (The chance of any collision among 100 M lines is 1 in 3,700.)"""
    return np.fromiter(map(hash, lines), np.int64, len(lines))


def shown(chunks: Iterable[bytes], number: int) -> str:
    """Return the line with this number in printable form."""
    passed = 0
    for lines, _ in split_lines(chunks):
        if number < passed + len(lines):
            line = lines[number - passed]
            text = repr(line[:SHOWN_BYTES_MAX])[1:]
            return text if len(line) <= SHOWN_BYTES_MAX else f"{text}… ({len(line)} bytes)"
        passed += len(lines)
    return "(gone)"
