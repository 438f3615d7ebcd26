"""Finds the streams that a source takes: those that it names, those of its own connector, or all others. Pure.

Invariant: a stream belongs to one source. A source that reads a URL gets a share of the stream ids: its connector puts
the source's number above its own ids (`record.id_in_share`), so streams that are unknown before they begin, such as new
partitions of a topic, belong to the source, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from procession.record import SHARE_SHIFT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from procession.planner.graph import Graph, Node


@dataclass(frozen=True)
class StreamFilter:
    """The streams with these ids and in these shares; or, if `is_rest`, all other streams."""

    ids: frozenset[int] = frozenset()
    shares: frozenset[int] = frozenset()
    is_rest: bool = True

    def takes(self, stream: int) -> bool:
        return (stream in self.ids or stream >> SHARE_SHIFT in self.shares) != self.is_rest

    def mask(self, streams: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return which of these streams it takes."""
        found = np.isin(streams, np.array(sorted(self.ids), np.uint64))
        if self.shares:
            found |= np.isin(streams >> np.uint64(SHARE_SHIFT), np.array(sorted(self.shares), np.uint64))
        taken: npt.NDArray[np.bool_] = found != self.is_rest
        return taken

    @property
    def is_one(self) -> bool:
        """Whether it takes only one stream."""
        return not self.is_rest and not self.shares and len(self.ids) == 1


ALL = StreamFilter()


def streams_of(graph: Graph, sources: Iterable[Node]) -> StreamFilter:
    """Return the streams that these sources of the graph take together."""
    sources = list(sources)
    if sources and len(graph.sources) == 1 and graph.sources[0].streams is None:
        return ALL
    if not any(_is_rest(source) for source in sources):
        return StreamFilter(*_named(sources), is_rest=False)
    return StreamFilter(*_named(source for source in graph.sources if source not in sources), is_rest=True)


def _is_rest(source: Node) -> bool:
    return source.streams is None and source.share is None


def _named(sources: Iterable[Node]) -> tuple[frozenset[int], frozenset[int]]:
    ids: set[int] = set()
    shares: set[int] = set()
    for source in sources:
        ids |= source.streams or frozenset()
        shares |= set() if source.share is None else {source.share}
    return frozenset(ids), frozenset(shares)
