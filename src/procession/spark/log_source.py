"""The log source: the ingress log as a Spark stream, whose rows are the manifests of the first chain.

The one rule: offsets are sequence numbers, one for each gateway, with what tells its log from another one
(`storage/log_ranges`), and only what a gateway has on disk is offered;
partitions are contiguous ranges in order, so partition order is record order and nothing has to be merged, but for the
logs of several gateways in the order of event time, which each task weaves for its own range.
`latestOffset` and `partitions` live in one helper process of the driver, `read` in the workers. Before it the gateways,
after it `spark/exchange` and `spark/query`.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from procession.spark.epoch_tasks import Range, ranges_of, run_first
from procession.spark.manifest_routing import SCHEMA, as_rows
from procession.spark.session import TASK_FAILURES_MAX
from procession.spark.tasks import Attempt, Task
from procession.spark.trigger import Pace
from procession.storage.log_ranges import FIRST_GATEWAY, Place, sequences

FORMAT = "procession"
BATCH_PROPERTY = "streaming.sql.batchId"


class Feed(Protocol):
    """What offers records: the gateways, seen from Spark's helper process. It limits what one epoch takes."""

    def next_ends(self, starts: Mapping[str, Any]) -> dict[str, Any]:
        """Where the next epoch ends at each gateway, if it starts there; what it starts with if there is nothing.
        A gateway that is not named yet starts at 0, and one that was named is named for ever."""

    def places(self) -> Mapping[str, Place]:
        """Where the log of each gateway is that was ever named."""


class Ranges(DataSourceStreamReader):
    """Deals contiguous ranges of sequence numbers to partitions."""

    def __init__(self, task: Task, feed: Feed, parallelism: int, interval_s: float) -> None:
        self._task = task
        self._feed = feed
        self._parallelism = parallelism
        self._pace = Pace(interval_s)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        return {FIRST_GATEWAY: 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        return self._feed.next_ends(start) if self._pace.is_due() else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        starts, ends = sequences(start), sequences(end)
        ranges = ranges_of(self._task, starts, ends, self._feed.places(), self._parallelism)
        return [InputPartition(one) for one in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        one: Range = partition.value
        context = TaskContext.get()
        assert context is not None
        parcels = run_first(self._task, attempt_of(context, one.number), one)
        freeze_once()
        yield from as_rows(self._task.plan, 1, parcels)


def attempt_of(context: TaskContext, partition: int) -> Attempt:
    """This try at a task, as Spark counts it."""
    epoch = int(context.getLocalProperty(BATCH_PROPERTY) or "")  # none is an error, and must not pass for 0
    is_last = context.attemptNumber() + 1 >= TASK_FAILURES_MAX
    return Attempt(epoch, partition, context.taskAttemptId(), is_last)


@functools.cache
def freeze_once() -> None:
    """Spark collects garbage after every task; what lives as long as the worker need not be looked at again."""
    gc.freeze()


class IngressSource(DataSource):
    """The data source. `bound` makes the class that a session registers, with what its workers need inside."""

    ranges: ClassVar[tuple[Task, Feed, int, float]]

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @classmethod
    def bound(cls, task: Task, feed: Feed, parallelism: int, interval_s: float) -> type[IngressSource]:
        return type("BoundIngressSource", (cls,), {"ranges": (task, feed, parallelism, interval_s)})

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        return Ranges(*self.ranges)
