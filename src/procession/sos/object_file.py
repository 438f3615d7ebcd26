"""The file of an object: a head, then chunks, each of which is one append.

    head:   "SOSO" | u16 format | u32 length | JSON | u32 CRC-32 of the JSON
    chunk:  "SOSc" | u64 offset | u32 length | u32 checksum | u64 synced | u32 CRC-32 of these fields | data

`checksum` is the running CRC-32 of the object's bytes, including this chunk. `synced` is the length that was known to
be on disk when the chunk was written. With it, recovery distinguishes an incomplete end from damage.

Invariant: bytes are only added at the end. The index is derived from the file. After a failed sync, this process does
not use the file again. `sos/recovery` reads the file after a crash; `sos/volume` decides about writes.
"""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from procession.errors import DiskError, StorageError
from procession.format_number import check_format
from procession.runtime.files import FileSystem, OpenFile, OpenMode
from procession.sos.sos_frames import CHUNK_BYTES_MAX
from procession.sos.volume_rules import ObjectHead, ObjectState, QuorumConfig, RefusalCode, refused
from procession.storage.durable import AGAIN, storage_error, write_durably

FORMAT = 1
SUFFIX = ".object"
_HEAD = struct.Struct(">4sHI")
_CHUNK = struct.Struct(">4sQIIQ")
_CRC = struct.Struct(">I")
HEAD_MAGIC, CHUNK_MAGIC = b"SOSO", b"SOSc"
CHUNK_HEAD_BYTES = _CHUNK.size + _CRC.size
HEAD_BYTES_MAX = 64 * 1024
SEARCH_BYTES = 1024 * 1024


def object_path(directory: Path, number: int) -> Path:
    return directory / f"{number:020d}{SUFFIX}"


def number_of(name: str) -> int | None:
    """Return the number of the object in a file of this name. None: the file is not the file of an object."""
    text = name.removesuffix(SUFFIX)
    return int(text) if name.endswith(SUFFIX) and text.isdigit() and len(text) == 20 else None


def encode_head(number: int, head: ObjectHead) -> bytes:
    text = json.dumps(
        {
            "object": number,
            "previous": head.previous,
            "length": head.length,
            "checksum": head.checksum,
            "config": _config_document(head.config),
            "old_configs": [_config_document(config) for config in head.old_configs],
        }
    ).encode()
    return _HEAD.pack(HEAD_MAGIC, FORMAT, len(text)) + text + _CRC.pack(zlib.crc32(text))


def _config_document(config: QuorumConfig) -> dict[str, Any]:
    return {"members": [member.hex() for member in config.members], "write_quorum": config.write_quorum}


def _config(document: dict[str, Any]) -> QuorumConfig:
    return QuorumConfig(tuple(map(bytes.fromhex, document["members"])), int(document["write_quorum"]))


def read_head(file: OpenFile, path: Path, number: int) -> tuple[ObjectHead, int]:
    """Read the head of an object. Returns the head and its size in the file. Raises StorageError if it is damaged."""
    try:
        magic, format_number, length = _HEAD.unpack(file.read(_HEAD.size, 0))
        if magic != HEAD_MAGIC or length > HEAD_BYTES_MAX:
            raise ValueError("it does not begin as an object does")
        check_format(path, format_number, FORMAT)
        text = file.read(length, _HEAD.size)
        if _CRC.unpack(file.read(_CRC.size, _HEAD.size + length))[0] != zlib.crc32(text):
            raise ValueError("its head does not match its checksum")
        found = json.loads(text)
        if found["object"] != number:
            raise ValueError(f"it is object {found['object']}")
        head = ObjectHead(
            int(found["previous"]),
            int(found["length"]),
            int(found["checksum"]),
            _config(found["config"]),
            tuple(map(_config, found["old_configs"])),
        )
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise damaged_object(path, str(error)) from error
    return head, _HEAD.size + length + _CRC.size


def damaged_object(path: Path, why: str) -> StorageError:
    return StorageError(
        f"The object {path} is damaged: {why}.",
        next_step="Stop this service, delete the directory of the volume, and start again: it is copied from the other"
        " replicas.",
        path=str(path),
    )


@dataclass
class ChunkIndex:
    """The positions of an object's chunks, with 12 bytes of memory per chunk."""

    head_bytes: int
    """Size of the object's head in the file."""
    ends: array[int] = field(default_factory=lambda: array("Q"))
    checksums: array[int] = field(default_factory=lambda: array("I"))

    @property
    def written(self) -> int:
        return self.ends[-1] if self.ends else 0

    @property
    def checksum(self) -> int:
        return self.checksums[-1] if self.checksums else 0

    def add(self, length: int, checksum: int) -> None:
        self.ends.append(self.written + length)
        self.checksums.append(checksum)

    def chunk_at(self, offset: int) -> int | None:
        """Return the number of the chunk that begins or would begin at this offset. None: the offset is inside a chunk
        or too large."""
        if offset == 0:
            return 0
        found = bisect_left(self.ends, offset)
        return found + 1 if found < len(self.ends) and self.ends[found] == offset else None

    def checksum_at(self, length: int) -> int | None:
        """Return the object's checksum up to this length. None: no chunk ends there."""
        chunk = self.chunk_at(length)
        return None if chunk is None else self.checksums[chunk - 1] if chunk else 0

    def position(self, chunk: int) -> int:
        """Return the position of a chunk in the file."""
        return self.head_bytes + chunk * CHUNK_HEAD_BYTES + (self.ends[chunk - 1] if chunk else 0)


@dataclass(frozen=True, slots=True)
class FoundChunk:
    """A chunk, as described by its head in the file."""

    offset: int
    length: int
    checksum: int
    synced: int


def chunk_at(file: OpenFile, position: int) -> FoundChunk | None:
    """Return the chunk whose head is at this position, or None."""
    data = file.read(CHUNK_HEAD_BYTES, position)
    if len(data) < CHUNK_HEAD_BYTES or data[:4] != CHUNK_MAGIC:
        return None
    if _CRC.unpack_from(data, _CHUNK.size)[0] != zlib.crc32(data[: _CHUNK.size]):
        return None
    _, offset, length, checksum, synced = _CHUNK.unpack_from(data)
    return FoundChunk(offset, length, checksum, synced) if 0 < length <= CHUNK_BYTES_MAX else None


def scan(file: OpenFile, head_bytes: int) -> tuple[ChunkIndex, int]:
    """Read the intact chunks from the beginning on. Returns their index, and the synced length that the last chunk
    states."""
    index, synced = ChunkIndex(head_bytes), 0
    while chunk := chunk_at(file, position := index.position(len(index.ends))):
        data = file.read(chunk.length, position + CHUNK_HEAD_BYTES)
        is_intact = len(data) == chunk.length and zlib.crc32(data, index.checksum) == chunk.checksum
        if chunk.offset != index.written or not is_intact:
            break
        index.add(chunk.length, chunk.checksum)
        synced = chunk.synced
    return index, synced


def chunks_after(file: OpenFile, position: int) -> Iterator[FoundChunk]:
    """Yield the heads of chunks after this position. They are found by their magic, because the length of a damaged
    chunk is not reliable."""
    overlap = len(CHUNK_MAGIC) - 1
    while data := file.read(SEARCH_BYTES, position):
        found = data.find(CHUNK_MAGIC)
        while found >= 0:
            if chunk := chunk_at(file, position + found):
                yield chunk
            found = data.find(CHUNK_MAGIC, found + 1)
        if len(data) < SEARCH_BYTES:
            return
        position += len(data) - overlap


class ObjectFile:
    """An object of a volume. Its index is loaded at first use, because sealed objects are rarely read."""

    def __init__(
        self, path: Path, number: int, head: ObjectHead, files: FileSystem, index: ChunkIndex | None = None
    ) -> None:
        self.number = number
        self.head = head
        self.path = path
        self._files = files
        self._index = index
        self.synced = 0 if index is None else index.written
        self._file: OpenFile | None = None

    @classmethod
    def create(cls, directory: Path, number: int, head: ObjectHead, files: FileSystem) -> ObjectFile:
        """Create an object. It is durable when this returns."""
        path, data = object_path(directory, number), encode_head(number, head)
        write_durably(path, data, files)
        return cls(path, number, head, files, ChunkIndex(len(data)))

    @property
    def index(self) -> ChunkIndex:
        if self._index is None:
            try:
                with self._files.open(self.path) as file:
                    _, head_bytes = read_head(file, self.path, self.number)
                    self._index, _ = scan(file, head_bytes)
            except OSError as error:
                raise storage_error(self.path, "read", error) from error
            self.synced = self._index.written
        return self._index

    @property
    def is_loaded(self) -> bool:
        return self._index is not None

    @property
    def state(self) -> ObjectState:
        return ObjectState(self.head, self.index.written, self.synced, self.index.checksum)

    def append(self, data: bytes, checksum: int) -> None:
        """Append data, which is durable after `sync`. Raises RequestRefused if the checksum does not match the object
        with this data, and StorageError if the disk is full."""
        index = self.index
        if zlib.crc32(data, index.checksum) != checksum:
            raise refused(RefusalCode.CONFLICT, f"The append to object {self.number} does not match its checksum.")
        head = _CHUNK.pack(CHUNK_MAGIC, index.written, len(data), checksum, self.synced)
        position = index.position(len(index.ends))
        try:
            if self._file is None:
                self._file = self._files.open(self.path, OpenMode.WRITE)
            self._file.write(position, head, _CRC.pack(zlib.crc32(head)), data)
        except OSError as error:
            # A part may be written. It is cut off now or at recovery, and the next append overwrites it.
            with suppress(OSError):
                if self._file is not None:
                    self._file.truncate(position)
            raise storage_error(self.path, "write", error) from error
        index.add(len(data), checksum)

    def sync(self) -> None:
        """Put all appended data on disk. A failure ends the service, because the kernel may have dropped the pages."""
        if self._file is None or self.synced == self.index.written:
            return
        try:
            self._file.sync(is_data_only=True)
        except OSError as error:
            raise DiskError(
                f"Cannot sync {self.path}: {error.strerror or error}.", next_step=AGAIN, path=str(self.path)
            ) from error
        self.synced = self.index.written

    def read(self, offset: int, bytes_max: int) -> tuple[int, list[tuple[int, int]], bytes]:
        """Read whole chunks from an offset on. Returns the checksum before them, the length and checksum of each, and
        their data."""
        index = self.index
        first = index.chunk_at(offset)
        if first is None:
            raise refused(RefusalCode.CONFLICT, f"No append of object {self.number} begins at {offset}.")
        found: list[tuple[int, int]] = []
        parts: list[bytes] = []
        taken = 0
        try:
            with self._files.open(self.path) as file:
                for chunk in range(first, len(index.ends)):
                    length = index.ends[chunk] - (index.ends[chunk - 1] if chunk else 0)
                    if parts and taken + length > bytes_max:
                        break
                    parts.append(file.read(length, index.position(chunk) + CHUNK_HEAD_BYTES))
                    found.append((length, index.checksums[chunk]))
                    taken += length
        except OSError as error:
            raise storage_error(self.path, "read", error) from error
        return index.checksums[first - 1] if first else 0, found, b"".join(parts)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
