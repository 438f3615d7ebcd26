"""Framing and primitive fields: splits bytes into frames, and reads and writes numbers and short strings.

Invariant: a missing byte is the peer's error, never an IndexError. A value that does not fit its field is an error of
this side. `v3` and `two_phase_commit` define the fields of each frame.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from procession.errors import LocalProtocolError, RemoteProtocolError

FRAME_BYTES_MAX = 16 * 1024 * 1024
SHORT_BYTES_MAX = 2**16 - 1

_LENGTH = struct.Struct(">I")
_U8 = struct.Struct(">B")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_I64 = struct.Struct(">q")


Bytes = bytes | bytearray | memoryview


class Framer:
    """Splits a byte stream into frames. Between two reads it holds one incomplete frame, at most `frame_bytes_max`.

    It copies the incomplete frame, because its input may be a view of a buffer that is reused after `keep` or `drop`.
    There are up to two windows: a frame that an earlier read began, and the new bytes after it. They are not
    concatenated, so no other byte is copied.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.position = 0
        """Start of the next frame in the current window."""
        self._length = 0
        """Length of the frame that `peek` found."""
        self._held = bytearray()
        self._windows: list[memoryview] = []

    def feed(self, data: Bytes) -> Iterator[bytes]:
        """Yield the bodies that `data` completes. Raises RemoteProtocolError at an invalid length word."""
        self.begin(data)
        while self.peek() is not None:
            yield self.take()
        self.keep()

    def begin(self, data: Bytes) -> None:
        """Add the next bytes, for `peek` and `take`. Call `keep` or `drop` afterwards."""
        view = memoryview(data).cast("B")
        if self._held:
            # Append in place, first the length word and then the body. Then a big frame in small reads is not copied at
            # each read.
            for _ in range(2):
                missing = self._missing()
                self._held += view[:missing]
                view = view[missing:]
            self._windows = [memoryview(self._held)]
        self._windows.append(view)
        self.position = 0

    def peek(self) -> int | None:
        """Return the tag of the next frame, or None if it is incomplete. An invalid length is the peer's error."""
        while self._windows and self.position == len(self._windows[0]):
            del self._windows[0]
            self.position = 0
        if not self._windows:
            return None
        window, position = self._windows[0], self.position
        if position + 4 > len(window):
            return None
        (length,) = _LENGTH.unpack_from(window, position)
        if not 0 < length <= self.frame_bytes_max:
            limit = f"frame of {length} bytes, the limit is {self.frame_bytes_max}"
            raise RemoteProtocolError(limit if length else "empty frame")
        if position + 4 + length > len(window):
            return None
        self._length = length
        return window[position + 4]

    def take(self) -> bytes:
        """Return the body (tag and fields, without the length word) of the frame that `peek` found."""
        return bytes(self.take_view())

    def take_view(self) -> memoryview:
        """Like `take`, but without a copy. Do not use the result after `keep` or `drop`."""
        begin = self.position + 4
        self.position = end = begin + self._length
        return self._windows[0][begin:end]

    @property
    def is_own(self) -> bool:
        """Whether the frame that `peek` found is in the Framer's own memory, which is never overwritten."""
        return self._windows[0].obj is self._held

    @property
    def window(self) -> memoryview:
        """The window with the frame that `peek` found, at `position`."""
        return self._windows[0]

    @property
    def size_bytes(self) -> int:
        """The number of bytes that are available."""
        return sum(map(len, self._windows)) - self.position

    def keep(self) -> None:
        """Release the input, except an incomplete frame."""
        if not self._windows:
            self._held = bytearray()
        elif self.position or self._windows[0].obj is not self._held:
            self._held = bytearray(self._windows[0][self.position :])
        self._windows.clear()

    def drop(self) -> None:
        """Release everything."""
        self._windows.clear()
        self._held = bytearray()
        self.position = 0

    def _missing(self) -> int:
        """Return the number of bytes that the held frame lacks: of its length word, or of a body within the limit."""
        if len(self._held) < 4:
            return 4 - len(self._held)
        (length,) = _LENGTH.unpack_from(self._held)
        return 4 + length - len(self._held) if length <= self.frame_bytes_max else 0


class Reader:
    """Reads the fields of a frame body in order."""

    __slots__ = ("_body", "_position")

    def __init__(self, body: bytes, position: int = 0) -> None:
        self._body = body
        self._position = position

    def _integer(self, shape: struct.Struct) -> int:
        try:
            value: int = shape.unpack_from(self._body, self._position)[0]
        except struct.error:
            raise RemoteProtocolError("truncated frame") from None
        self._position += shape.size
        return value

    def fields(self, shape: struct.Struct) -> tuple[Any, ...]:
        """Read several numbers at once."""
        try:
            values = shape.unpack_from(self._body, self._position)
        except struct.error:
            raise RemoteProtocolError("truncated frame") from None
        self._position += shape.size
        return values

    def u8(self) -> int:
        return self._integer(_U8)

    def u16(self) -> int:
        return self._integer(_U16)

    def u32(self) -> int:
        return self._integer(_U32)

    def u64(self) -> int:
        return self._integer(_U64)

    def i64(self) -> int:
        return self._integer(_I64)

    def boolean(self) -> bool:
        return boolean(self.u8())

    def bytes_of(self, length: int) -> bytes:
        start = self._position
        end = start + length
        if end > len(self._body):
            raise RemoteProtocolError("truncated frame")
        self._position = end
        return self._body[start:end]

    def short_bytes(self) -> bytes:
        return self.bytes_of(self._integer(_U16))

    def short_text(self) -> str:
        return text(self.bytes_of(self._integer(_U16)))

    def count(self, item_bytes_min: int) -> int:
        """Read a u32 count of items of at least this size. It is checked before anything is allocated."""
        count = self.u32()
        if count * item_bytes_min > self.remaining:
            raise RemoteProtocolError("truncated frame")
        return count

    def remainder(self) -> bytes:
        return self.bytes_of(self.remaining)

    @property
    def remaining(self) -> int:
        return len(self._body) - self._position

    def finish(self) -> None:
        """Raise RemoteProtocolError if bytes are left over."""
        if self._position != len(self._body):
            raise RemoteProtocolError(f"{self.remaining} bytes too many in frame")


def boolean(value: int) -> bool:
    if value > 1:
        raise RemoteProtocolError(f"a boolean of value {value}")
    return value == 1


def text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("a string that is not UTF-8") from None


def _pack(shape: struct.Struct, value: int) -> bytes:
    try:
        return shape.pack(value)
    except struct.error:
        raise LocalProtocolError(f"{value!r} does not fit a field of {shape.size} bytes") from None


def u8(value: int) -> bytes:
    return _pack(_U8, value)


def u32(value: int) -> bytes:
    return _pack(_U32, value)


def u64(value: int) -> bytes:
    return _pack(_U64, value)


def i64(value: int) -> bytes:
    return _pack(_I64, value)


def short_bytes(value: bytes) -> bytes:
    if len(value) > SHORT_BYTES_MAX:
        raise LocalProtocolError(f"a short string of {len(value)} bytes, the limit is {SHORT_BYTES_MAX}")
    return _U16.pack(len(value)) + value


def short_text(value: str) -> bytes:
    return short_bytes(value.encode())


def frame(body: bytes) -> bytes:
    """Return the body with its length word."""
    return _pack(_LENGTH, len(body)) + body
