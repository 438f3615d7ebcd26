"""Stores the uncommitted bytes of an output that publishes a transaction only as a whole.

Invariant: the file has the bytes of one open transaction and nothing else. Used by `connectors/epochs_sink` and
`connectors/stdout_sink`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from procession.errors import StorageError
from procession.runtime.files import FileSystem, OpenFile, OpenMode
from procession.runtime.host_files import HOST_FILES
from procession.sdk.payloads import Payloads
from procession.sdk.transaction_log import Transaction
from procession.storage.durable import fsync_dir, remove, storage_error

READ_BYTES = 1024 * 1024


class PendingFile:
    """The file at `path`, which exists while a transaction has bytes. Positions are those of the output."""

    def __init__(self, path: Path, files: FileSystem = HOST_FILES) -> None:
        self.path = path
        self._files = files
        self._file: OpenFile | None = None
        self._start = 0

    def keep(self, transaction: Transaction) -> bool:
        """Recover: keep only the transaction's bytes. Return False if there is no file."""
        self.close()
        try:
            self._file = self._files.open(self.path, OpenMode.WRITE)
            size = self._file.size
        except FileNotFoundError:
            return transaction.start == transaction.end
        except OSError as error:
            raise storage_error(self.path, "open", error) from error
        self._start = transaction.start
        wanted = transaction.end - transaction.start
        if size < wanted:
            raise StorageError(
                f"{self.path} has {size} bytes, but its log records {wanted}.",
                next_step="Restore the file from a copy; it has lost output that the sink had voted to commit.",
                path=str(self.path),
            )
        self._cut(wanted)
        return True

    def drop(self) -> None:
        """Remove the file."""
        self.close()
        try:
            remove(self.path, self._files)
        except OSError as error:
            raise storage_error(self.path, "remove", error) from error

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        """Append bytes. The first ones after `drop` set the start of the transaction."""
        self.write(position, Payloads.of(payloads).joined)

    def write(self, position: int, *parts: bytes | memoryview) -> None:
        """Append parts, as `append` does, one after the other."""
        if self._file is None:
            self._start = position
            self._file = self._made()
        try:
            self._file.write(position - self._start, *parts)
        except OSError as error:
            raise storage_error(self.path, "write", error) from error

    def sync(self) -> None:
        """Make the bytes and the directory entry durable. Create an empty file if there is none."""
        if self._file is None:
            self._file = self._made()
        try:
            self._file.sync()
        except OSError as error:
            raise storage_error(self.path, "sync", error) from error
        fsync_dir(self.path.parent, self._files)

    def read(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes [start, end), in chunks."""
        if start == end:
            return
        assert self._file is not None
        while start < end:
            try:
                piece = self._file.read(min(READ_BYTES, end - start), start - self._start)
            except OSError as error:
                raise storage_error(self.path, "read", error) from error
            if not piece:
                raise StorageError(
                    f"{self.path} ends {end - start} bytes before the end of the prepared output.",
                    next_step="Restore the file from a copy; it has lost output that the sink had voted to commit.",
                    path=str(self.path),
                )
            start += len(piece)
            yield piece

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _made(self) -> OpenFile:
        try:
            return self._files.open(self.path, OpenMode.REPLACE)
        except OSError as error:
            raise storage_error(self.path, "open", error) from error

    def _cut(self, length: int) -> None:
        assert self._file is not None
        try:
            self._file.truncate(length)
        except OSError as error:
            raise storage_error(self.path, "truncate", error) from error
