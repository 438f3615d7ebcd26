"""The inputs of a stage, over which its watermark is the minimum.

Invariant: if a source ends, each of its streams is an input until the stream has ended. Any other source is one input,
and so is a preceding stage that fires its own results. The inputs follow from the graph and from the stream changes in
the log (`StreamChange`), so they are a function of the sequence. Computed for `planner/rules`; used by
`operators/watermark`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from procession.operators.end_of_input import (
    NO_STREAM,
    NO_TIME,
    EndCondition,
    StreamChange,
    ending_of,
    new_mark,
    sources_before,
)
from procession.planner.graph import Graph, Kind
from procession.planner.source_streams import streams_of

Ids = npt.NDArray[np.uint64]


def number_of(index: int) -> int:
    """Return the number of a source or stage that is one input, or the index for such a number. Streams have their
    ids."""
    return 2**64 - 1 - index


class InputChange(NamedTuple):
    """Inputs of a stage begin or end at this position of the sequence. `stream` is the stream that caused the change,
    `time` the greatest event time before it."""

    sequence: int
    stream: int
    time: int
    is_end: bool
    begins: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True)
class StageInputs:
    """The inputs of one stage. Each stream of `sources` is a separate input. Each of `wholes` is one input, with the
    condition of its end (None: it never ends)."""

    sources: Mapping[int, EndCondition]
    wholes: Mapping[int, EndCondition | None]

    @property
    def is_one(self) -> bool:
        """Whether there is always only one input."""
        if not self.sources:
            return len(self.wholes) < 2
        (first, *others) = self.sources.values()
        return not others and not self.wholes and first.streams.is_one

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources that the stage waits for."""
        return tuple(name for ending in self.sources.values() for name in ending.sources)

    def held(self, mark: Mapping[str, Any]) -> set[int]:
        """Return the inputs that have not ended. A source without any stream so far counts as one input."""
        found = {number for number in self.wholes if not mark["wholes"].get(number, {}).get("is_over")}
        for number, ending in self.sources.items():
            open_now = {stream for stream in mark["open"] if ending.takes(stream)}
            awaited = ending.awaited - mark["ended"].keys()
            found |= open_now | awaited
            if not ending.awaited and number not in mark["begun"]:
                found.add(number)
        return found

    def follow(self, mark: dict[str, Any], changes: Iterable[StreamChange]) -> list[InputChange]:
        """Return the changes of inputs that these changes of streams cause. `mark` is the earlier state, and is
        updated."""
        turns = []
        for change in changes:
            mark["time"] = max(mark["time"], change.time)
            if change.stream == NO_STREAM:
                continue
            begins, ends = self._of_streams(mark, change)
            for number, ending in self.wholes.items():
                if ending is None:
                    continue
                progress = mark["wholes"].setdefault(number, new_mark())
                was_over = progress["is_over"]
                ends += [number] * len(ending.follow(progress, [change]))
                begins += [number] * (was_over and not progress["is_over"])
            if begins or ends:
                time = max(0, mark["time"])
                turns.append(
                    InputChange(change.sequence, change.stream, time, change.is_end, tuple(begins), tuple(ends))
                )
        return turns

    def _of_streams(self, mark: dict[str, Any], change: StreamChange) -> tuple[list[int], list[int]]:
        stream = change.stream
        for number, ending in self.sources.items():
            if not ending.takes(stream):
                continue
            mark["begun"][number] = True
            if change.is_end:
                mark["open"].pop(stream, None)
                if stream in ending.awaited:
                    mark["ended"][stream] = True
                return [], [stream, number]
            if stream in mark["open"]:
                return [], []
            mark["open"][stream] = True
            mark["ended"].pop(stream, None)
            return [stream], [number]
        return [], []


def inputs_of(graph: Graph, index: int, origins: Mapping[int, int | None]) -> StageInputs:
    """Return the inputs of a stage. `origins` has the exchanges, each with the input of all records after it, if there
    is only one."""
    sources: dict[int, EndCondition] = {}
    wholes: dict[int, EndCondition | None] = {}
    open_ends = [index]
    while open_ends:
        for parent in graph.nodes[open_ends.pop()].parents:
            node = graph.nodes[parent]
            origin = number_of(parent) if node.kind is Kind.SOURCE else origins.get(parent)
            if origin is None:
                open_ends.append(parent)
                continue
            before = sources_before(graph, number_of(origin))
            ending = ending_of(graph, before) if all(source.ends for source in before) else None
            if node.kind is Kind.SOURCE and ending is not None:
                sources[origin] = ending
            else:
                wholes[origin] = ending
    return StageInputs(sources, wholes)


def unknown() -> dict[str, Any]:
    """Return the mark before the first change."""
    return {"open": {}, "ended": {}, "begun": {}, "wholes": {}, "time": NO_TIME, "steps": {}}


def input_ids(graph: Graph, streams: Ids) -> Ids:
    """Return the inputs of records of these streams, as they come from the sources."""
    ids = streams
    for index, source in enumerate(graph.nodes):
        if source.kind is not Kind.SOURCE or source.ends:
            continue
        ids = np.where(streams_of(graph, [source]).mask(streams), np.uint64(number_of(index)), ids)
    return ids
