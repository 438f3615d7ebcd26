"""The coordinator's knowledge of a sink and of the open round. Pure.

Invariant: these are values; `commit/coordinator` and its strategies change them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from procession.commit.round_events import EpochReady
from procession.commit.round_record import SinkShare


class SinkPhase(Enum):
    """The state of a sink in a round."""

    DOWN = "down"
    READY = "ready"
    SENDING = "sending"
    VOTED = "voted"


class RoundPhase(Enum):
    """The phases of an open round."""

    EMITTING = "emitting"
    RECORDING = "recording"
    IN_DOUBT = "in doubt"


@dataclass
class SinkStatus:
    """The state of a sink: its decided position, its vote, and the share that it has not confirmed."""

    position: int
    phase: SinkPhase = SinkPhase.DOWN
    txn: str | None = None
    vote: SinkShare | None = None
    unconfirmed: SinkShare | None = None
    settle_attempts: int = 0
    attempt: int = 0
    """Number of the last attempt. Each sink has its own counter, so that it sees every number."""


@dataclass
class OpenRound:
    ready: EpochReady
    phase: RoundPhase = RoundPhase.EMITTING
    refusals: int = 0
