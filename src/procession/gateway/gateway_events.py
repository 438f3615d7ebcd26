"""The events and actions of a gateway: what goes into `state`, which decides, and what `performer` does.

Invariant: values only. A session is a number that the performer assigns. The result of an action comes back as an
event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from procession.gateway.retired_streams import Retiring
from procession.gateway.snapshot import Snapshot
from procession.merge.event_time import ReplayPoint
from procession.merge.stream_clocks import StreamClock
from procession.wire import connection
from procession.wire.draft_messages import AnyFrame


@dataclass(frozen=True, slots=True)
class SessionOpened:
    session: int


@dataclass(frozen=True, slots=True)
class FrameReceived:
    """The protocol let this frame (or these messages, or this violation) pass."""

    session: int
    what: connection.Event


@dataclass(frozen=True, slots=True)
class SessionClosed:
    session: int


@dataclass(frozen=True, slots=True)
class RowsAppended:
    """The log has all rows below this sequence."""

    end_sequence: int


@dataclass(frozen=True, slots=True)
class AckIntervalPassed:
    """An interval has passed in which every session should have had an ACK."""


@dataclass(frozen=True, slots=True)
class FenceRaised:
    fence: int


@dataclass(frozen=True, slots=True)
class EpochCommitted:
    """The driver of this fence has committed an epoch, which ends below `end_sequence`."""

    fence: int
    epoch: int
    end_sequence: int
    positions: Mapping[int, int] = field(default_factory=dict)
    epochs_kept: int | None = None
    """Number of committed epochs that this gateway must have on disk. `positions` holds the changes since. None: the
    driver does not check this, and sends no positions that the gateway has reported as on disk."""


@dataclass(frozen=True, slots=True)
class SnapshotWritten:
    snapshot: Snapshot
    retiring: Retiring | None = None


@dataclass(frozen=True, slots=True)
class RetireStreams:
    """It is time to see which streams have been idle for long."""


@dataclass(frozen=True, slots=True)
class StreamsIdled:
    """These streams are idle and no longer delay the order: stream id to the watermark that each gets."""

    ticks: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class RowsOrdered:
    """Rows were put in the order of event time, for good and on disk."""

    point: ReplayPoint
    end: int
    """Of the ordered log."""
    ends: Mapping[int, int]
    """Stream id to the sequence, in the ordered log, of its end."""
    waits_for: int | None
    """The stream that the merge waits for, if any rows wait."""
    observed_end: int
    """Arrivals below it are in the ordered log, or wait, but for those that are skipped."""
    skipped: int
    """Words about streams, and records that were taken elsewhere."""
    waiting: Mapping[int, bool]
    """Of the streams that are closing, those of which something waits; and whether it waits for its own stream."""
    clocks: Mapping[int, StreamClock]
    """The progress of each stream, at this gateway or another."""


@dataclass(frozen=True, slots=True)
class LeaderFound:
    """The leader has received the list of held streams. This gateway may request more."""


@dataclass(frozen=True, slots=True)
class LeaderKeeps:
    """The leader has on disk what was committed up to this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class LeaderLost:
    """The link to the leader is lost. The leader may or may not have received the last requests."""


@dataclass(frozen=True, slots=True)
class StreamGranted:
    """The stream is ours. The leader knows `committed` as the last committed id of it, and how far it has come."""

    stream_id: int
    committed: int | None
    clock: StreamClock | None = None


@dataclass(frozen=True, slots=True)
class StreamRefused:
    stream_id: int


@dataclass(frozen=True, slots=True)
class StreamRelinquished:
    """The leader has confirmed the release of the stream."""

    stream_id: int


OfLeader = LeaderFound | LeaderKeeps | LeaderLost | StreamGranted | StreamRefused | StreamRelinquished
OfDriver = FenceRaised | EpochCommitted | SnapshotWritten | RetireStreams
Event = SessionOpened | FrameReceived | SessionClosed | RowsAppended | AckIntervalPassed | OfDriver | OfLeader
OfOrder = StreamsIdled | RowsOrdered


@dataclass(frozen=True, slots=True)
class SendFrame:
    session: int
    frame: AnyFrame


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Send ERROR with this reason, if there is one, then close. To `state` the session is gone already."""

    session: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class AppendRows:
    """Write these rows at the end of the log, soon and in order; `RowsAppended` follows."""

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
class TrimLog:
    before_sequence: int


@dataclass(frozen=True, slots=True)
class AskForStream:
    """Ask the leader for this stream; `StreamGranted`, `StreamRefused` or `LeaderLost` follows."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class RelinquishStream:
    """Tell the leader that all we took of this stream is committed; `StreamRelinquished` or `LeaderLost` follows."""

    stream_id: int
    committed: int | None
    clock: StreamClock | None = None


Action = SendFrame | CloseSession | AppendRows | WriteSnapshot | TrimLog | AskForStream | RelinquishStream


class GatewayObserver:
    """Is called for what a gateway decides and does, just before it does it. This one does nothing; the simulator's
    checks the gateway's invariants."""

    def on_event(self, event: Event | OfOrder) -> None:
        """Called before the state handles this event."""

    def on_send(self, frame: AnyFrame) -> None:
        """This frame is about to be sent to a connected producer."""

    def on_trim(self, before_sequence: int) -> None:
        """The log is about to be trimmed."""

    def on_confirmed(self, next_sequence: int) -> None:
        """A driver has confirmed the log, which ends at this sequence."""
