"""Lanes in files: reads the committed part of DIR/<instance>.lane, which its transaction log defines.

Invariant: only committed bytes are read, whole epochs at a time, in order. An epoch of a lane ends with its frontier.
Files are memory-mapped, so a lane of any length needs the memory of one block. `connectors/lane_sink` writes the files;
`sdk/lane_merge` merges them.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa

from procession.errors import ConfigError, RemoteProtocolError, StorageError
from procession.format_number import check_format
from procession.merge.lane_order import NOTHING
from procession.planner.connector_url import ConnectorUrl
from procession.runtime.host_files import HOST_FILES
from procession.sdk.transaction_log import TransactionTail
from procession.storage.durable import read_if_there, storage_error, write_durably
from procession.wire.lane_blocks import (
    BlockKind,
    Frontier,
    LaneIdentity,
    LaneRecords,
    block_edges,
    decode_blocks,
)

LANE_SUFFIX = ".lane"
ROLLBACKS_SUFFIX = ".rollbacks"
"""The file next to a lane that lists the epochs that were rolled back."""
ROLLBACKS_FORMAT = 1
BUFFER_BYTES = 256 * 1024 * 1024
"""Default limit of the bytes in memory over all lanes of a queue. Above it, lanes that have a whole epoch are
paused."""
EPOCHS_AHEAD_MAX = 256
"""Maximum number of unmerged epochs whose positions are in memory."""

OpenLanes = Callable[[Mapping[str, int]], "Sequence[LaneReader]"]
"""Opens the existing lanes. The argument maps names of lanes to positions; other lanes open at their start."""

_INSTANCE = re.compile(r"(.+)-([0-9]+)")


class LaneReader(Protocol):
    """Reads a lane, epoch by epoch. Implemented on files in this module; a queue with partitions can implement it,
    too."""

    name: str
    """The lane's name in messages to people."""
    merged: int
    """The last epoch that the merger has emitted. A lane from which this epoch was removed since is refused."""

    @property
    def identity(self) -> LaneIdentity | None:
        """The output that the lane is part of. None: unknown before the first epoch."""

    @property
    def position(self) -> int:
        """The position after the last epoch that was read completely. A reader that starts there continues."""

    def poll(self) -> int | None:
        """Return the next epoch that can be read. None: there is none so far."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the records of that epoch. At the end of the iteration, the lane is positioned after the epoch."""

    @property
    def frontier(self) -> Frontier | None:
        """The frontier of the last epoch that was read."""

    def close(self) -> None: ...


class _EpochPart(NamedTuple):
    start: int
    end: int
    frontier: Frontier


class FileLane:
    """A lane in a file, read from a given position."""

    def __init__(self, path: Path, position: int = 0) -> None:
        self.name = path.stem
        self.frontier: Frontier | None = None
        self.merged = NOTHING
        self._path = path
        self._rollbacks: list[TakenBack] = []
        self._rollbacks_at_ns: int | None = None
        self._log = TransactionTail(path.with_suffix(".txnlog"))
        self._scanned = self._position = position
        self._committed_end = 0
        self._parts: deque[_EpochPart] = deque()
        self._map: pa.Buffer | None = None
        self._identity: LaneIdentity | None = None

    @property
    def identity(self) -> LaneIdentity | None:
        return self._parts[0].frontier.identity if self._parts else self._identity

    @property
    def position(self) -> int:
        return self._position

    def poll(self) -> int | None:
        self._check_rollbacks()
        if not self._parts:
            for transaction in self._log.poll():
                self._committed_end = transaction.end
            if self._scanned < self._committed_end:
                self._scan()
        return self._parts[0].frontier.epoch if self._parts else None

    def _check_rollbacks(self) -> None:
        path = self._path.with_suffix(ROLLBACKS_SUFFIX)
        try:
            changed_at_ns = path.stat().st_mtime_ns
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(path, "read", error) from error
        if changed_at_ns != self._rollbacks_at_ns:
            self._rollbacks, self._rollbacks_at_ns = read_rollbacks(path), changed_at_ns
            self._parts.clear()  # epochs that were found but not read may be rolled back
            self._scanned, self._map = self._position, None
        for end, epoch in self._rollbacks:
            if end < self._position and self.merged <= epoch:
                raise StorageError(
                    f"The lane {self._path} was rolled back to byte {end}, but epochs up to {self.merged} of it are"
                    " merged already.",
                    next_step="Give the merger another output: it then merges from the beginning.",
                    path=str(self._path),
                )

    def _scan(self) -> None:
        """Find committed epochs that are not known yet, by the headers of their blocks."""
        buffer = self._mapped(self._committed_end)
        start = self._scanned
        try:
            for edges in block_edges(buffer, start, self._committed_end):
                if edges.kind == BlockKind.FRONTIER:
                    (block,) = decode_blocks(buffer, edges.start, edges.end)
                    assert isinstance(block.content, Frontier)
                    self._parts.append(_EpochPart(start, edges.end, block.content))
                    start = self._scanned = edges.end
                    if len(self._parts) >= EPOCHS_AHEAD_MAX:
                        return
        except RemoteProtocolError as error:
            raise self._damaged(error) from error
        if start < self._committed_end:
            raise self._damaged(RemoteProtocolError(f"committed bytes from {start} on have no frontier"))

    def _mapped(self, end: int) -> pa.Buffer:
        if self._map is None or self._map.size < end:
            try:
                self._map = HOST_FILES.map(self._path)
            except OSError as error:
                raise storage_error(self._path, "read", error) from error
            if self._map.size < end:
                raise self._damaged(RemoteProtocolError(f"it has {self._map.size} bytes, {end} are committed"))
        return self._map

    def batches(self) -> Iterator[pa.RecordBatch]:
        part = self._parts[0]
        try:
            for block in decode_blocks(self._mapped(part.end), part.start, part.end):
                if isinstance(block.content, LaneRecords):
                    if block.content.epoch != part.frontier.epoch:
                        raise RemoteProtocolError(f"records of epoch {block.content.epoch} are in another epoch")
                    yield block.content.batch
        except RemoteProtocolError as error:
            raise self._damaged(error) from error
        self._parts.popleft()
        self.frontier, self._position, self._identity = part.frontier, part.end, part.frontier.identity
        self.merged = max(self.merged, part.frontier.epoch)

    def close(self) -> None:
        self._map = None

    def _damaged(self, error: RemoteProtocolError) -> StorageError:
        return StorageError(
            f"The lane {self._path} is damaged: {error.sentence}.",
            next_step="Restore it from a copy, or run the pipeline again with a new directory.",
            path=str(self._path),
        )


class TakenBack(NamedTuple):
    """A rollback of a lane: all epochs after the byte `end`, up to this epoch, were removed."""

    end: int
    epoch: int


def read_rollbacks(path: Path) -> list[TakenBack]:
    """Return the rollbacks of a lane, oldest first."""
    data = read_if_there(path)
    if data is None:
        return []
    try:
        document = json.loads(data)
        check_format(path, document["format"], ROLLBACKS_FORMAT)
        return [TakenBack(int(end), int(epoch)) for end, epoch in document["rollbacks"]]
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} cannot be read: {error}.", next_step="Restore it from a copy.") from error


def announce_rollback(path: Path, end: int, committed_end: int) -> None:
    """Notify the mergers of a lane that all bytes after `end` are removed. The notice is durable when this returns."""
    buffer = HOST_FILES.map(path)
    epoch = NOTHING
    for edges in block_edges(buffer, end, committed_end):
        if edges.kind == BlockKind.FRONTIER:
            (block,) = decode_blocks(buffer, edges.start, edges.end)
            assert isinstance(block.content, Frontier)
            epoch = block.content.epoch
    notes = path.with_suffix(ROLLBACKS_SUFFIX)
    known = dict.fromkeys([*read_rollbacks(notes), TakenBack(end, epoch)])
    write_durably(notes, json.dumps({"format": ROLLBACKS_FORMAT, "rollbacks": list(known)}).encode())


def open_url(url: ConnectorUrl, sink: str | None = None, *, buffer_bytes: int = 0) -> OpenLanes:
    """Open the lanes of a directory, `lanes:DIR`. Files are mapped, so `buffer_bytes` has no effect."""
    return open_directory(Path(url.place), sink)


def open_directory(directory: Path, sink: str | None = None) -> OpenLanes:
    """Return a function that opens the lanes of a directory."""

    def opened(at: Mapping[str, int]) -> list[LaneReader]:
        return [FileLane(path, at.get(path.stem, 0)) for path in lane_paths(directory, sink)]

    return opened


def lane_paths(directory: Path, sink: str | None = None) -> list[Path]:
    """Return the lane files of a directory, ordered by number.

    Args:
        directory: The directory of the sink.
        sink: PIPELINE-SINK, if several sinks write lanes to this directory.
    """
    if not directory.is_dir():
        raise ConfigError(f"there is no directory {directory}", next_step="name the directory of a sink with lanes")
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in directory.glob(f"*{LANE_SUFFIX}"):
        if (match := _INSTANCE.fullmatch(path.stem)) is not None:
            found.setdefault(match[1], []).append((int(match[2]), path))
    if sink is not None:
        found = {family: paths for family, paths in found.items() if family == sink}
    if len(found) > 1:
        raise ConfigError(
            f"the directory {directory} has the lanes of several sinks: {', '.join(sorted(found))}",
            next_step="choose one with --instance",
        )
    return [path for paths in found.values() for _, path in sorted(paths)]
