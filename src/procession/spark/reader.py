"""The reader: the ingress log as a Spark stream of parcels, which hold the manifests of the first chain.

The one rule: offsets are sequence numbers, and only what the gateway has on disk is offered; partitions are
contiguous ranges in order, so partition order is record order and nothing has to be merged. `latestOffset` and
`partitions` live in one helper process of the driver, `read` in the workers. Before it the gateway, after it
`spark/exchange` and `spark/query`.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from procession.spark.chains import Attempt, Task
from procession.spark.parcels import SCHEMA, as_rows, loaded, sent
from procession.spark.session import TASK_FAILURES_MAX

FORMAT = "procession"
GATEWAY = "gateway-0"
BATCH_PROPERTY = "streaming.sql.batchId"


class Feed(Protocol):
    """What offers records: the gateway, seen from Spark's helper process. It limits what one epoch takes."""

    def next_end(self, start: int) -> int:
        """The end of the next epoch that starts at this sequence number; `start` itself if there is nothing."""


class Ranges(DataSourceStreamReader):
    """Deals contiguous ranges of sequence numbers to partitions."""

    def __init__(self, task: Task, feed: Feed, parallelism: int) -> None:
        self._task = task
        self._feed = feed
        self._parallelism = parallelism

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  (Spark's name)
        return {GATEWAY: 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802  (Spark's name)
        return {GATEWAY: self._feed.next_end(start[GATEWAY])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return deal(start[GATEWAY], end[GATEWAY], self._parallelism)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        context = TaskContext.get()
        assert context is not None
        store, plan = self._task.store(), self._task.plan
        attempt = attempt_of(context, partition.number)
        manifest = self._task.run_range(attempt, partition.first, partition.last, store)
        freeze_once()
        yield from as_rows(plan, 1, loaded(sent(plan, manifest, partition.of), store))


@dataclass
class Range(InputPartition):
    """The records with sequence numbers in [first, last)."""

    number: int
    first: int
    last: int
    of: int = 1
    """How many ranges the epoch was dealt into."""


def deal(start: int, end: int, parallelism: int) -> list[InputPartition]:
    """At most `parallelism` contiguous ranges of nearly one size, none of them empty unless all are: the first epoch of
    a pipeline is, and starts the workers."""
    count = min(parallelism, end - start) or parallelism
    edges = [start + (end - start) * number // count for number in range(count + 1)]
    return [Range(number, edges[number], edges[number + 1], count) for number in range(count)]


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

    ranges: ClassVar[tuple[Task, Feed, int]]

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @classmethod
    def bound(cls, task: Task, feed: Feed, parallelism: int) -> type[IngressSource]:
        return type("BoundIngressSource", (cls,), {"ranges": (task, feed, parallelism)})

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        return Ranges(*self.ranges)
