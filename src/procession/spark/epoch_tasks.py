"""Runs the tasks of an epoch, and determines the log range that each task of the first chain reads.

Invariant: nothing here depends on where a task runs. Spark's workers call it through `spark/log_source` and
`spark/exchange`; `spark/resident_worker` and `testing/in_process` call it in one process. Input and output are the
envelopes of `spark/manifest_routing`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain as flatten

from procession.spark.manifest_routing import (
    RoutedManifest,
    addressed,
    attempts_digest,
    changes_in,
    is_shared,
    loaded,
    opened,
    sent,
    slots,
    unloaded,
)
from procession.spark.tasks import Attempt, Task
from procession.storage.log_ranges import LogLocation, LogOffset, LogRange, cut, epoch_ranges, numbered_from
from procession.storage.run_store import Manifest


@dataclass
class Range:
    """The records with the numbers [first, last)."""

    number: int
    first: int
    last: int
    of: int = 1
    """Number of ranges in the epoch."""
    pieces: tuple[LogRange, ...] = ()
    """The ranges of the gateways' logs that contain the records."""


def distribute(start: int, end: int, parallelism: int) -> list[Range]:
    """Split [start, end) into at most `parallelism` contiguous ranges of nearly equal size.

    Ranges are empty only in an empty epoch: the first epoch of a pipeline is empty, and starts the workers."""
    count = min(parallelism, end - start) or parallelism
    edges = [start + (end - start) * number // count for number in range(count + 1)]
    return [Range(number, edges[number], edges[number + 1], count) for number in range(count)]


def ranges_of(
    task: Task,
    starts: Mapping[str, int],
    ends: Mapping[str, int],
    places: Mapping[str, LogLocation],
    parallelism: int,
    offered: Mapping[str, LogOffset] | None = None,
) -> list[Range]:
    """Return the range of each task of the first chain, in an epoch with these start and end offsets per gateway.
    `offered` has the log locations to which the end offsets belong."""
    return split(task, numbered_from(starts), list(epoch_ranges(starts, ends, places, offered)), parallelism)


def split(task: Task, first: int, pieces: Sequence[LogRange], parallelism: int) -> list[Range]:
    """Split these log ranges among the tasks of the first chain. `first` is the number of their first row."""
    ranges = distribute(first, first + sum(piece.last - piece.first for piece in pieces), parallelism)
    edges = [0, *(task_range.last - first for task_range in ranges)]
    distributed = task.row_ranges(pieces, edges) if task.is_interleaved(pieces) else cut(pieces, edges)
    for task_range, task_pieces in zip(ranges, distributed, strict=True):
        task_range.pieces = task_pieces
    return ranges


def run_first(task: Task, attempt: Attempt, task_range: Range) -> Iterator[RoutedManifest]:
    """Run the first chain on this range. Return the envelopes that it sends."""
    store = task.store()
    manifest = task.run_range(attempt, task_range.first, task_range.last, store, task_range.pieces)
    return loaded(sent(task.plan, manifest, task_range.of), store)


def run_slot(
    task: Task, attempt: Attempt, level: int, slot: int, envelopes: Iterable[RoutedManifest]
) -> Iterator[RoutedManifest]:
    """Run the task in this slot of a level. Return the envelopes that it sends and those addressed to later levels."""
    plan, store = task.plan, task.store()
    passing: list[RoutedManifest] = []
    arrived: list[RoutedManifest] = []
    for envelope in envelopes:
        (passing if envelope.level > level else arrived).append(envelope)
    own_envelopes = opened(plan, level, slot, unloaded(arrived, store))
    del arrived  # free the memory, because the store now has the contents
    chain, bucket = slots(plan, level)[slot]
    attempt, tries = replace(attempt, partition=bucket), attempts_digest(own_envelopes)
    if any(envelope.is_failed for envelope in own_envelopes):
        made = Manifest(attempt.epoch, chain, bucket, 0, 0, attempt=attempt.number, inputs_digest=tries)
    else:
        runs = [envelope.run for envelope in own_envelopes if envelope.run is not None]
        made = task.run_bucket(attempt, chain, runs, store, tries, changes_in(own_envelopes))
    return flatten(passing, loaded(sent(plan, made, plan.chains[chain].tasks), store))


def run_tasks(task: Task, ranges: Iterable[Range], attempt: Callable[[int], Attempt]) -> list[RoutedManifest]:
    """Run all tasks of an epoch in this process, one after the other. Return the envelopes for the driver. `attempt`
    makes the attempt of each task from its partition."""
    plan = task.plan
    routed = [manifest for task_range in ranges for manifest in run_first(task, attempt(task_range.number), task_range)]
    for level in range(1, plan.levels):
        by_slot: dict[int, list[RoutedManifest]] = defaultdict(list)
        for manifest in routed:
            slot = addressed(plan, level, manifest)
            for number in range(slot, slot + (manifest.width if is_shared(level, manifest) else 1)):
                by_slot[number].append(manifest)
        routed = [
            manifest
            for slot in sorted(by_slot)
            for manifest in run_slot(task, attempt(slot), level, slot, by_slot[slot])
        ]
    return routed
