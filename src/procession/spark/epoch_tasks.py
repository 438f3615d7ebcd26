"""The tasks of an epoch: the range of the log that each first task reads, and the work of every later task.

The one rule: nothing here knows where a task runs. Spark's workers call it from `spark/log_source` and
`spark/exchange`; `testing/in_process` calls it in one process. Parcels in, parcels out (`spark/manifest_routing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain as flatten

from procession.spark.manifest_routing import Parcel, changes_in, heard, loaded, opened, sent, slots, unloaded
from procession.spark.tasks import Attempt, Task
from procession.storage.log_ranges import Piece, Place, cut, laid, numbered_from
from procession.storage.run_store import Manifest


@dataclass
class Range:
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


def ranges_of(
    task: Task, starts: Mapping[str, int], ends: Mapping[str, int], places: Mapping[str, Place], parallelism: int
) -> list[Range]:
    """What each task of the first chain reads in an epoch that begins and ends here in the logs of the gateways."""
    pieces = list(laid(starts, ends, places))
    first = numbered_from(starts)
    ranges = deal(first, numbered_from(ends), parallelism)
    if task.is_woven(pieces):
        edges = [0, *(one.last - first for one in ranges)]
        for one, own in zip(ranges, task.dealt(pieces, edges), strict=True):
            one.pieces = own
        return ranges
    for one in ranges:
        one.pieces = tuple(cut(pieces, one.first - first, one.last - first))
    return ranges


def run_first(task: Task, attempt: Attempt, one: Range) -> Iterator[Parcel]:
    """Run the first chain on this range; gives what it sends."""
    store = task.store()
    manifest = task.run_range(attempt, one.first, one.last, store, one.pieces)
    return loaded(sent(task.plan, manifest, one.of), store)


def run_slot(task: Task, attempt: Attempt, level: int, slot: int, parcels: Iterable[Parcel]) -> Iterator[Parcel]:
    """Run the task in this slot of a level; gives what it sends, and those of the parcels that only pass through."""
    plan, store = task.plan, task.store()
    passing: list[Parcel] = []
    own: list[Parcel] = []
    for parcel in parcels:
        (passing if parcel.level > level else own).append(parcel)
    mine = opened(plan, level, slot, unloaded(own, store))
    del own  # what they hold is in the store
    chain, bucket = slots(plan, level)[slot]
    attempt, tries = replace(attempt, partition=bucket), heard(mine)
    if any(parcel.is_failed for parcel in mine):
        made = Manifest(attempt.epoch, chain, bucket, 0, 0, attempt=attempt.number, heard=tries)
    else:
        runs = [parcel.run for parcel in mine if parcel.run is not None]
        made = task.run_bucket(attempt, chain, runs, store, tries, changes_in(mine))
    return flatten(passing, loaded(sent(plan, made, plan.chains[chain].tasks), store))
