"""`merged` gives a Python program the records of several lanes in one order.

Invariant: the records are those of the sequential run, in the same order, each once, unless a time-out passes over a
lane. Opens lanes by their URL; `sdk/lane_merge` merges them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from procession.errors import ConfigError
from procession.planner.connector_registry import check_installed, load, sink_of
from procession.sdk.lane_files import BUFFER_BYTES, LaneReader, OpenLanes, open_directory
from procession.sdk.lane_merge import POLL_S, LaneMerge, MergedBatch, MergeOptions, MergeReport
from procession.sdk.lane_shards import KeyShard


class MergedRecord(NamedTuple):
    """A record of a merger.

    Args:
        payload: The bytes of the record.
        key: The key, if the record has one.
        event_time_ns: The event time in nanoseconds since 1970, if the record has one.
        is_late: The record comes too late for its place in the order, because its lane was passed over.
    """

    payload: bytes
    key: bytes | None = None
    event_time_ns: int | None = None
    is_late: bool = False


class Merged:
    """The records of lanes, in order. Iterate only once. Returned by `merged`."""

    def __init__(self, merge: LaneMerge, stop: threading.Event) -> None:
        self._merge = merge
        self._stop = stop
        self._turns = merge.turns()

    def __iter__(self) -> Iterator[MergedRecord]:
        for batch in self.batches():
            columns = (batch.rows.column(place).to_pylist() for place in range(3))
            for row, (payload, key, event_time_ns) in enumerate(zip(*columns, strict=True)):
                yield MergedRecord(payload, key, event_time_ns, row < batch.late_rows)

    def batches(self) -> Iterator[MergedBatch]:
        """Iterate the records as Arrow batches with the columns `payload`, `key`, `event_time` and `order_…`. This
        costs about a hundredth of the iteration record by record."""
        for turn in self._turns:
            yield from turn

    def epochs(self) -> Iterator[list[MergedBatch]]:
        """Iterate whole epochs, each as a list of Arrow batches. Store `position` with your results of an epoch in one
        transaction, and pass it to the next `merged`. Then each record has its effect once."""
        for turn in self._turns:
            yield list(turn)

    @property
    def position(self) -> dict[str, Any]:
        """The position after the last epoch that was read to its end, as JSON."""
        return self._merge.position

    @property
    def report(self) -> MergeReport:
        """The progress of the merger, and the lanes that it waits for."""
        return self._merge.report

    def stop(self) -> None:
        """End the iteration after the current epoch. Any thread may call it."""
        self._stop.set()

    def close(self) -> None:
        self._merge.close()


def merged(
    *places: str | Path,
    follow: bool = False,
    timeout_s: float | None = None,
    verify: bool = False,
    shard: str | None = None,
    position: Mapping[str, Any] | None = None,
    instance: str | None = None,
    buffer_bytes: int = BUFFER_BYTES,
    poll_s: float = POLL_S,
) -> Merged:
    """Merge the lanes of a sink into the order of the sequential run.

    Args:
        places: Where the lanes are: "lanes:DIR" or a directory, or "kafka://HOST:PORT/TOPIC". Several, if the lanes of
            one sink are in several places.
        follow: Wait for more records until `stop` is called. Otherwise stop at the last epoch that all lanes have now.
        timeout_s: Pass over a lane that is silent for this time while other lanes have records. Its records are then
            late.
        verify: Check that each order key is greater than the previous key. Lost records are noticed without this check.
        shard: Emit only a part of the keys, in order: "0/4" is the first of four parts.
        position: The `position` of an earlier `merged` of these lanes.
        instance: PIPELINE-SINK, if several sinks write lanes to one directory.
        buffer_bytes: Maximum bytes in memory for all partitions of a topic. Above it, partitions that are ahead are
            paused. One epoch must always fit. Files need no buffer.
        poll_s: Seconds between polls of lanes that have nothing new.

    Returns:
        The records. Iterate them only once.

    Raises:
        ConfigError: The lanes do not belong together, or some are missing.

    Example:
        >>> import tempfile
        >>> list(merged(tempfile.mkdtemp()))
        []
    """
    stop = threading.Event()
    options = MergeOptions(
        is_following=follow,
        timeout_s=timeout_s,
        is_verifying=verify,
        shard=None if shard is None else KeyShard.parse(shard),
        poll_s=poll_s,
    )
    return Merged(LaneMerge(lanes_at(places, instance, buffer_bytes), options, position, stop=stop), stop)


def lanes_at(places: Sequence[str | Path], instance: str | None = None, buffer_bytes: int = BUFFER_BYTES) -> OpenLanes:
    """Return a function that opens the lanes at all of these places."""
    if not places:
        raise ConfigError("no lanes are given", next_step="name the directory or topic of a sink with lanes")
    openers = [_opener(place, instance, buffer_bytes) for place in places]

    def opened(at: Mapping[str, int]) -> list[LaneReader]:
        return [lane for opener in openers for lane in opener(at)]

    return opened


def _opener(place: str | Path, instance: str | None, buffer_bytes: int) -> OpenLanes:
    if isinstance(place, Path) or Path(place).is_dir():
        return open_directory(Path(place), instance)
    connector, url = sink_of(place, "the merger")
    if connector.sink is None or not connector.sink.lanes:
        raise ConfigError(f"{connector.form} has no lanes", next_step="name lanes:DIR or kafka://HOST:PORT/TOPIC")
    check_installed(connector, "the merger")
    open_lanes: Callable[..., OpenLanes] = load(connector.sink.lanes)
    return open_lanes(url, instance, buffer_bytes=buffer_bytes)
