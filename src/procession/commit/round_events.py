"""The events and actions of a round: the input and the output of the coordinator. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from procession.commit.round_record import RoundRecord
from procession.errors import ProcessionError
from procession.storage.state_version import StateVersion

# Events: what has happened


@dataclass(frozen=True)
class SinkConnected:
    """A sink answered the handshake. It listed these undecided transactions and reported the end of its output.

    `position` is None if the sink's position is only advisory.
    """

    sink: str
    listed: tuple[str, ...]
    position: int | None


@dataclass(frozen=True)
class SinkLost:
    """The connection is lost. `hung`: the driver closed it, because the sink did not vote in time."""

    sink: str
    hung: bool = False


@dataclass(frozen=True)
class EpochReady:
    """All runs of an epoch are written."""

    epoch: int
    lengths: Mapping[str, int | None]
    """Bytes for each sink. None: known only when the epoch is sent."""
    first: int = 0
    last: int = 0
    positions: Mapping[int, int] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    states: Mapping[str, StateVersion] = field(default_factory=dict)
    """The files with the states of keyed stages after the epoch."""
    starts: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[str, int] = field(default_factory=dict)
    """The end of the epoch in the log of each gateway; `starts` has the beginnings."""
    sides: Mapping[str, str] = field(default_factory=dict)
    """The copies of tables that the next epoch reads, by the tables' files."""
    acknowledged: int = -1
    """The last epoch that every gateway has on disk."""

    def end(self, sink: str, start: int) -> int | None:
        """Return the end of this sink's output after the epoch. None: known only when the epoch is sent."""
        length = self.lengths[sink]
        return None if length is None else start + length

    def length(self, vote: VoteReceived) -> int:
        """Return the bytes that a sink has voted on."""
        known = self.lengths[vote.sink]
        length = vote.length if known is None else known
        assert length is not None, f"the length that {vote.sink!r} voted on is unknown"
        return length


@dataclass(frozen=True)
class VoteReceived:
    sink: str
    txn: str
    commit: bool
    length: int | None = None
    """Number of bytes that were sent, if the epoch did not have it."""


@dataclass(frozen=True)
class RecordWritten:
    """`rounds/N` is on disk."""

    epoch: int


@dataclass(frozen=True)
class CommitFound:
    """`commits/N` is on disk, and afterwards the fence was still that of this driver."""

    epoch: int


@dataclass(frozen=True)
class QueryEnded:
    """Spark writes no more commits, and the log has none for the open epoch."""


@dataclass(frozen=True)
class Phase2Confirmed:
    sink: str
    txn: str


Event = (
    SinkConnected | SinkLost | EpochReady | VoteReceived | RecordWritten | CommitFound | QueryEnded | Phase2Confirmed
)

# Actions of the performer


@dataclass(frozen=True)
class EmitEpoch:
    """Send the sink its bytes of the epoch, [start, end) of its output, then ask for its vote on this transaction."""

    sink: str
    txn: str
    epoch: int
    start: int
    end: int | None
    """None: unknown before the bytes are sent."""


@dataclass(frozen=True)
class ReserveAttempts:
    """Durably reserve the numbers of attempts up to this number, before any of them is sent."""

    number: int


@dataclass(frozen=True)
class SendPhase2:
    sink: str
    txn: str
    commit: bool


@dataclass(frozen=True)
class ReconnectSink:
    """Close and connect again, so that the sink drops output that it has not prepared. `delay_s` grows with each
    refusal."""

    sink: str
    delay_s: float = 0.0


@dataclass(frozen=True)
class WriteRecord:
    record: RoundRecord


@dataclass(frozen=True)
class FinishEpoch:
    """Let `foreachBatch` return: from now on, Spark decides the epoch."""

    epoch: int


@dataclass(frozen=True)
class Acknowledge:
    """Notify the gateways that the epoch is committed."""

    record: RoundRecord


@dataclass(frozen=True)
class AcknowledgeEarly:
    """Notify the gateways that these positions may be acknowledged, before the decision. Only for guarantees without a
    promise."""

    record: RoundRecord


@dataclass(frozen=True)
class DropRuns:
    """Drop the runs, because every sink has confirmed the epoch."""

    epoch: int


@dataclass(frozen=True)
class Warn:
    sentence: str


@dataclass(frozen=True)
class StopPipeline:
    """Stop the pipeline, because it cannot continue. An operator must act."""

    error: ProcessionError


Action = (
    EmitEpoch
    | ReserveAttempts
    | SendPhase2
    | ReconnectSink
    | WriteRecord
    | FinishEpoch
    | Acknowledge
    | AcknowledgeEarly
    | DropRuns
    | Warn
    | StopPipeline
)
