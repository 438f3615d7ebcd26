"""The end of input: where in the sequence the input of a stage has ended.

The one rule: an end is a function of the sequence alone. It is at the end of the stream with which all streams of the
stage's sources have ended. Every task learns from every task before it what the log says about streams (`Change`), and
tracks it from epoch to epoch on its own. So all tasks find the same ends, with or without records of their own. Uses
the log, as `Listening` reads it, and the graph; used by `operators/chain`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from procession.errors import PlanError
from procession.operators.stage_rows import Numbers
from procession.planner.graph import Graph, Kind, Node

NO_STREAM = -1
NO_TIME = -(2**63)

BEYOND = 2**63 - 2**20
"""What an end lets a stage fire stands, by this and the number of the stage, behind all else at that place."""

ENDS = b"e"
"""Under this name a stage's states have the streams that it follows."""


class Change(NamedTuple):
    """What the log tells of a stream at this place: it goes on (again), or has ended. `time` is the greatest event time
    that was seen before, as far as the task knows."""

    sequence: int
    stream: int
    is_end: bool
    time: int


class Listening:
    """What a task that reads a range of the log has to tell of its streams."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._time = NO_TIME
        self._changes: list[Change] = []
        self._last = -1

    def add(self, rows: pa.RecordBatch, numbers: Numbers, is_end: npt.NDArray[np.bool_]) -> None:
        """These rows of the log, with their sequence numbers, and which of them are ends of streams."""
        streams, times = rows.column("stream_id").to_numpy(), rows.column("event_time").to_numpy()
        start = 0
        for end in [*np.flatnonzero(is_end).tolist(), len(numbers)]:
            self._go_on(streams[start:end], times[start:end], numbers[start:end])
            if end < len(numbers):
                stream = int(streams[end])
                self._open.discard(stream)
                self._changes.append(Change(int(numbers[end]), stream, True, self._time))
            start = end + 1
        self._last = int(numbers[-1]) if len(numbers) else self._last

    def _go_on(self, streams: Any, times: Any, numbers: Numbers) -> None:
        if not len(streams):
            return
        is_one = bool((streams == streams[0]).all())
        firsts = [0] if is_one else np.sort(np.unique(streams, return_index=True)[1]).tolist()
        for row in firsts:
            if (stream := int(streams[row])) not in self._open:
                self._open.add(stream)
                self._changes.append(Change(int(numbers[row]), stream, False, self._time))
        self._time = max(self._time, int(times.max()))

    @property
    def changes(self) -> tuple[Change, ...]:
        """All that is to be told, in order."""
        if self._time == NO_TIME:
            return tuple(self._changes)
        return (*self._changes, Change(self._last, NO_STREAM, False, self._time))


class End(NamedTuple):
    """The end of a stage's input: its place in the sequence, the stream that was the last to end, and the greatest
    event time of all records before it."""

    sequence: int
    stream: int
    time: int


@dataclass(frozen=True)
class Ending:
    """What must have ended before a stage's input has: all streams of these sources that have begun, and `awaited`
    even if they have not."""

    sources: tuple[str, ...]
    awaited: frozenset[int] = frozenset()
    only: frozenset[int] | None = None
    """The streams of these sources; None: all that are not the `others`."""
    others: frozenset[int] = field(default=frozenset())

    def takes(self, stream: int) -> bool:
        return stream in self.only if self.only is not None else stream not in self.others

    def follow(self, mark: dict[str, Any], changes: Iterable[Change]) -> list[End]:
        """The ends among these changes. `mark` is what was known before them, and is brought up to date."""
        ends: list[End] = []
        for change in changes:
            mark["time"] = max(mark["time"], change.time)
            if change.stream == NO_STREAM or not self.takes(change.stream):
                continue
            if not change.is_end:
                mark["open"][change.stream] = True
                mark["ended"].pop(change.stream, None)
                mark["is_over"] = False
                continue
            mark["open"].pop(change.stream, None)
            if change.stream in self.awaited:
                mark["ended"][change.stream] = True
            if not mark["is_over"] and not mark["open"] and self.awaited <= mark["ended"].keys():
                mark["is_over"] = True
                ends.append(End(change.sequence, change.stream, max(0, mark["time"])))
        return ends


def new_mark() -> dict[str, Any]:
    """Of no stream anything is known."""
    return {"open": {}, "ended": {}, "is_over": False, "time": NO_TIME}


def find_endings(graph: Graph) -> Mapping[int, Ending]:
    """The stages that an end makes fire, and what must have ended for each. Raises PlanError for a stage that waits for
    the end of a source that has none."""
    endings = {}
    for index, node in enumerate(graph.nodes):
        if node.stateful is None or not node.stateful.heeds_ends:
            continue
        sources = sources_before(graph, index)
        endless = [source.name for source in sources if not source.ends]
        if not endless:
            endings[index] = ending_of(graph, sources)
        elif node.stateful.needs_ends:
            raise PlanError(
                f"stage {node.name!r} gives its result when its input has ended, and source {endless[0]!r} never ends",
                next_step=f"if it does, say source({endless[0]!r}, ends=True), or run it with --input FILE; otherwise"
                " put records together in windows, as window(…), which fire as time goes on",
                stage=node.name,
            )
    return endings


def sources_before(graph: Graph, index: int) -> list[Node]:
    """The sources whose records come to a stage."""
    found = {index}
    for one in range(index, -1, -1):
        if one in found:
            found |= set(graph.nodes[one].parents)
    return [graph.nodes[one] for one in found if graph.nodes[one].kind is Kind.SOURCE]


def ending_of(graph: Graph, sources: list[Node]) -> Ending:
    """What must have ended before these sources have."""
    names = tuple(source.name for source in sources)
    awaited: frozenset[int] = frozenset().union(*(source.awaited for source in sources))
    if all(source.streams is not None for source in sources):
        return Ending(names, awaited, frozenset().union(*(source.streams or () for source in sources)))
    others = [source.streams or frozenset() for source in graph.sources if source not in sources]
    return Ending(names, awaited, None, frozenset().union(*others))
