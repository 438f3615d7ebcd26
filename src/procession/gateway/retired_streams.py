"""Retired streams: the committed positions of streams that have been idle for long, outside of the snapshot. Pure.

Invariant: a stream is in the snapshot or in the file of retired streams; if it is in both, the snapshot is valid. The
file is on disk before a snapshot leaves the stream out. The snapshot names the file, its length and its checksum; bytes
after that length are ignored. `state` decides which streams are retired, `registry` looks up streams that return, and
`retired_file` writes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from procession.errors import StorageError
from procession.gateway.gateway_limits import Limits

HEADER = b"procession retired streams 1\n"
ENTRY = struct.Struct(">QQQ")
"""Stream id, committed message id, and time of retirement on the clock of the file."""

DEAD_ENTRIES_MAX = 65536
"""A file is rewritten when its obsolete entries outnumber its valid ones by more than this."""


PORTIONS = 16
"""The inverse share of streams that are dropped at once when the number or the age is over its limit. Dropping streams
rewrites the whole file, so they are dropped in portions."""


class Mark(NamedTuple):
    """The snapshot's reference to the file of retired streams."""

    number: int
    """Unique per file; part of the file name."""
    length: int
    checksum: int
    clock_s: int
    """Total running time of the gateway, as last recorded. It does not depend on the system clock, which may be set. So
    a stream is kept for at least its age, and longer by the downtime of the gateway."""


@dataclass(frozen=True, slots=True)
class Retiring:
    """Streams that the next snapshot omits, with their committed ids, and the bytes to write before it."""

    streams: Mapping[int, int]
    mark: Mark | None = None
    """The mark in the next snapshot. None: no bytes are written, because the leader keeps the streams."""
    position: int = 0
    data: bytes = b""


class RetiredStreams:
    def __init__(
        self,
        limits: Limits,
        mark: Mark | None = None,
        data: bytes = b"",
        kept: Container[int] = (),
        now: float = 0.0,
        epoch: int = -1,
    ) -> None:
        """`data` is the file, up to the mark's length. `kept` are the streams of the snapshot, which is of this
        `epoch`."""
        self._limits = limits
        self.mark = mark
        self._began_s = (mark.clock_s if mark is not None else 0) - now
        self._streams: dict[int, tuple[int, int]] = {}
        """The committed id and the time of retirement of each stream, the oldest first."""
        self._returning: set[int] = set()
        """Streams that are back in the registry, but possibly not in a snapshot yet."""
        self.forgetting: set[int] = set()
        """Streams that the next file omits. They stay known until that file is on disk. Otherwise a stream that returns
        and restarts its ids would find its old entry after a crash."""
        self.forgotten = 0
        """Number of streams dropped since the start, because of the limit or their age."""
        self._settled = -1
        self._first_epoch = epoch
        self._unsettled: dict[int, int] = {}
        """Streams that a repeated commit may still name, mapped to the epoch of their retirement, in this order.
        Streams from the file are not listed: a commit may name any of them until the first epoch is settled."""
        for stream_id, committed, at_s in entries(data):
            if stream_id not in kept:
                self._add(stream_id, committed, at_s, self._settled)

    def __len__(self) -> int:
        return len(self._streams)

    def committed(self, stream_id: int) -> int | None:
        found = self._streams.get(stream_id)
        return None if found is None else found[0]

    def returning(self, stream_id: int) -> int | None:
        """Return the committed id of a stream that goes back into the registry."""
        if stream_id in self._streams:
            self._returning.add(stream_id)
        return self.committed(stream_id)

    def returned(self, stream_ids: Iterable[int]) -> None:
        """Note that a snapshot with these streams is on disk."""
        if self._returning:
            there = self._returning.intersection(stream_ids)
            for stream_id in there:
                self._streams.pop(stream_id, None)
                self._unsettled.pop(stream_id, None)
            self._returning -= there

    def clock_s(self, now: float) -> int:
        return int(self._began_s + now)

    def marked(self, now: float) -> Mark | None:
        """Return the mark for a snapshot that retires no streams."""
        return None if self.mark is None else self.mark._replace(clock_s=self.clock_s(now))

    def forget(self, now: float, count: int, age_s_min: float) -> int:
        """Choose the streams to drop to make room for `count` more streams. Above the age limit, streams are dropped.
        Above the count limit, the oldest streams are dropped if they are at least `age_s_min` old. The next file omits
        them. Returns the room that is then available."""
        clock_s, left, most = self.clock_s(now), len(self), self._limits.streams_retired_max
        self.forgetting = set()
        kept_max = most - most // PORTIONS if left + count > most else most
        oldest_s = next(iter(self._streams.values()), (0, clock_s))[1]
        age_s = self._limits.streams_retired_age_s
        is_overdue = clock_s - oldest_s >= age_s + age_s / PORTIONS
        for stream_id, (_, at_s) in self._streams.items():
            is_old = is_overdue and clock_s - at_s >= age_s
            is_over = left + count > kept_max and clock_s - at_s >= age_s_min
            if self._settled < self._first_epoch or stream_id in self._unsettled or not (is_old or is_over):
                break
            if stream_id not in self._returning:
                self.forgetting.add(stream_id)
                left -= 1
        return max(0, most - left)

    def settle(self, epoch: int) -> None:
        """Note that no repeated commit names positions of epochs up to this epoch. Before that, a stream is not
        dropped, because a repeated commit would name an unknown stream."""
        self._settled = max(self._settled, epoch)
        while self._unsettled:
            stream_id, retired_at = next(iter(self._unsettled.items()))
            if retired_at > self._settled:
                return
            del self._unsettled[stream_id]

    def retiring(self, streams: Mapping[int, int], now: float) -> Retiring:
        """Return the bytes to write for these streams: an addition to the file, or a new file."""
        clock_s, mark = self.clock_s(now), self.mark
        added = b"".join(ENTRY.pack(stream_id, committed, clock_s) for stream_id, committed in streams.items())
        is_long = mark is not None and mark.length > len(HEADER) + ENTRY.size * (2 * len(self) + DEAD_ENTRIES_MAX)
        if mark is None or is_long or self.forgetting:
            data = HEADER + self._packed() + added
            number = 0 if mark is None else mark.number + 1
            return Retiring(streams, Mark(number, len(data), zlib.crc32(data), clock_s), 0, data)
        checksum = zlib.crc32(added, mark.checksum)
        return Retiring(streams, Mark(mark.number, mark.length + len(added), checksum, clock_s), mark.length, added)

    def _packed(self) -> bytes:
        kept = (item for item in self._streams.items() if item[0] not in self.forgetting)
        return b"".join(ENTRY.pack(stream_id, *entry) for stream_id, entry in kept)

    def retired(self, retiring: Retiring, epoch: int = -1) -> None:
        """Note that these streams are on disk, and that the snapshot of this epoch omits them."""
        assert retiring.mark is not None
        self.mark = retiring.mark
        for stream_id in self.forgetting:
            self._streams.pop(stream_id, None)
            self._unsettled.pop(stream_id, None)
            self._returning.discard(stream_id)
        self.forgotten += len(self.forgetting)
        self.forgetting = set()
        for stream_id, committed in retiring.streams.items():
            self._add(stream_id, committed, retiring.mark.clock_s, epoch)

    def _add(self, stream_id: int, committed: int, at_s: int, epoch: int) -> None:
        self._streams.pop(stream_id, None)
        self._streams[stream_id] = committed, at_s
        self._unsettled.pop(stream_id, None)
        if epoch > self._settled:
            self._unsettled[stream_id] = epoch


def entries(data: bytes) -> Iterable[tuple[int, int, int]]:
    """Yield the stream id, committed id and time of each entry. Raises ValueError if `data` is not a file of retired
    streams."""
    if data and not data.startswith(HEADER):
        raise ValueError("it does not begin as a file of retired streams of format 1")
    if data and (len(data) - len(HEADER)) % ENTRY.size:
        raise ValueError("it does not end where an entry ends")
    return ENTRY.iter_unpack(data[len(HEADER) :])


def checked(data: bytes, mark: Mark, error: Callable[[str], StorageError]) -> bytes:
    """Return `data` if it matches the mark's length and checksum. Otherwise raises the error with a reason."""
    if len(data) < mark.length:
        raise error(f"it has {len(data)} bytes, and {mark.length} were written")
    if zlib.crc32(data) != mark.checksum:
        raise error("its checksum is wrong")
    try:
        entries(data)
    except ValueError as why:
        raise error(str(why)) from why
    return data
