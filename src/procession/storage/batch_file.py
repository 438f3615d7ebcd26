"""A batch file: Arrow record batches, each with its checksum, in a file that is never changed once it is written.

    header   magic "PRBF", u32 format, 56 zero bytes
    blocks   the schema, then the batches, as Arrow's IPC messages; each begins at a multiple of 64
    index    for each block u64 position, u64 length, u32 mark, u32 omitted columns, u32 rows, u32 crc32
    trailer  u32 number of blocks, u32 crc32 of the index, magic "PRBE"

Invariant: a block is used only after its checksum matches, and only requested blocks are read. A mark is a number that
the writer gives to a batch, so that a reader can select batches without reading them. A writer may omit columns that
are zero in a batch: bit n of `omitted columns` stands for column n. Most columns of an order key are zero in most
batches. Used by `storage/run_store` and `storage/state_file`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal.isal_zlib import crc32  # zlib's, in the same values and a tenth of the time

from procession.errors import StorageError
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES

FORMAT = 1
ALIGNMENT = 64

_HEADER, _BLOCK, _TRAILER = struct.Struct("<4sI56x"), struct.Struct("<QQIIII"), struct.Struct("<II4s")
_BEGIN, _END = b"PRBF", b"PRBE"

# The index as columns: a file may have a batch for each of a thousand tasks, and a reader needs those of one task.
_INDEX = np.dtype(
    [("position", "<u8"), ("length", "<u8"), ("mark", "<u4"), ("omitted", "<u4"), ("rows", "<u4"), ("checksum", "<u4")]
)
assert _INDEX.itemsize == _BLOCK.size


OMITTED_MAX = 32
"""Number of columns, from the first on, that can be omitted."""

_zeros = np.zeros(64 * 1024, np.int64)
"""Shared by all columns that were omitted. Never written."""


class Target(Protocol):
    """A file or buffer to which bytes are written."""

    def write(self, data: Any, /) -> Any: ...


class _Block(NamedTuple):
    position: int
    length: int
    mark: int
    omitted: int
    rows: int
    checksum: int


class BatchWriter:
    """Writes one file, from its first byte to its last.

    Args:
        target: Receives the bytes.
        schema: The columns.
        omits_zeros: Omit 64-bit columns of a batch that are zero in all rows. Readers still see them.
    """

    def __init__(self, target: Target, schema: pa.Schema, *, omits_zeros: bool = False) -> None:
        self._target = target
        numbers = [place for place, kind in enumerate(schema.types[:OMITTED_MAX]) if kind == pa.int64()]
        self._omissible = numbers if omits_zeros and len(numbers) < len(schema) else []
        self._position = 0
        self._blocks: list[_Block] = []
        self._put(_HEADER.pack(_BEGIN, FORMAT))
        self._add(schema.serialize(), 0, 0, 0)

    def write(self, batch: pa.RecordBatch, mark: int = 0) -> None:
        omitted = [place for place in self._omissible if _is_zero(batch.column(place))]
        if omitted:
            kept = batch.select([place for place in range(batch.num_columns) if place not in omitted])
            self._add(kept.serialize(), mark, sum(1 << place for place in omitted), batch.num_rows)
        else:
            self._add(batch.serialize(), mark, 0, batch.num_rows)

    def close(self) -> None:
        """Write the index and the trailer, which complete the file. The target stays open."""
        index = b"".join(_BLOCK.pack(*block) for block in self._blocks)
        self._put(index + _TRAILER.pack(len(self._blocks), crc32(index), _END))

    def _add(self, data: pa.Buffer, mark: int, omitted: int, rows: int) -> None:
        self._put(bytes(-self._position % ALIGNMENT))
        self._blocks.append(_Block(self._position, data.size, mark, omitted, rows, crc32(data)))
        self._put(data)

    def _put(self, data: Any) -> None:
        self._target.write(data)
        self._position += len(data)


def _is_zero(column: pa.Array) -> bool:
    if column.null_count or not len(column):
        return False
    values = column.to_numpy()
    return not values[0] and not values[-1] and not values.any()


def _zero_column(rows: int) -> pa.Array:
    global _zeros
    if rows > len(_zeros):
        _zeros = np.zeros(rows, np.int64)
    return pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(_zeros)])


class BatchFile:
    """A mapped batch file. In errors, `what` names the kind of file, and `next_step` is the advice for a damaged
    file."""

    def __init__(self, path: Path, *, what: str, next_step: str = "", files: FileSystem = HOST_FILES) -> None:
        self._path = path
        self._what = what
        self._next_step = next_step
        try:
            self._buffer = files.map(path)
        except FileNotFoundError as error:
            raise self._damaged("it is gone") from error
        except (OSError, pa.ArrowInvalid) as error:
            raise self._damaged(str(error)) from error
        self.size: int = self._buffer.size
        index = self._index()
        self._blocks = index[1:]
        self._is_checked = bytearray(len(self._blocks))
        self.schema = pa.ipc.read_schema(self._checked(_Block(*index[0].item())))

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def rows(self) -> int:
        """Number of rows in all batches."""
        return int(self._blocks["rows"].sum())

    @property
    def marks(self) -> list[int]:
        """The mark of each batch."""
        marks: list[int] = self._blocks["mark"].tolist()
        return marks

    def batch(self, number: int) -> pa.RecordBatch:
        """Return one batch, which shares the file's memory. Raises StorageError if it is damaged."""
        block = _Block(*self._blocks[number].item())
        data = self._slice(block) if self._is_checked[number] else self._checked(block)
        self._is_checked[number] = 1
        if not block.omitted:
            return pa.ipc.read_record_batch(data, self.schema)
        omitted = [bool(block.omitted >> place & 1) for place in range(len(self.schema))]
        kept = pa.schema([field for field, is_out in zip(self.schema, omitted, strict=True) if not is_out])
        columns, zeros = iter(pa.ipc.read_record_batch(data, kept).columns), _zero_column(block.rows)
        return pa.RecordBatch.from_arrays(
            [zeros if is_out else next(columns) for is_out in omitted], schema=self.schema
        )

    def bytes_of(self, mark: int) -> int:
        """Return the bytes of the batches with this mark in the file."""
        return int(self._blocks["length"][self._blocks["mark"] == mark].sum())

    def batches(self, mark: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the batches in the order in which they were written: those with this mark, or all."""
        if mark is None:
            return map(self.batch, range(len(self)))
        return map(self.batch, np.flatnonzero(self._blocks["mark"] == mark).tolist())

    def _index(self) -> npt.NDArray[Any]:
        if self.size >= _HEADER.size:
            magic, number = _HEADER.unpack_from(self._buffer)
            if (magic, number) != (_BEGIN, FORMAT):
                raise self._other_format(magic, number)
        if self.size < _HEADER.size + _TRAILER.size:
            raise self._damaged(f"it has {self.size} bytes only")
        at = self.size - _TRAILER.size
        count, checksum, magic = _TRAILER.unpack_from(self._buffer, at)
        start = at - count * _BLOCK.size
        if magic != _END or start < _HEADER.size or not count:
            raise self._damaged("its end is missing")
        index = memoryview(self._buffer)[start:at]
        if crc32(index) != checksum:
            raise self._damaged("its index does not match its checksum")
        return np.frombuffer(index, _INDEX)

    def _slice(self, block: _Block) -> pa.Buffer:
        return self._buffer.slice(block.position, block.length)

    def _checked(self, block: _Block) -> pa.Buffer:
        data = self._slice(block)
        if data.size != block.length or crc32(data) != block.checksum:
            raise self._damaged(f"the block at byte {block.position} does not match its checksum")
        return data

    def _damaged(self, why: str) -> StorageError:
        return StorageError(
            f"{self._what} {self._path} is damaged: {why}", next_step=self._next_step, path=str(self._path)
        )

    def _other_format(self, magic: bytes, number: int) -> StorageError:
        if magic == _BEGIN:
            problem, step = (
                f"has format {number}; this version reads format {FORMAT}",
                "start the version that wrote it",
            )
        elif magic == b"ARRO":
            problem = "was written by version 0.1.0 as first released, whose keys had no types: 7 and '7' were one"
            step = "finish its work with that version, or start over with another --dir (and an empty output)"
        else:
            return self._damaged("it does not begin as such a file does")
        return StorageError(f"{self._what} {self._path} {problem}", next_step=step, path=str(self._path))
