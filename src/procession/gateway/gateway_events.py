"""The events and actions of a gateway: events go into `state`, which decides; `performer` performs the actions.

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
    """The protocol layer has accepted this frame, these messages, or this violation."""

    session: int
    what: connection.Event


@dataclass(frozen=True, slots=True)
class SessionClosed:
    session: int


@dataclass(frozen=True, slots=True)
class RowsAppended:
    """All rows below this sequence are in the log."""

    end_sequence: int


@dataclass(frozen=True, slots=True)
class AckIntervalPassed:
    """An interval has passed. Every session without an ACK in it needs one now."""


@dataclass(frozen=True, slots=True)
class FenceRaised:
    fence: int


@dataclass(frozen=True, slots=True)
class EpochCommitted:
    """The driver with this fence has committed an epoch, which ends below `end_sequence`."""

    fence: int
    epoch: int
    end_sequence: int
    positions: Mapping[int, int] = field(default_factory=dict)
    epochs_kept: int | None = None
    """Number of committed epochs that this gateway must have on disk. `positions` has the changes since then. None: the
    driver does not check this, and leaves out positions that the gateway has reported as on disk."""


@dataclass(frozen=True, slots=True)
class SnapshotWritten:
    snapshot: Snapshot
    retiring: Retiring | None = None


@dataclass(frozen=True, slots=True)
class RetireStreams:
    """The idle streams should be checked for retirement."""


@dataclass(frozen=True, slots=True)
class StreamsIdled:
    """These streams are idle and no longer delay the order. Maps each stream id to its new watermark."""

    ticks: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class RowsOrdered:
    """Rows were put in final event-time order, and are on disk."""

    point: ReplayPoint
    end: int
    """End of the ordered log."""
    ends: Mapping[int, int]
    """Maps stream ids to the sequence of their end in the ordered log."""
    waits_for: int | None
    """The stream that the merge waits for, if there are waiting rows."""
    observed_end: int
    """Each arrival below this sequence is ordered, waiting or skipped."""
    skipped: int
    """Number of skipped arrivals: rows about streams, and records that other gateways received."""
    waiting: Mapping[int, bool]
    """Closing streams with waiting records, and whether these records wait only for their own stream."""
    clocks: Mapping[int, StreamClock]
    """The progress of each stream, at this gateway or another."""


@dataclass(frozen=True, slots=True)
class LeaderFound:
    """The leader has received the list of held streams. This gateway may request more."""


@dataclass(frozen=True, slots=True)
class LeaderKeeps:
    """The leader has all commits up to this epoch on disk."""

    epoch: int


@dataclass(frozen=True, slots=True)
class LeaderLost:
    """The link to the leader is lost. The leader may or may not have received the last requests."""


@dataclass(frozen=True, slots=True)
class StreamGranted:
    """The leader grants the stream. It knows `committed` as the stream's last committed id, and `clock` as its
    progress."""

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
    """Send ERROR with this reason, if there is one, then close. For `state`, the session has already ended."""

    session: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class AppendRows:
    """Append these rows to the log, soon and in order. `RowsAppended` follows."""

    first_sequence: int
    batch: pa.RecordBatch
    size_bytes: int


@dataclass(frozen=True, slots=True)
class WriteSnapshot:
    """Write the snapshot durably before any later action. `SnapshotWritten` follows. The streams that the snapshot
    omits are written before it."""

    snapshot: Snapshot
    retiring: Retiring | None = None


@dataclass(frozen=True, slots=True)
class TrimLog:
    before_sequence: int


@dataclass(frozen=True, slots=True)
class AskForStream:
    """Ask the leader for this stream. `StreamGranted`, `StreamRefused` or `LeaderLost` follows."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class RelinquishStream:
    """Notify the leader that all records that this gateway received of the stream are committed. `StreamRelinquished`
    or `LeaderLost` follows."""

    stream_id: int
    committed: int | None
    clock: StreamClock | None = None


Action = SendFrame | CloseSession | AppendRows | WriteSnapshot | TrimLog | AskForStream | RelinquishStream


class GatewayObserver:
    """Observes a gateway's events and actions just before they happen. This class does nothing; the simulator's
    observer checks the gateway's invariants."""

    def on_event(self, event: Event | OfOrder) -> None:
        """Observe an event before the state handles it."""

    def on_send(self, frame: AnyFrame) -> None:
        """Observe a frame that is about to be sent to a connected producer."""

    def on_trim(self, before_sequence: int) -> None:
        """Observe that the log is about to be trimmed."""

    def on_confirmed(self, next_sequence: int) -> None:
        """Observe that a driver has confirmed the log, which ends at this sequence."""
