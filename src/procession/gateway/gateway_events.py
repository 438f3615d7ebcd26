"""What happens to a gateway, and what it does about it: the words between `state`, which decides, and `performer`.

The one rule: values only. A session is a number that the rim gives out; the result of an action comes back as an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from procession.gateway.retired_streams import Retiring
from procession.gateway.snapshot import Snapshot
from procession.merge.event_time import Point
from procession.merge.stream_clocks import Clock
from procession.wire import connection
from procession.wire.draft_messages import AnyFrame


@dataclass(frozen=True, slots=True)
class SessionOpened:
    session: int


@dataclass(frozen=True, slots=True)
class Received:
    """The protocol let this frame (or these messages, or this violation) pass."""

    session: int
    what: connection.Event


@dataclass(frozen=True, slots=True)
class SessionClosed:
    session: int


@dataclass(frozen=True, slots=True)
class Appended:
    """The log has all rows below this sequence."""

    end_sequence: int


@dataclass(frozen=True, slots=True)
class Ticked:
    """An interval has passed in which every session should have had an ACK."""


@dataclass(frozen=True, slots=True)
class FenceRaised:
    fence: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The driver of this fence has committed an epoch, which ends below `end_sequence`."""

    fence: int
    epoch: int
    end_sequence: int
    positions: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SnapshotWritten:
    snapshot: Snapshot
    retiring: Retiring | None = None


@dataclass(frozen=True, slots=True)
class Retire:
    """It is time to see which streams have been idle for long."""


@dataclass(frozen=True, slots=True)
class Idled:
    """Nobody waits any longer for these streams: stream id to the watermark that each is to have."""

    ticks: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Ordered:
    """Rows were put in the order of event time, for good and on disk."""

    point: Point
    end: int
    """Of the ordered log."""
    ends: Mapping[int, int]
    """Stream id to the sequence, in the ordered log, of its end."""
    waits_for: int | None
    """The stream without which no more can be taken, if any rows wait."""
    heard_end: int
    """Arrivals below it are in the ordered log, or wait, but for those that are skipped."""
    skipped: int
    """Words about streams, and records that were taken elsewhere."""
    waiting: Mapping[int, bool]
    """Of the streams that are closing, those of which something waits; and whether it waits for its own stream."""
    clocks: Mapping[int, Clock]
    """How far each stream has come, here or elsewhere."""


@dataclass(frozen=True, slots=True)
class LeaderFound:
    """The leader has heard what we hold; it may be asked for more."""


@dataclass(frozen=True, slots=True)
class LeaderKeeps:
    """The leader has on disk what was committed up to this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class LeaderLost:
    """What the leader was asked or told last, it may have heard or not."""


@dataclass(frozen=True, slots=True)
class Granted:
    """The stream is ours. The leader knows `committed` as the last committed id of it, and how far it has come."""

    stream_id: int
    committed: int | None
    clock: Clock | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    stream_id: int


@dataclass(frozen=True, slots=True)
class Relinquished:
    """The leader has heard that we gave the stream up."""

    stream_id: int


OfLeader = LeaderFound | LeaderKeeps | LeaderLost | Granted | Refused | Relinquished
OfDriver = FenceRaised | Committed | SnapshotWritten | Retire
Event = SessionOpened | Received | SessionClosed | Appended | Ticked | OfDriver | OfLeader
OfOrder = Idled | Ordered


@dataclass(frozen=True, slots=True)
class Send:
    session: int
    frame: AnyFrame


@dataclass(frozen=True, slots=True)
class Close:
    """Send ERROR with this reason, if there is one, then close. To `state` the session is gone already."""

    session: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class Append:
    """Write these rows at the end of the log, soon and in order; `Appended` follows."""

    first_sequence: int
    batch: pa.RecordBatch
    size_bytes: int


@dataclass(frozen=True, slots=True)
class WriteSnapshot:
    """Make this durable before anything else that follows from it; `SnapshotWritten` follows. The streams that it
    leaves out are written before it."""

    snapshot: Snapshot
    retiring: Retiring | None = None


@dataclass(frozen=True, slots=True)
class Trim:
    before_sequence: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the leader for this stream; `Granted`, `Refused` or `LeaderLost` follows."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class Relinquish:
    """Tell the leader that all we took of this stream is committed; `Relinquished` or `LeaderLost` follows."""

    stream_id: int
    committed: int | None
    clock: Clock | None = None


Action = Send | Close | Append | WriteSnapshot | Trim | Ask | Relinquish
