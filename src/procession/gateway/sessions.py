"""A session, as the gateway's decisions know it: what it is owed, what it was told, what the draft needs of it. Pure.

The one rule: a session decides nothing; it keeps what is its own, and goes when its connection does. `state` asks it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from procession.gateway.groups import Groups
from procession.gateway.registry import Registry
from procession.wire.draft_messages import AckCounts
from procession.wire.messages import Ack


@dataclass(slots=True)
class Session:
    is_streaming: bool = False
    owed: int = 0
    """Credits that are missing from a full window: those that it spent, and that were not given back."""
    was_acked: bool = False
    """Since the last tick."""
    groups: Groups | None = None
    """What it has sent in the draft; None if it speaks version 3."""
    stutter: int = 0
    """So many ACKs are held back, because it asked for that fault."""
    _late: dict[int, int] = field(default_factory=dict)
    """What those would have told."""

    def ack(self, positions: Iterable[tuple[int, int]], registry: Registry, *, granted: int) -> list[Ack | AckCounts]:
        """The ACK that tells these pairs (stream id, committed id) and gives back so much of what is owed; none while
        it stutters."""
        self.was_acked = True
        self._late |= dict(positions)
        if self.stutter:
            self.stutter -= 1
            return []
        told, self._late = self._late, {}
        self.owed -= granted
        if self.groups is not None and self.groups.is_counting:
            return [AckCounts(granted, self.groups.counted(told, registry))]
        return [Ack(granted, tuple(told.items()))]
