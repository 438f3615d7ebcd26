"""Shares: how many bytes of each stream are received and not committed, and who may send more for all that. Pure.

The one rule: whoever has the stream that a merge waits for is never held up by what others have sent. It gets a few
credits at a time from a reserve that nobody else can use; the others wait while all together, or one of their own
streams, are over their limit. Before it: `ordered`, which counts; beside it `lag`, where there is no merge.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Set

from procession.gateway.config import Limits
from procession.gateway.lag import STEP_BYTES, Lag


class Shares(Lag):
    """A lag that is counted for each stream: `bytes` is their sum."""

    def __init__(self, limits: Limits, streams: int) -> None:
        super().__init__()
        self._limits = limits
        self.share_bytes = limits.stream_bytes_max or max(1, limits.lag_bytes_max // max(1, streams))
        self.of: dict[int, int] = {}
        """Stream id to its bytes."""
        self.over: set[int] = set()
        """The streams that are over their share."""
        self.reserve_bytes = limits.reserve_bytes_max
        self._received: dict[int, deque[tuple[int, int]]] = {}
        """Of each stream, (last message id, bytes) of a step."""

    def add(self, end_sequence: int, size_bytes: int) -> None:
        """What is counted here is counted when it is received."""

    def commit(self, end_sequence: int) -> None:
        """A sequence says nothing here: streams are committed by their message ids."""

    def receive(self, stream_id: int, last_id: int, size_bytes: int) -> None:
        steps = self._received.setdefault(stream_id, deque())
        self._count(stream_id, size_bytes)
        if steps and steps[-1][1] < STEP_BYTES // 16:
            size_bytes += steps.pop()[1]
        steps.append((last_id, size_bytes))

    def settle(self, positions: Iterable[tuple[int, int]]) -> None:
        """Of each stream, all up to this message id is committed."""
        for stream_id, committed in positions:
            steps = self._received.get(stream_id)
            while steps and steps[0][0] <= committed:
                self._count(stream_id, -steps.popleft()[1])

    def _count(self, stream_id: int, size_bytes: int) -> None:
        self.bytes += size_bytes
        self.of[stream_id] = self.of.get(stream_id, 0) + size_bytes
        if self.of[stream_id] > self.share_bytes:
            self.over.add(stream_id)
        else:
            self.over.discard(stream_id)

    def allowed(self, streams: Set[int], granted: int) -> int:
        """So many credits a session with these streams may hold, if it were granted so many without a merge."""
        if granted and not (self.over and not self.over.isdisjoint(streams)):
            return granted
        limits = self._limits
        if self.waits_for not in streams or self.bytes > limits.lag_bytes_max + limits.reserve_bytes_max:
            return 0
        return min(limits.credits_min, limits.credits_max)
