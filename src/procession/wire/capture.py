"""A capture: the recorded bytes of a connection, split into frames, each with its position.

Invariant: all readable frames are returned first; then one error names the byte at which the capture is invalid. A
capture may hold one direction or both: in hex, `>` and `<` name the sender of the following bytes, and each direction
is a separate byte stream. The input is a file or pasted hex; `frame_notation` formats the frames for people.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from procession.errors import LocalProtocolError, RemoteProtocolError
from procession.wire import draft, frame_notation, v3
from procession.wire.frame_codec import FRAME_BYTES_MAX, Framer
from procession.wire.frame_notation import AnyFrame

LENGTH_BYTES = 4
_TEXT = re.compile(rb"[0-9A-Fa-f<>\s]*")
_WRONG = re.compile(r"[^0-9A-Fa-f<>\s]")
_MARK = re.compile(r"([<>])")


class FrameCodec(NamedTuple):
    decode: Callable[[bytes], AnyFrame]
    """Decodes a frame body, without its length word."""
    encode: Callable[[Any], bytes]


CODECS: dict[str, FrameCodec] = {
    "v3": FrameCodec(v3.decode, v3.encode),
    "draft": FrameCodec(draft.decode, draft.encode),
}
"""The versions of the protocol, by their name in documents and options."""


@dataclass(frozen=True, slots=True)
class Captured:
    """One frame of a capture."""

    position: int
    """Offset of its length word in the bytes that this side sent."""
    direction: str
    """`>`, `<`, or empty if the capture has no directions."""
    version: str
    frame: AnyFrame
    data: bytes

    def as_document(self) -> frame_notation.Document:
        document: frame_notation.Document = {"position": self.position}
        if self.direction:
            document["direction"] = self.direction
        document |= {"protocol": self.version, **frame_notation.as_document(self.frame)}
        if CODECS[self.version].encode(self.frame) != self.data:
            # Some frames have two encodings, so this keeps the bytes that the peer really sent.
            document["data_hex"] = self.data.hex()
        return document

    def as_line(self) -> str:
        gutter = f"{self.direction} " if self.direction else ""
        return f"{self.position:>8}  {gutter}{frame_notation.as_line(self.frame)}"


class Capture:
    """Decodes the bytes of a capture chunk by chunk. Holds one incomplete frame per direction."""

    def __init__(self, version: str | None = None, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._version = version
        self._frame_bytes_max = frame_bytes_max
        self._sides: dict[str, _Side] = {}

    def feed(self, data: bytes, direction: str = "") -> Iterator[Captured]:
        """Yield the frames that `data` completes. Raises RemoteProtocolError at bytes that are not a frame."""
        side = self._sides.setdefault(direction, _Side(Framer(self._frame_bytes_max)))
        side.received += len(data)
        try:
            for body in side.framer.feed(data):
                version = self._version or version_of(body)
                frame = CODECS[version].decode(body)
                whole = len(body).to_bytes(LENGTH_BYTES) + body
                yield Captured(side.position, direction, version, frame, whole)
                side.position += len(whole)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"at byte {side.position}{_of_side(direction)}: {error.sentence}") from None

    def finish(self) -> None:
        """End the capture. Raises RemoteProtocolError if a frame is incomplete."""
        for direction, side in self._sides.items():
            if side.position != side.received:
                raise RemoteProtocolError(
                    f"the capture ends at byte {side.received}{_of_side(direction)}, inside the frame that begins"
                    f" at byte {side.position}"
                )


@dataclass(slots=True)
class _Side:
    framer: Framer
    position: int = 0
    received: int = 0


def _of_side(direction: str) -> str:
    return f" of the side {direction}" if direction else ""


def version_of(body: bytes) -> str:
    """Return the version of a frame. The draft's tags are letters, so no two versions share a tag."""
    return "draft" if body[0] in draft.TAGS else "v3"


def encoded(document: object) -> tuple[str, bytes]:
    """Return the direction and the bytes of the frame in a JSON object. Its `position` is ignored."""
    given = frame_notation.mapping(document, "a frame")
    direction, version = given.pop("direction", ""), given.pop("protocol", "v3")
    given.pop("position", None)
    as_sent = given.pop("data_hex", "")
    if direction not in ("", ">", "<"):
        raise LocalProtocolError("direction must be > or <")
    if not isinstance(version, str) or version not in CODECS:
        raise LocalProtocolError(f"there is no protocol {version!r}; there are {', '.join(CODECS)}")
    frame = frame_notation.from_document(given, version)
    codec = CODECS[version]
    try:
        data = bytes.fromhex(as_sent)
        # Use the recorded bytes only while they match the fields: a changed field takes precedence.
        if data and codec.decode(data[LENGTH_BYTES:]) == frame:
            return direction, data
    except (TypeError, ValueError, RemoteProtocolError):
        raise LocalProtocolError("data_hex must be a frame in hex") from None
    return direction, codec.encode(frame)


def is_hex(beginning: bytes) -> bool:
    """Whether a capture is in hex. Binary never matches: a frame begins with a zero byte or exceeds 150 MB."""
    return _TEXT.fullmatch(beginning) is not None


class HexReader:
    """Decodes hex chunk by chunk. Whitespace between digits is ignored."""

    def __init__(self) -> None:
        self._direction = ""
        self._half = ""
        self._read = 0

    def feed(self, text: str) -> Iterator[tuple[str, bytes]]:
        """Yield pairs of direction and bytes. Raises RemoteProtocolError at text that is not hex."""
        wrong = _WRONG.search(text)
        for part in _MARK.split(text[: wrong.start()] if wrong else text):
            if part in ("<", ">"):
                self._check_complete()
                self._direction = part
            else:
                digits = self._half + "".join(part.split())
                even = len(digits) // 2 * 2
                self._half = digits[even:]
                if even:
                    yield self._direction, bytes.fromhex(digits[:even])
        if wrong:
            where = self._read + wrong.start()
            raise RemoteProtocolError(f"{wrong.group()!r}, character {where} of the capture, is not a hex digit")
        self._read += len(text)

    def finish(self) -> None:
        self._check_complete()

    def _check_complete(self) -> None:
        if self._half:
            raise RemoteProtocolError(f"the capture has half a byte: one hex digit {self._half!r} without the other")
