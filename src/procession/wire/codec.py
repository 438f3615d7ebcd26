"""Framing and primitive fields: where one frame ends, and how its numbers and short strings are read and written.

The one rule: a byte that is not there is the peer's error, never an IndexError; a value that does not fit is ours.
Before it stands the socket; after it `v3` and `twopc`, which know the fields of each frame.
"""

from __future__ import annotations

import struct

from procession.errors import LocalProtocolError, RemoteProtocolError

FRAME_BYTES_MAX = 16 * 1024 * 1024
SHORT_BYTES_MAX = 2**16 - 1

_LENGTH = struct.Struct(">I")
_U8 = struct.Struct(">B")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_I64 = struct.Struct(">q")


class Framer:
    """Cuts a stream of bytes into frame bodies. Holds one unfinished frame: at most `frame_bytes_max` and a read."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._rest = bytearray()
        self._needed = _LENGTH.size
        self._broken: str | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies (tag and fields, without the length word) that `data` completes.

        A bad length word is raised only when the frames before it are handed out: at the next call, `feed(b"")` too.
        """
        if self._broken is not None:
            raise RemoteProtocolError(self._broken)
        if self._rest:
            # Gathered in place until a whole frame is there: a big frame in small reads is not copied at each read.
            self._rest += data
            if len(self._rest) < self._needed:
                return []
            data = bytes(self._rest)
            self._rest.clear()
        bodies: list[bytes] = []
        start, end, limit = 0, len(data), self.frame_bytes_max
        unpack_length = _LENGTH.unpack_from
        self._needed = _LENGTH.size
        while start + 4 <= end:
            (length,) = unpack_length(data, start)
            if not 0 < length <= limit:
                self._broken = f"frame of {length} bytes, the limit is {limit}" if length else "empty frame"
                if bodies:
                    return bodies
                raise RemoteProtocolError(self._broken)
            stop = start + 4 + length
            if stop > end:
                self._needed = 4 + length
                break
            bodies.append(data[start + 4 : stop])
            start = stop
        if start < end:
            self._rest += data[start:]
        return bodies

    @property
    def is_broken(self) -> bool:
        """A bad length word was met: the next `feed` raises."""
        return self._broken is not None


class Reader:
    """Reads the fields of one body in order."""

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
        value = self.u8()
        if value > 1:
            raise RemoteProtocolError(f"a boolean of value {value}")
        return value == 1

    def bytes_of(self, length: int) -> bytes:
        start = self._position
        end = start + length
        if end > len(self._body):
            raise RemoteProtocolError("truncated frame")
        self._position = end
        return self._body[start:end]

    def short_bytes(self) -> bytes:
        return self.bytes_of(self.u16())

    def short_text(self) -> str:
        return text(self.short_bytes())

    def count(self, item_bytes_min: int) -> int:
        """A u32 count of items of at least this size: checked against what is there before anything is allocated."""
        count = self.u32()
        if count * item_bytes_min > self.remaining:
            raise RemoteProtocolError("truncated frame")
        return count

    def rest(self) -> bytes:
        return self.bytes_of(self.remaining)

    @property
    def remaining(self) -> int:
        return len(self._body) - self._position

    def finish(self) -> None:
        """Nothing may be left over: bytes that nobody reads are a frame that we do not understand."""
        if self._position != len(self._body):
            raise RemoteProtocolError(f"{self.remaining} bytes too many in frame")


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
    """The body with its length word."""
    return _pack(_LENGTH, len(body)) + body
