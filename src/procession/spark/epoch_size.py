"""Determines the maximum size of the next epoch from the duration of the last epochs. Pure.

Invariant: the limit depends only on the time that a full epoch takes. An epoch costs a fixed time (Spark's job, the
round, two syncs) and a time per record. Throughput grows with the size until the fixed time is a small share of the
whole; beyond that, size only costs latency and memory. So under backlog an epoch grows until it takes `fixed time /
FIXED_SHARE`, or `target_s` if that is less. If the fixed time alone takes up the target, smaller epochs do not help:
then an epoch may take longer, until the fixed time is FIXED_SHARE_MAX of it. Without a backlog, an epoch has all
available records. Its duration is then an upper bound of the time per record, and the limit may grow accordingly.
Epochs that may run without a Spark job (`spark/small_epochs`) are not used to estimate the fixed time of larger
epochs. With a target of 0 this module sets no limit. Used by `spark/log_source`.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import NamedTuple

FIRST_RECORDS = 16_384
"""Limit of the first epoch. The pipeline's functions may be slow: a record may take a second."""
GROWTH_MAX = 8
"""The limit grows at most by this factor per epoch, because a short epoch is a weak estimate for a long one."""
FULL_SHARE = 0.5
"""An epoch with less than this share of its limit contained all available records."""
FIXED_SHARE = 0.03
"""Share of the fixed time in an epoch below which throughput hardly grows."""
FIXED_SHARE_MAX = 0.5
"""Maximum share of the fixed time: below it, epochs are made smaller to meet the target."""
RECENT = 6
"""Number of epochs from which the fixed time is estimated."""


class EpochPace(NamedTuple):
    """How often epochs begin, and how long they may take."""

    interval_s: float = 0.0
    """Minimum time between the starts of two epochs."""
    target_s: float = 2.5
    """Time that an epoch should take at most; 0 means no limit."""
    small_records_max: int = 0
    """Maximum number of records of an epoch that may run without a Spark job."""


class EpochSize:
    """The maximum number of records of the next epoch."""

    def __init__(self, target_s: float, small_records_max: int = 0) -> None:
        self._target_s = target_s
        self._small_records_max = small_records_max
        self._records_max = float(FIRST_RECORDS)
        self._fixed_s: float | None = None
        """The shortest duration of an epoch that ran as a Spark job: an upper bound of the fixed time."""
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT)
        """The number of records and the duration of the last epochs."""
        self._estimate_s: float | None = None
        """Estimate of the fixed time of an epoch, from the last epochs of different sizes."""

    @property
    def records_max(self) -> int:
        return max(1, int(self._records_max)) if self._target_s else sys.maxsize

    @property
    def target_s(self) -> float:
        """The time that a full epoch should take."""
        return self._target_s if self._fixed_s is None else min(self._target_s, self._fixed_s / FIXED_SHARE)

    def observe(self, records: int, seconds: float) -> None:
        """Record an epoch: its number of records, and the time from its offer until Spark requested the next
        epoch."""
        if records <= 0 or seconds <= 0:
            return
        if records > self._small_records_max:
            self._fixed_s = seconds if self._fixed_s is None else min(seconds, self._fixed_s)
        self._recent.append((records, seconds))
        self._measure()
        is_full = records >= FULL_SHARE * self._records_max
        if is_full or seconds > self._target_s:
            limit = self._records_max * (GROWTH_MAX if is_full else 1)
            self._records_max = min(self._fitting(records, seconds), limit)
        else:
            fitting = min(records * self.target_s / seconds, self._records_max * GROWTH_MAX)
            self._records_max = max(self._records_max, fitting)

    def _fitting(self, records: int, seconds: float) -> float:
        """Return the number of records with which an epoch takes the intended time."""
        proportional = records * self.target_s / seconds
        quickest_s = min(epoch_s for _, epoch_s in self._recent)
        if quickest_s <= FIXED_SHARE_MAX * self._target_s:
            return proportional
        if self._estimate_s is None:  # epochs of different sizes are needed to estimate the fixed time
            return min(proportional, records / 2) if records > 1 else 2
        fixed_s = min(self._estimate_s, quickest_s)
        if fixed_s <= FIXED_SHARE_MAX * self._target_s:
            return proportional
        allowed_s = max(self._target_s, fixed_s / FIXED_SHARE_MAX) - fixed_s
        return records * allowed_s / (seconds - fixed_s) if seconds > fixed_s else float("inf")

    def _measure(self) -> None:
        """Estimate the fixed time from the smallest and the largest of the last epochs, if their sizes differ."""
        (records, seconds), (most_records, most_s) = min(self._recent), max(self._recent)
        if most_records < 2 * records:
            return
        record_s = max(0.0, (most_s - seconds) / (most_records - records))
        fixed_s = seconds - record_s * records
        # A negative estimate: another cause, such as a start, has delayed one of the two epochs.
        self._estimate_s = fixed_s if fixed_s >= 0 else None
