"""Stream quotas: how many uncommitted bytes each stream has, and which streams may send more. Pure.

Invariant: the session with the stream that a merge waits for is never blocked by the records of other sessions. It gets
a few credits at a time from a reserve, on the account of that stream. Reserve bytes of other accounts do not count.
Other sessions wait while the total, or one of their own streams, is over its limit. `event_time_state` does the
counting; without a merge, `credit_flow.Lag` is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Set
from typing import NamedTuple

from procession.gateway.credit_flow import STEP_BYTES, Lag
from procession.gateway.gateway_limits import Limits

NOBODY = -1
"""The account of sessions that may send because no session has the stream that the merge waits for."""


class StreamRun(NamedTuple):
    """Records of one stream that arrived together, up to this message id."""

    last_id: int
    size_bytes: int
    account: int | None
    """The account whose reserve the records used. None: they needed no reserve."""


class StreamQuotas(Lag):
    """The lag, counted for each stream. `bytes` is the sum."""

    def __init__(self, limits: Limits, streams: int) -> None:
        super().__init__()
        self._limits = limits
        self.share_bytes = limits.stream_bytes_max or max(1, limits.lag_bytes_max // max(1, streams))
        self.of: dict[int, int] = {}
        """The uncommitted bytes of each stream."""
        self.over: set[int] = set()
        """The streams that are over their share."""
        self.reserve_bytes = limits.reserve_bytes_max
        self.waits_for: int | None = None
        """The stream that the merge waits for."""
        self.reserved: dict[int, int] = {}
        """The bytes that each account has taken from the reserve. Accounts without bytes are omitted."""
        self._received: dict[int, deque[StreamRun]] = {}

    def add(self, end_sequence: int, size_bytes: int) -> None:
        """Do nothing: bytes are counted when they are received."""

    def commit(self, end_sequence: int) -> None:
        """Do nothing: streams are committed by their message ids, not by sequences."""

    def receive(self, stream_id: int, last_id: int, size_bytes: int, account: int | None = None) -> None:
        """Count received records. Above the limit of all streams, they count against the reserve of `account`."""
        account = account if self.bytes > self._limits.lag_bytes_max else None
        self._count(stream_id, size_bytes, account)
        steps = self._received.setdefault(stream_id, deque())
        if steps and steps[-1].size_bytes < STEP_BYTES // 16 and steps[-1].account == account:
            size_bytes += steps.pop().size_bytes
        steps.append(StreamRun(last_id, size_bytes, account))

    def settle(self, positions: Iterable[tuple[int, int]]) -> None:
        """Note, for each stream, that all records up to this message id are committed."""
        for stream_id, committed in positions:
            steps = self._received.get(stream_id)
            while steps and steps[0].last_id <= committed:
                step = steps.popleft()
                self._count(stream_id, -step.size_bytes, step.account)

    def _count(self, stream_id: int, size_bytes: int, account: int | None) -> None:
        self.bytes += size_bytes
        self.of[stream_id] = self.of.get(stream_id, 0) + size_bytes
        if self.of[stream_id] > self.share_bytes:
            self.over.add(stream_id)
        else:
            self.over.discard(stream_id)
        if account is not None:
            self.reserved[account] = self.reserved.get(account, 0) + size_bytes
            if not self.reserved[account]:
                del self.reserved[account]

    def allowed(self, streams: Set[int], granted: int) -> int:
        """Return the number of credits that a session with these streams may hold. `granted` is the number without a
        merge."""
        if granted and not (self.over and not self.over.isdisjoint(streams)):
            return granted
        limits = self._limits
        if self.waits_for is None or self.waits_for not in streams:
            return 0
        is_within = self.bytes <= limits.lag_bytes_max or self.reserved.get(self.waits_for, 0) < self.reserve_bytes
        return min(limits.credits_min, limits.credits_max) if is_within else 0
