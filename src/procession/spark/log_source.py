"""The log source: the ingress log as a Spark stream, whose rows are the manifests of the first chain.

Invariant: offsets are sequence numbers, one per gateway, with the identity of its log (`storage/log_ranges`). Only
records that a gateway has on disk are offered. Partitions are contiguous ranges in order, so the order of partitions
is the order of records, and no merge is needed. The exception is event-time order over several gateways: there each
task merges the logs for its own range. `latestOffset` and `partitions` run in one helper process of the driver,
`read` in the workers. The helper passes errors to the JVM, and prints nothing when the JVM has closed the connection.
`spark/data_source` registers the source with Spark.

The trigger interval uses a monotonic clock. Spark's own trigger uses the time of day, and would wait for an hour if the
clock were set back by an hour. So Spark polls without an interval, and the reader waits for at most HOLD_S_MAX per
poll. `spark/epoch_size` limits an epoch by the duration of the last epochs.
"""

from __future__ import annotations

import functools
import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from procession.spark.epoch_size import EpochPace, EpochSize
from procession.spark.epoch_tasks import Range, ranges_of, run_first
from procession.spark.manifest_routing import as_rows
from procession.spark.tasks import Attempt, Task
from procession.storage.log_ranges import FIRST_GATEWAY, LogLocation, read_offsets, sequences

HOLD_S_MAX = 1.0
"""Maximum wait per poll, in seconds. Stopping a query may take this long."""
IDLE_S = 0.05
"""Time between two polls, in seconds, while there are no new records."""


class TriggerInterval:
    """The interval between the starts of two epochs."""

    def __init__(
        self,
        interval_s: float,
        *,
        now: Callable[[], float] = time.monotonic,
        hold: Callable[[float], None] = time.sleep,
    ) -> None:
        self._interval_s = interval_s
        self._now = now
        self._hold = hold
        self._due: float | None = None

    def is_due(self) -> bool:
        """Wait until the next epoch may begin. Return False if HOLD_S_MAX passes first; Spark then polls again."""
        if self._due is not None and (left_s := self._due - self._now()) > 0:
            self._hold(min(left_s, HOLD_S_MAX))
            if left_s > HOLD_S_MAX:
                return False
        self._due = self._now() + self._interval_s
        return True

    def found_nothing(self) -> None:
        """Delay the next poll by IDLE_S, because there are no new records."""
        self._due = self._now() + max(self._interval_s, IDLE_S)


BATCH_PROPERTY = "streaming.sql.batchId"


class EpochFeed(Protocol):
    """Offers the gateways' records to Spark's helper process, and limits the size of an epoch."""

    def next_ends(self, starts: Mapping[str, Any], records_max: int) -> dict[str, Any]:
        """Return the end offset of the next epoch at each gateway; `starts` itself if there are no new records.

        The epoch has at most `records_max` records, or fewer if its size is limited otherwise. A gateway that is not in
        `starts` starts at 0. A gateway that was once in the offsets stays there."""

    def places(self) -> Mapping[str, LogLocation]:
        """Return the log location of every gateway that is or was ever in the offsets."""


class Ranges(DataSourceStreamReader):
    """Assigns contiguous ranges of sequence numbers to partitions."""

    def __init__(
        self,
        task: Task,
        feed: EpochFeed,
        parallelism: int,
        pace: EpochPace,
        *,
        now: Callable[[], float] = time.monotonic,
        hold: Callable[[float], None] = time.sleep,
    ) -> None:
        self._now = now
        self._task = task
        self._feed = feed
        self._parallelism = parallelism
        self._trigger = TriggerInterval(pace.interval_s, now=now, hold=hold)
        self._size = EpochSize(pace.target_s, pace.small_records_max)
        self._offered: tuple[int, float] | None = None
        """The number of records of the last epoch and the time of its offer, until Spark asks for the next one."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        end_silently_with_jvm()
        return {FIRST_GATEWAY: 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        end_silently_with_jvm()
        if self._offered is not None:
            records, offered_at = self._offered
            self._size.observe(records, self._now() - offered_at)
            self._offered = None
        if not self._trigger.is_due():
            return start
        ends = self._feed.next_ends(start, self._size.records_max)
        before, after = sequences(start), sequences(ends)
        if records := sum(end - before.get(name, 0) for name, end in after.items()):
            self._offered = records, self._now()
        else:
            self._trigger.found_nothing()
        return ends

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        starts, ends = sequences(start), sequences(end)
        ranges = ranges_of(self._task, starts, ends, self._feed.places(), self._parallelism, read_offsets(end))
        return [InputPartition(task_range) for task_range in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task_range: Range = partition.value
        context = TaskContext.get()
        assert context is not None
        envelopes = run_first(self._task, attempt_of(context, self._task, task_range.number), task_range)
        freeze_once()
        yield from as_rows(self._task.plan, 1, envelopes)


def attempt_of(context: TaskContext, task: Task, partition: int) -> Attempt:
    """Return the current task attempt, as Spark counts it."""
    epoch = int(context.getLocalProperty(BATCH_PROPERTY) or "")  # if missing, an error, not epoch 0
    is_last = context.attemptNumber() + 1 >= task.failures_max
    return Attempt(epoch, partition, context.taskAttemptId(), is_last)


@functools.cache
def freeze_once() -> None:
    """Exclude long-lived objects from garbage collection, which Spark runs after every task."""
    gc.freeze()


@functools.cache
def end_silently_with_jvm() -> None:
    """Let the helper process end without a traceback when the JVM has closed the connection.

    The driver stops the query, or dies, while the helper works on its reply. PySpark then fails to send the reply, or
    the error of a replaced driver, and Python would print the traceback of both to the driver's log."""
    sys.excepthook = _report_unless_closed


def _report_unless_closed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, ConnectionError):
        sys.__excepthook__(kind, error, trace)
