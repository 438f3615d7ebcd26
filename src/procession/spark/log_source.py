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
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from procession.spark.manifest_routing import SCHEMA, as_rows, loaded, sent
from procession.spark.session import TASK_FAILURES_MAX
from procession.spark.tasks import Attempt, Task
from procession.spark.trigger import Pace
from procession.storage.log_ranges import FIRST_GATEWAY, Piece, Place, cut, laid, numbered_from, sequences

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
        pieces = list(laid(starts, ends, self._feed.places()))
        first = numbered_from(starts)
        ranges = deal(first, numbered_from(ends), self._parallelism)
        if self._task.is_woven(pieces):
            edges = [0, *(one.last - first for one in ranges)]
            for one, own in zip(ranges, self._task.dealt(pieces, edges), strict=True):
                one.pieces = own
            return ranges
        for one in ranges:
            one.pieces = tuple(cut(pieces, one.first - first, one.last - first))
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        context = TaskContext.get()
        assert context is not None
        store, plan = self._task.store(), self._task.plan
        attempt = attempt_of(context, partition.number)
        manifest = self._task.run_range(attempt, partition.first, partition.last, store, partition.pieces)
        freeze_once()
        yield from as_rows(plan, 1, loaded(sent(plan, manifest, partition.of), store))


@dataclass
class Range(InputPartition):
    """The records with the numbers [first, last)."""

    number: int
    first: int
    last: int
    of: int = 1
    """How many ranges the epoch was dealt into."""
    pieces: tuple[Piece, ...] = ()
    """Where they are in the logs of the gateways."""


def deal(start: int, end: int, parallelism: int) -> list[Range]:
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
