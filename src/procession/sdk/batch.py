"""What a source's author hands over: streams, and batches of their records as columns.

The one rule: message ids increase strictly within a stream, and are the same each time the stream is read. Before it
on the walk: the author's Source. After it: sdk/feed sends batches, many frames at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream's id, which must be unique in the whole pipeline, and its name, for people."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one stream. No `keys` means that every key is empty."""

    message_ids: npt.NDArray[np.uint64]
    event_times: npt.NDArray[np.int64]
    payloads: pa.Array
    keys: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.payloads)

    def slice(self, start: int, count: int) -> Batch:
        return Batch(
            self.message_ids[start : start + count],
            self.event_times[start : start + count],
            self.payloads.slice(start, count),
            None if self.keys is None else self.keys.slice(start, count),
        )

    def stamped(self, now_ns: int) -> Batch:
        """The same records, with `now_ns` as the time of each event."""
        return replace(self, event_times=np.full(len(self), now_ns, np.int64))


class Source(Protocol):
    """What a source's author writes."""

    def streams(self) -> Iterable[StreamInfo]:
        """Every stream there is to send."""

    def read(self, stream: StreamInfo, after: int | None) -> Iterator[Batch] | AsyncIterator[Batch]:
        """The stream's records after message id `after`, which is committed already; all of them if None."""
