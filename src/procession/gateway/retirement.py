"""Retirement: decides which streams a gateway omits from its snapshot, and when. Pure.

Invariant: a stream is retired after `streams_retire_after_s` without activity, if no session has it open and all its
records are committed. When more than three quarters of `streams_max` are known, the longest idle streams are retired at
once until half are left. The leader keeps the retired streams, and looks them up before it grants a stream. Other
gateways drop a stream when the leader has everything that they know about it on disk.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from procession.gateway.confirmation import check_epochs
from procession.gateway.gateway_events import EpochCommitted
from procession.gateway.gateway_limits import Limits
from procession.gateway.registry import Registry
from procession.gateway.retired_streams import RetiredStreams, Retiring
from procession.gateway.snapshot import Snapshot
from procession.gateway.stream_leases import StreamLeases


class Retirement:
    def __init__(
        self, limits: Limits, registry: Registry, retired: RetiredStreams, claims: StreamLeases | None, now: float
    ) -> None:
        self._limits = limits
        self._registry = registry
        self._retired = retired
        self._claims = claims
        self._due_at = now
        self.is_granted: Callable[[int], bool] = lambda _: False
        """Whether some gateway holds the stream, as far as the leader knows."""
        self.leader_keeps = -1
        """The epoch up to which the leader has commits on disk."""

    @property
    def _is_keeping(self) -> bool:
        return self._claims is None or self._claims.is_leading

    def choose(self, epoch: int, now: float) -> dict[int, int]:
        """Return the streams to retire now, with their committed ids. `epoch` is that of this gateway's snapshot."""
        after_s, streams_max, known = self._limits.streams_retire_after_s, self._limits.streams_max, len(self._registry)
        excess = known - streams_max // 2 if known > streams_max * 3 // 4 else 0
        if not excess and now < self._due_at:
            return {}
        if not self._is_keeping and self.leader_keeps < epoch:
            return {}
        self._due_at = now + after_s / 60
        chosen = self._registry.idle(now - after_s, excess, self._is_held)
        if not self._is_keeping:
            return chosen
        # Other gateways may know a stream for about as long. If this gateway removed it earlier, the stream could start
        # over here, but not there.
        is_alone = self._claims is None or self._claims.is_alone
        room = self._retired.forget(now, len(chosen), 0.0 if is_alone else 2 * after_s)
        return dict(itertools.islice(chosen.items(), room))

    def on_commit(self, commit: EpochCommitted, snapshot: Snapshot) -> None:
        """Raise StorageError if a commit does not name all positions that this gateway lacks. No later commit repeats
        changes before the epochs that the driver knows to be on disk."""
        check_epochs(snapshot.epoch + 1, commit.epochs_kept or 0)
        self._retired.settle(commit.epoch if commit.epochs_kept is None else commit.epochs_kept - 1)

    def _is_held(self, stream_id: int) -> bool:
        return self.is_granted(stream_id) or (self._claims is not None and self._claims[stream_id] is not None)

    def plan(self, streams: dict[int, int], before: Snapshot, now: float) -> tuple[Snapshot, Retiring]:
        """Return the snapshot without these streams, and the data that must be on disk before it."""
        kept = {stream_id: at for stream_id, at in before.streams.items() if stream_id not in streams}
        retiring = self._retired.retiring(streams, now) if self._is_keeping else Retiring(streams)
        return replace(before, streams=kept, retired=retiring.mark or before.retired), retiring

    def written(self, snapshot: Snapshot, retiring: Retiring | None) -> None:
        """Note that this snapshot is on disk."""
        self._retired.returned(snapshot.streams)
        if retiring is not None:
            if retiring.mark is not None:
                self._retired.retired(retiring, snapshot.epoch)
            self._registry.retire(retiring.streams)
