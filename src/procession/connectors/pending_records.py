"""Stores the records of one uncommitted transaction as Arrow batches in a file.

Invariant: the file contains whole batches, each with a checksum and the number of output bytes that the batch
represents. So a reader can check that all records of the vote are in the file. Upstream: outputs that publish
records, not bytes, such as `connectors/kafka_sink`. Downstream: `connectors/pending_file`, the disk.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from isal.isal_zlib import crc32  # the same values as zlib's, in a tenth of the time

from procession.connectors.pending_file import PendingFile
from procession.errors import RecordError, StorageError
from procession.sdk.transaction_log import Transaction
from procession.storage.durable import storage_error

HEADER = struct.Struct("<IIQ")
"""Header of a batch: its size, its checksum (CRC-32), and the number of output bytes that it represents."""


class PendingRecords:
    """Batches of one schema. `append` after `drop` begins the next transaction."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._file = PendingFile(path)
        self._size = 0
        self.output_bytes = 0
        """Number of output bytes that the appended batches represent."""

    @property
    def has_records(self) -> bool:
        return self._size > 0

    def append(self, batch: pa.RecordBatch, output_bytes: int) -> None:
        body = memoryview(batch.serialize())
        header = HEADER.pack(body.nbytes, crc32(body), output_bytes)
        self._file.write(self._size, header, body)
        self._size += HEADER.size + body.nbytes
        self.output_bytes += output_bytes

    def sync(self) -> None:
        self._file.sync()

    def keep(self, transaction: Transaction) -> None:
        """Recover the batches of a transaction. Raises StorageError if some are missing or damaged."""
        try:
            self._size = self._file.path.stat().st_size
        except FileNotFoundError:
            self._size = 0
        except OSError as error:
            raise storage_error(self._file.path, "read", error) from error
        self._file.keep(Transaction(transaction.txn_id, 0, self._size))
        self.output_bytes = sum(output_bytes for _, output_bytes in self._pieces())
        if self.output_bytes != transaction.end - transaction.start:
            raise self._damaged(f"it stands for {self.output_bytes} bytes, not {transaction.end - transaction.start}")

    def batches(self) -> Iterator[pa.RecordBatch]:
        for body, _ in self._pieces():
            yield pa.ipc.read_record_batch(pa.py_buffer(body), self._schema)

    def drop(self) -> None:
        self._file.drop()
        self._size = self.output_bytes = 0

    def close(self) -> None:
        self._file.close()

    def _pieces(self) -> Iterator[tuple[bytes, int]]:
        position = 0
        while position < self._size:
            if self._size - position < HEADER.size:
                raise self._damaged(f"it ends within a batch at byte {position}")
            size, checksum, output_bytes = HEADER.unpack(self._bytes(position, position + HEADER.size))
            position += HEADER.size
            if size > self._size - position:
                raise self._damaged(f"it ends within a batch at byte {position}")
            body = self._bytes(position, position + size)
            if crc32(body) != checksum:
                raise self._damaged(f"the batch at byte {position} has another checksum")
            position += size
            yield body, output_bytes

    def _bytes(self, start: int, end: int) -> bytes:
        return b"".join(self._file.read(start, end))

    def _damaged(self, why: str) -> StorageError:
        return StorageError(
            f"{self._file.path} is damaged: {why}.",
            next_step="Restore the file from a copy; it has lost output that was voted for.",
            path=str(self._file.path),
        )


def empty_records() -> RecordError:
    """Return the error for an epoch of empty records. The token of such an output is only a position, which does not
    show whether records without bytes are committed."""
    return RecordError(
        "All records of an epoch are empty. This sink cannot tell whether such an epoch is committed.",
        next_step="Leave empty records out in the app, or give --records blocks here and name the sink by its URL.",
    )
