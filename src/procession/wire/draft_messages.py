"""The messages of the draft that version 3 does not have: its OK, its MESSAGE, and the frames of the extensions.

Invariant: as in `messages`, a value is independent of bytes, states and sockets. A contradictory MESSAGE cannot be
constructed, because its flags are derived from its fields. `draft` encodes and decodes these values.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from procession.wire.messages import Ack, Error, Frame, Hello, Notify, Ok, Restart

DEBUG_COUNT_MAX = 1000
"""Maximum repeat count in a DEBUG frame."""


@dataclass(frozen=True, slots=True)
class DraftOk(Ok):
    streams: tuple[tuple[int, str, int], ...] = ()
    """Triples (stream id, stream name, point of reference) of what earlier sessions have committed."""


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
    """None for an ephemeral message, which has no identity."""
    payload: bytes | None
    """None for a boundary, which has no content."""
    event_time: int | None = None
    key: bytes | None = None
    is_last: bool = False
    """Whether the stream ends with this message (EOS)."""
    is_unstable: bool = False
    """Whether its id is unusable as a point of reference, because a replay of the stream may assign another id."""

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
    """An ACK with message counts, as the last section of the protocol text requests."""

    credits: int
    positions: tuple[tuple[int, int, int], ...] = ()
    """Triples (stream id, point of reference, count). The first `count` MESSAGE frames since the stream's first
    NOTIFY in this session are committed. The count may lag behind the point of reference, and
    is never ahead of it."""


class DebugFault(enum.Enum):
    """The fault that a DEBUG frame requests from the gateway, for its own session only."""

    STUTTER = 1
    """Hold back the next `count` ACKs. The ACK after them contains their content."""
    TICK = 2
    """Behave as if `count` ACK intervals had passed: timeouts without a clock."""
    RESTART = 3
    """Send RESTART, and close."""
    CLOSE = 4
    """Close without a frame."""
    ERROR = 5
    """Send ERROR, and close."""


@dataclass(frozen=True, slots=True)
class Debug:
    """Fault injection, as the debugging section of the protocol text requests."""

    fault: DebugFault
    count: int = 1


@dataclass(frozen=True, slots=True)
class DraftMessages:
    """Consecutive MESSAGE frames, in the order of arrival."""

    messages: tuple[DraftMessage, ...]

    def __len__(self) -> int:
        return len(self.messages)


class Extension(enum.Enum):
    """An extension of the draft. A session uses it if its HELLO requests it and the gateway allows it."""

    COUNTS = "counts"
    DEBUG = "debug"


NEEDS: dict[type, Extension] = {AckCounts: Extension.COUNTS, Debug: Extension.DEBUG}
"""Frames that a session may send only with the given extension."""

DraftFrame = Hello | DraftOk | Error | Notify | DraftMessage | Ack | AckCounts | Restart | Debug
AnyFrame = Frame | DraftFrame
