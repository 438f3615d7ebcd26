"""Decides which epochs run in the resident worker, without a Spark job, and runs them.

Invariant: the output does not depend on where an epoch runs. The resident worker runs the same tasks on the same
ranges, and publishes the same manifests, so Spark can take over an epoch that the worker did not finish. A Spark job
has a fixed cost. An epoch runs in the worker if its tasks are predicted to take less time than that cost. The
prediction uses the last epochs. The worker runs tasks one after the other, so Spark runs longer epochs. Used by
`spark/query`; `spark/resident_worker` has the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from procession.spark.manifest_routing import RoutedManifest
from procession.spark.resident_worker import ResidentWorker
from procession.spark.tasks import FIRST_CHAIN, EpochLayout, Task
from procession.storage.run_store import Manifest

JOB_S = 0.03
"""Minimum time of a Spark job without its tasks, in seconds."""
RECENT = 8
"""Number of epochs from which the time of the next one is predicted."""


class SmallEpochLimit:
    """Predicts whether an epoch takes less time than a Spark job. Pure."""

    def __init__(self, records_max: int) -> None:
        self._records_max = records_max
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT)
        """For each of the last epochs: its number of records, and the total seconds of its tasks."""
        self._job_s = JOB_S
        """The time of the last Spark job without its tasks. On a busy machine it is more than JOB_S."""

    def observe(self, records: int, tasks_s: float, job_s: float | None = None) -> None:
        """Record an epoch: its number of records, the time of its tasks, and the time of its Spark job, if it had
        one."""
        if records > 0:
            self._recent.append((records, tasks_s))
            self._job_s = self._job_s if job_s is None else max(JOB_S, job_s - tasks_s)

    def fits(self, records: int) -> bool:
        """Return whether an epoch with this many records is small. False until an epoch with records has run."""
        return 0 < records <= self._records_max and bool(self._recent) and self._predicted_s(records) <= self._job_s

    def _predicted_s(self, records: int) -> float:
        """Predict the time of an epoch from the largest of the last epochs, because the time of a very small epoch is
        mostly fixed."""
        most, seconds = max(self._recent)
        return seconds * max(1.0, records / most)


class SmallEpochs:
    """Runs small epochs in the resident worker, and leaves the others to Spark."""

    def __init__(self, worker: ResidentWorker, task: Task, layout: EpochLayout, records_max: int) -> None:
        self._worker = worker
        self._layout = layout
        self._limit = SmallEpochLimit(records_max)
        worker.load(task)

    def run(self, epoch: int) -> list[RoutedManifest] | None:
        """Run the epoch in the worker. Return None if Spark must run it."""
        try:
            first, pieces = self._layout.ranges(epoch)
        except OSError:  # Spark has the offsets in memory, and will report the error of the disk
            return None
        if not self._limit.fits(sum(piece.last - piece.first for piece in pieces)):
            return None
        return self._worker.run(epoch, first, pieces)

    def observe(self, manifests: Sequence[Manifest], job_s: float | None) -> None:
        """Record an epoch. `job_s` is the time of its Spark job, if it had one."""
        records = sum(found.last - found.first for found in manifests if found.stage == FIRST_CHAIN)
        self._limit.observe(records, sum(sum(found.spent_s) for found in manifests), job_s)
