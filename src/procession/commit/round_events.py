"""The events and actions of a round: what goes into the coordinator and what comes out. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from procession.commit.round_record import RoundRecord
from procession.errors import ProcessionError
from procession.storage.state_version import StateVersion

# Events: what has happened


@dataclass(frozen=True)
class SinkConnected:
    """A sink answered the handshake: these transactions it has not settled, and here it says its output ends.

    `position` is None where the sink's word is only advisory."""

    sink: str
    listed: tuple[str, ...]
    position: int | None


@dataclass(frozen=True)
class SinkLost:
    """The connection is gone. `hung`: we closed it ourselves, because the sink did not vote in time."""

    sink: str
    hung: bool = False


@dataclass(frozen=True)
class EpochReady:
    """All runs of an epoch are written."""

    epoch: int
    lengths: Mapping[str, int | None]
    """Bytes for each sink; None: known only when they are sent."""
    first: int = 0
    last: int = 0
    positions: Mapping[int, int] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    states: Mapping[str, StateVersion] = field(default_factory=dict)
    """The files that hold the states of keyed stages after the epoch."""
    starts: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[str, int] = field(default_factory=dict)
    """Where the epoch begins and ends in the log of each gateway."""
    sides: Mapping[str, str] = field(default_factory=dict)
    """The copies of tables that the next epoch is to read, by the file that each is of."""
    acknowledged: int = -1
    """The last epoch that every gateway has on disk."""

    def end(self, sink: str, start: int) -> int | None:
        """Where the output of this sink ends with the epoch; None: known only when it is sent."""
        length = self.lengths[sink]
        return None if length is None else start + length

    def length(self, vote: VoteReceived) -> int:
        """The bytes that a sink has voted on."""
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
    """Bytes that were sent, if the epoch did not say so before."""


@dataclass(frozen=True)
class RecordWritten:
    """`rounds/N` is on disk."""

    epoch: int


@dataclass(frozen=True)
class CommitFound:
    """`commits/N` is on disk, and after that the fence was still ours."""

    epoch: int


@dataclass(frozen=True)
class QueryEnded:
    """Spark will write no more commits, and the log has none for the open epoch."""


@dataclass(frozen=True)
class Phase2Confirmed:
    sink: str
    txn: str


Event = (
    SinkConnected | SinkLost | EpochReady | VoteReceived | RecordWritten | CommitFound | QueryEnded | Phase2Confirmed
)

# Actions: what is to be done


@dataclass(frozen=True)
class EmitEpoch:
    """Send the sink its bytes of the epoch, [start, end) of its output, then ask for its vote on this transaction."""

    sink: str
    txn: str
    epoch: int
    start: int
    end: int | None
    """None: wherever the bytes end."""


@dataclass(frozen=True)
class ReserveAttempts:
    """Reserve the numbers of attempts up to this one, durably, before any of them is sent."""

    number: int


@dataclass(frozen=True)
class SendPhase2:
    sink: str
    txn: str
    commit: bool


@dataclass(frozen=True)
class ReconnectSink:
    """Close and connect again: a sink drops what it has not prepared. `delay_s` grows with each refusal."""

    sink: str
    delay_s: float = 0.0


@dataclass(frozen=True)
class WriteRecord:
    record: RoundRecord


@dataclass(frozen=True)
class FinishEpoch:
    """The epoch is in Spark's hands: let `foreachBatch` return."""

    epoch: int


@dataclass(frozen=True)
class Acknowledge:
    """The epoch is committed: notify the gateway."""

    record: RoundRecord


@dataclass(frozen=True)
class AcknowledgeEarly:
    """Tell the gateway that these positions are safe, though nothing is decided: only where nothing is promised."""

    record: RoundRecord


@dataclass(frozen=True)
class DropRuns:
    """Every sink has confirmed the epoch."""

    epoch: int


@dataclass(frozen=True)
class Warn:
    sentence: str


@dataclass(frozen=True)
class StopPipeline:
    """The pipeline cannot continue: an operator must act."""

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
