"""A capture: bytes that went over a connection, cut into frames again, each with its position.

The one rule: what can be read is handed out first; then one sentence says at which byte the capture goes wrong. A
capture may hold one direction or both: `>` and `<` in front of hex say who sent what follows, and each direction is a
stream of bytes of its own. Before it a file, or hex that somebody has copied; after it `frame_notation`, for people.
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


class Codec(NamedTuple):
    decode: Callable[[bytes], AnyFrame]
    """A body, without its length word."""
    encode: Callable[[Any], bytes]


CODECS: dict[str, Codec] = {"v3": Codec(v3.decode, v3.encode), "draft": Codec(draft.decode, draft.encode)}
"""The versions of the protocol, by the name that a document and an option have for them."""


@dataclass(frozen=True, slots=True)
class Captured:
    """One frame of a capture."""

    position: int
    """Of its first byte (of the length word) in what this side sent."""
    direction: str
    """`>`, `<`, or nothing if the capture does not say."""
    version: str
    frame: AnyFrame
    data: bytes

    def as_document(self) -> frame_notation.Document:
        document: frame_notation.Document = {"position": self.position}
        if self.direction:
            document["direction"] = self.direction
        document |= {"protocol": self.version, **frame_notation.as_document(self.frame)}
        if CODECS[self.version].encode(self.frame) != self.data:
            # Some frames may be said in two ways. What the peer really sent goes with them.
            document["data_hex"] = self.data.hex()
        return document

    def as_line(self) -> str:
        gutter = f"{self.direction} " if self.direction else ""
        return f"{self.position:>8}  {gutter}{frame_notation.as_line(self.frame)}"


class Capture:
    """Takes the bytes of a capture piece by piece. Holds one unfinished frame for each direction."""

    def __init__(self, version: str | None = None, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._version = version
        self._frame_bytes_max = frame_bytes_max
        self._sides: dict[str, _Side] = {}

    def feed(self, data: bytes, direction: str = "") -> Iterator[Captured]:
        """The frames that `data` completes; then RemoteProtocolError, if what follows is none."""
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
            raise RemoteProtocolError(f"at byte {side.position}{_said_by(direction)}: {error.sentence}") from None

    def finish(self) -> None:
        """No more comes: RemoteProtocolError if a frame is unfinished."""
        for direction, side in self._sides.items():
            if side.position != side.received:
                raise RemoteProtocolError(
                    f"the capture ends at byte {side.received}{_said_by(direction)}, inside the frame that begins"
                    f" at byte {side.position}"
                )


@dataclass(slots=True)
class _Side:
    framer: Framer
    position: int = 0
    received: int = 0


def _said_by(direction: str) -> str:
    return f" of the side {direction}" if direction else ""


def version_of(body: bytes) -> str:
    """Which version a frame is of: the tags of the draft are letters, and no two versions share one."""
    return "draft" if body[0] in draft.TAGS else "v3"


def encoded(document: object) -> tuple[str, bytes]:
    """The direction and the bytes of the frame that an object says; its `position` is not needed for that."""
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
        # Only as long as the fields say the same: whoever changes a field wants what it says now.
        if data and codec.decode(data[LENGTH_BYTES:]) == frame:
            return direction, data
    except (TypeError, ValueError, RemoteProtocolError):
        raise LocalProtocolError("data_hex must be a frame in hex") from None
    return direction, codec.encode(frame)


def is_hex(beginning: bytes) -> bool:
    """Whether a capture is written in hex. Bytes never look so: a frame begins with a zero, or is 150 MB long."""
    return _TEXT.fullmatch(beginning) is not None


class HexReader:
    """Turns hex into bytes, piece by piece; blanks between digits do not matter."""

    def __init__(self) -> None:
        self._direction = ""
        self._half = ""
        self._read = 0

    def feed(self, text: str) -> Iterator[tuple[str, bytes]]:
        """Pairs of direction and bytes; then RemoteProtocolError where the text is no hex."""
        wrong = _WRONG.search(text)
        for part in _MARK.split(text[: wrong.start()] if wrong else text):
            if part in ("<", ">"):
                self._whole()
                self._direction = part
            else:
                digits = self._half + "".join(part.split())
                even = len(digits) // 2 * 2
                self._half = digits[even:]
                if even:
                    yield self._direction, bytes.fromhex(digits[:even])
        if wrong:
            where = self._read + wrong.start()
            raise RemoteProtocolError(f"{wrong.group()!r}, character {where} of the capture, is no hex digit")
        self._read += len(text)

    def finish(self) -> None:
        self._whole()

    def _whole(self) -> None:
        if self._half:
            raise RemoteProtocolError(f"the capture has half a byte: one hex digit {self._half!r} without the other")
