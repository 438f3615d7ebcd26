"""The events and actions of a round: what goes into the coordinator and what comes out. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from procession.commit.round_record import Round
from procession.errors import ProcessionError
from procession.storage.state_store import Version

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
    """All runs of an epoch are there: so many bytes for each sink."""

    epoch: int
    lengths: Mapping[str, int]
    first: int = 0
    last: int = 0
    positions: Mapping[int, int] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    states: Mapping[str, Version] = field(default_factory=dict)
    """The files that hold the states of keyed stages after the epoch."""
    starts: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[str, int] = field(default_factory=dict)
    """Where the epoch begins and ends in the log of each gateway."""
    sides: Mapping[str, str] = field(default_factory=dict)
    """The copies of tables that the next epoch is to read, by the file that each is of."""


@dataclass(frozen=True)
class VoteReceived:
    sink: str
    txn: str
    commit: bool


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
class Emit:
    """Send the sink its bytes of the epoch, [start, end) of its output, then ask for its vote on this transaction."""

    sink: str
    txn: str
    epoch: int
    start: int
    end: int


@dataclass(frozen=True)
class Reserve:
    """Reserve the numbers of attempts up to this one, durably, before any of them is sent."""

    number: int


@dataclass(frozen=True)
class Phase2:
    sink: str
    txn: str
    commit: bool


@dataclass(frozen=True)
class Reconnect:
    """Close and connect again: a sink drops what it has not prepared. `delay_s` grows with each refusal."""

    sink: str
    delay_s: float = 0.0


@dataclass(frozen=True)
class WriteRecord:
    record: Round


@dataclass(frozen=True)
class FinishEpoch:
    """The epoch is in Spark's hands: let `foreachBatch` return."""

    epoch: int


@dataclass(frozen=True)
class Acknowledge:
    """The epoch is decided commit: tell the gateway."""

    record: Round


@dataclass(frozen=True)
class Tell:
    """Tell the gateway that these positions are safe, though nothing is decided: only where nothing is promised."""

    record: Round


@dataclass(frozen=True)
class DropRuns:
    """Every sink has confirmed the epoch."""

    epoch: int


@dataclass(frozen=True)
class Warn:
    sentence: str


@dataclass(frozen=True)
class Stop:
    """The pipeline cannot go on: somebody must act."""

    error: ProcessionError


Action = Emit | Reserve | Phase2 | Reconnect | WriteRecord | FinishEpoch | Acknowledge | Tell | DropRuns | Warn | Stop
