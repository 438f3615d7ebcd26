"""The end of input: where in the sequence the input of a stage has ended.

Invariant: an end depends only on the sequence. The input of a stage ends where the last open stream of its sources
ends. Every task gets the stream changes in the log (`StreamChange`) from all tasks before it, and tracks them from
epoch to epoch. So all tasks find the same ends, with or without records. `StreamChanges` reads the log; used by
`operators/chain`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from procession.errors import PlanError
from procession.operators.stage_rows import Numbers
from procession.planner.graph import Graph, Kind, Node
from procession.planner.source_streams import ALL, StreamFilter, streams_of

NO_STREAM = -1
NO_TIME = -(2**63)

BEYOND = 2**63 - 2**20
"""A number in the order key of an end's results, to which the number of the stage is added. They come after all other
results at that position."""

ENDS = b"e"
"""The name of the state in which a stage stores its knowledge about streams."""


class StreamChange(NamedTuple):
    """A stream begins (again) or ends at this position of the log. `time` is the greatest event time before it that the
    task knows."""

    sequence: int
    stream: int
    is_end: bool
    time: int


class StreamChanges:
    """The stream changes in the range of the log that a task reads."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._time = NO_TIME
        self._changes: list[StreamChange] = []
        self._last = -1

    def add(self, rows: pa.RecordBatch, numbers: Numbers, is_end: npt.NDArray[np.bool_]) -> None:
        """Add rows of the log, with their sequence numbers. `is_end` says which of them are ends of streams."""
        streams, times = rows.column("stream_id").to_numpy(), rows.column("event_time").to_numpy()
        start = 0
        for end in [*np.flatnonzero(is_end).tolist(), len(numbers)]:
            self._add_records(streams[start:end], times[start:end], numbers[start:end])
            if end < len(numbers):
                stream = int(streams[end])
                self._open.discard(stream)
                self._changes.append(StreamChange(int(numbers[end]), stream, True, self._time))
            start = end + 1
        self._last = int(numbers[-1]) if len(numbers) else self._last

    def _add_records(self, streams: Any, times: Any, numbers: Numbers) -> None:
        if not len(streams):
            return
        is_one = bool((streams == streams[0]).all())
        firsts = [0] if is_one else np.sort(np.unique(streams, return_index=True)[1]).tolist()
        for row in firsts:
            if (stream := int(streams[row])) not in self._open:
                self._open.add(stream)
                self._changes.append(StreamChange(int(numbers[row]), stream, False, self._time))
        self._time = max(self._time, int(times.max()))

    @property
    def changes(self) -> tuple[StreamChange, ...]:
        """All changes, in order. The last one only carries the greatest event time."""
        if self._time == NO_TIME:
            return tuple(self._changes)
        return (*self._changes, StreamChange(self._last, NO_STREAM, False, self._time))


class EndOfInput(NamedTuple):
    """The end of a stage's input: its position in the sequence, the stream that ended last, and the greatest event time
    of all earlier records."""

    sequence: int
    stream: int
    time: int


@dataclass(frozen=True)
class EndCondition:
    """The condition under which the input of a stage has ended: all streams of these sources that have begun have
    ended, and all `awaited` streams have, even if they have not begun."""

    sources: tuple[str, ...]
    awaited: frozenset[int] = frozenset()
    streams: StreamFilter = ALL
    """The streams of these sources."""

    def takes(self, stream: int) -> bool:
        return self.streams.takes(stream)

    def follow(self, mark: dict[str, Any], changes: Iterable[StreamChange]) -> list[EndOfInput]:
        """Return the ends among these changes. `mark` is the earlier state, and is updated."""
        ends: list[EndOfInput] = []
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
                ends.append(EndOfInput(change.sequence, change.stream, max(0, mark["time"])))
        return ends


def new_mark() -> dict[str, Any]:
    """Return the mark before the first change."""
    return {"open": {}, "ended": {}, "is_over": False, "time": NO_TIME}


def find_endings(graph: Graph) -> Mapping[int, EndCondition]:
    """Find the stages that fire at an end, and the condition of each. Raises PlanError if a stage needs the end of a
    source that never ends."""
    endings = {}
    for index, node in enumerate(graph.nodes):
        if node.operator is None or not node.operator.state.fires_at_end:
            continue
        sources = sources_before(graph, index)
        endless = [source.name for source in sources if not source.ends]
        if not endless:
            endings[index] = ending_of(graph, sources)
        elif node.operator.state.needs_end:
            raise PlanError(
                f"stage {node.name!r} emits its result when its input has ended, and source {endless[0]!r} never ends",
                next_step=f"if it does end, write source({endless[0]!r}, ends=True), or run with --input FILE;"
                " otherwise use windows, as window(…), which fire while the input goes on",
                stage=node.name,
            )
    return endings


def sources_before(graph: Graph, index: int) -> list[Node]:
    """Return the sources whose records reach a stage."""
    found = {index}
    for number in range(index, -1, -1):
        if number in found:
            found |= set(graph.nodes[number].parents)
    return [graph.nodes[number] for number in found if graph.nodes[number].kind is Kind.SOURCE]


def ending_of(graph: Graph, sources: list[Node]) -> EndCondition:
    """Return the condition under which these sources have ended."""
    names = tuple(source.name for source in sources)
    awaited: frozenset[int] = frozenset().union(*(source.awaited for source in sources))
    return EndCondition(names, awaited, streams_of(graph, sources))
