"""The messages of the draft that version 3 does not have: its OK, its MESSAGE, and the frames that we have added.

The one rule: as in `messages`, a value knows nothing of bytes, states or sockets; and a MESSAGE that contradicts itself
cannot be written down, because its flags follow from what it has. `draft` turns these values into bytes and back.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from procession.wire.messages import Ack, Error, Frame, Hello, Notify, Ok, Restart

DEBUG_COUNT_MAX = 1000
"""How often a DEBUG frame may ask for the same."""


@dataclass(frozen=True, slots=True)
class DraftOk(Ok):
    streams: tuple[tuple[int, str, int], ...] = ()
    """Triples (stream id, stream name, point of reference): what earlier sessions have got committed."""


class Flag(enum.IntFlag):
    EPHEMERAL = 1
    BOUNDARY = 2
    EOS = 4
    UNSTABLE_REFERENCE = 8
    EVENT_TIME = 16
    KEY = 32


@dataclass(frozen=True, slots=True)
class DraftMessage:
    stream_id: int
    message_id: int | None
    """None: it is ephemeral, and has no identity."""
    payload: bytes | None
    """None: it is a boundary, a mark without content."""
    event_time: int | None = None
    key: bytes | None = None
    is_last: bool = False
    """The stream ends with it (EOS)."""
    is_unstable: bool = False
    """Its id may not serve as a point of reference: it may be another one when the stream is read again."""

    @property
    def flags(self) -> Flag:
        flags = Flag(0)
        for flag, is_set in (
            (Flag.EPHEMERAL, self.message_id is None),
            (Flag.BOUNDARY, self.payload is None),
            (Flag.EOS, self.is_last),
            (Flag.UNSTABLE_REFERENCE, self.is_unstable),
            (Flag.EVENT_TIME, self.event_time is not None),
            (Flag.KEY, self.key is not None),
        ):
            if is_set:
                flags |= flag
        return flags


@dataclass(frozen=True, slots=True)
class AckCounts:
    """An ACK that also counts: what the text's last section asks for."""

    credits: int
    positions: tuple[tuple[int, int, int], ...] = ()
    """Triples (stream id, point of reference, count): so many MESSAGE frames of this stream, in the order in which they
    were sent since its first NOTIFY in this session, are settled. It may lag behind the point of reference, and never
    runs ahead of it."""


class Fault(enum.Enum):
    """What a DEBUG frame asks of the gateway, for the session that it comes from and no other."""

    STUTTER = 1
    """Hold back the next `count` ACKs; what they would have told comes with the one after them."""
    TICK = 2
    """Behave as if `count` intervals had passed, each with its ACK: timeouts without a clock."""
    RESTART = 3
    """Send RESTART, and close."""
    CLOSE = 4
    """Close without a word."""
    ERROR = 5
    """Send ERROR, and close."""


@dataclass(frozen=True, slots=True)
class Debug:
    """Fault injection: what the text's section on debugging asks for."""

    fault: Fault
    count: int = 1


@dataclass(frozen=True, slots=True)
class DraftMessages:
    """Consecutive MESSAGE frames, in the order of arrival."""

    messages: tuple[DraftMessage, ...]

    def __len__(self) -> int:
        return len(self.messages)


class Extension(enum.Enum):
    """What a session may speak beyond the draft, if its HELLO names it and the gateway allows it."""

    COUNTS = "counts"
    DEBUG = "debug"


NEEDS: dict[type, Extension] = {AckCounts: Extension.COUNTS, Debug: Extension.DEBUG}
"""The frames that no session may send which has not got their extension."""

DraftFrame = Hello | DraftOk | Error | Notify | DraftMessage | Ack | AckCounts | Restart | Debug
AnyFrame = Frame | DraftFrame
