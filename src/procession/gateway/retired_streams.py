"""Retired streams: the committed positions of streams that have been idle for long, outside of the snapshot. Pure.

The one rule: a stream is in the snapshot or in the file of retired streams, and what is in both counts as the snapshot
says. The file is on disk before a snapshot leaves the stream out, and the snapshot says which file counts, how long it
is and its checksum: what is behind that was never relied on. Before it: `state` decides who is retired, and `registry`
asks for streams that come back. After it: `retired_file`, which writes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from procession.errors import StorageError
from procession.gateway.gateway_options import Limits

HEADER = b"procession retired streams 1\n"
ENTRY = struct.Struct(">QQQ")
"""Stream id, committed message id, and when it was retired, on the clock of the file."""

DEAD_ENTRIES_MAX = 65536
"""So many entries that count no more a file may have, and as many again as it has others; then it is written anew."""


class Mark(NamedTuple):
    """What the snapshot says of the file of retired streams."""

    number: int
    """Each file has another; it is part of its name."""
    length: int
    checksum: int
    clock_s: int
    """How long the gateway has run in all, as far as was written down. No clock of the machine is asked, which may be
    set: so a stream is kept for its age at least, and longer by the time that the gateway did not run."""


@dataclass(frozen=True, slots=True)
class Retiring:
    """Streams that the next snapshot leaves out, with their committed ids; and what to write for it before that."""

    streams: Mapping[int, int]
    mark: Mark | None = None
    """What the snapshot will say; None: nothing is written, the leader keeps them."""
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
    ) -> None:
        """`data` is the file, up to the length that the mark says; `kept` are the streams of the snapshot."""
        self._limits = limits
        self.mark = mark
        self._began_s = (mark.clock_s if mark is not None else 0) - now
        self._streams: dict[int, tuple[int, int]] = {}
        """Stream id to its committed id and when it was retired; the oldest first."""
        self._returning: set[int] = set()
        """Those that are in the registry again, and maybe not in the snapshot yet."""
        self.forgetting: set[int] = set()
        """Those that the next file leaves out. Until it is on disk they are known: who came back before, and began
        anew, would meet the old entry after a crash."""
        self.forgotten = 0
        """How many were forgotten since the start, for the limit or for their age."""
        for stream_id, committed, at_s in entries(data):
            if stream_id not in kept:
                self._add(stream_id, committed, at_s)

    def __len__(self) -> int:
        return len(self._streams)

    def committed(self, stream_id: int) -> int | None:
        found = self._streams.get(stream_id)
        return None if found is None else found[0]

    def returning(self, stream_id: int) -> int | None:
        """The stream goes into the registry again, with the committed id that this gives."""
        if stream_id in self._streams:
            self._returning.add(stream_id)
        return self.committed(stream_id)

    def returned(self, kept: Iterable[int]) -> None:
        """A snapshot is on disk that has these streams."""
        if self._returning:
            there = self._returning.intersection(kept)
            for stream_id in there:
                self._streams.pop(stream_id, None)
            self._returning -= there

    def clock_s(self, now: float) -> int:
        return int(self._began_s + now)

    def marked(self, now: float) -> Mark | None:
        """What a snapshot says that retires nobody."""
        return None if self.mark is None else self.mark._replace(clock_s=self.clock_s(now))

    def forget(self, now: float, count: int, age_s_min: float) -> int:
        """Make room for so many more: choose who is older than the age, and the oldest above the limit, if they are at
        least this old. They are forgotten with the next file. Gives how many there is room for then."""
        clock_s, limits = self.clock_s(now), self._limits
        left, self.forgetting = len(self), set()
        for stream_id, (_, at_s) in self._oldest(count, clock_s):
            is_old = clock_s - at_s >= limits.streams_retired_age_s
            is_over = left + count > limits.streams_retired_max and clock_s - at_s >= age_s_min
            if not is_old and not is_over:
                break
            if stream_id not in self._returning:
                self.forgetting.add(stream_id)
                left -= 1
        return max(0, limits.streams_retired_max - left)

    def _oldest(self, count: int, clock_s: int) -> Iterable[tuple[int, tuple[int, int]]]:
        """Those that may have to go; the first one tells most often that nobody has."""
        over = len(self) + count - self._limits.streams_retired_max
        for number, entry in enumerate(self._streams.items()):
            if number >= over and clock_s - entry[1][1] < self._limits.streams_retired_age_s:
                return
            yield entry

    def retiring(self, streams: Mapping[int, int], now: float) -> Retiring:
        """What to write for these streams: behind what is in the file, or a new file."""
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
        kept = (one for one in self._streams.items() if one[0] not in self.forgetting)
        return b"".join(ENTRY.pack(stream_id, *entry) for stream_id, entry in kept)

    def retired(self, retiring: Retiring) -> None:
        """They are on disk, and the snapshot has them no more."""
        assert retiring.mark is not None
        self.mark = retiring.mark
        for stream_id in self.forgetting:
            self._streams.pop(stream_id, None)
            self._returning.discard(stream_id)
        self.forgotten += len(self.forgetting)
        self.forgetting = set()
        for stream_id, committed in retiring.streams.items():
            self._add(stream_id, committed, retiring.mark.clock_s)

    def _add(self, stream_id: int, committed: int, at_s: int) -> None:
        self._streams.pop(stream_id, None)
        self._streams[stream_id] = committed, at_s


def entries(data: bytes) -> Iterable[tuple[int, int, int]]:
    """Stream id, committed id and time of each entry. ValueError if this is no such file."""
    if data and not data.startswith(HEADER):
        raise ValueError("it does not begin as a file of retired streams of format 1")
    if data and (len(data) - len(HEADER)) % ENTRY.size:
        raise ValueError("it does not end where an entry ends")
    return ENTRY.iter_unpack(data[len(HEADER) :])


def checked(data: bytes, mark: Mark, error: Callable[[str], StorageError]) -> bytes:
    """The bytes that the mark counts on; the error, with a reason, if they are not these."""
    if len(data) < mark.length:
        raise error(f"it has {len(data)} bytes, and {mark.length} were written")
    if zlib.crc32(data) != mark.checksum:
        raise error("its checksum is wrong")
    try:
        entries(data)
    except ValueError as why:
        raise error(str(why)) from why
    return data
