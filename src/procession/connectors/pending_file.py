"""What is not committed yet, in a file of its own: for outputs that show a transaction only as a whole.

The one rule: the file holds the bytes of one transaction and nothing else; what is committed has left it. Before it on
the walk: sdk/participant, through `connectors/epochs_sink` and `connectors/stdout_sink`. After it: the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from procession.errors import StorageError
from procession.sdk.payloads import Payloads
from procession.sdk.transaction_log import Transaction
from procession.storage.durable import fsync_dir, storage_error, sync, write_all

READ_BYTES = 1024 * 1024


class Pending:
    """The file at `path`, as long as a transaction has bytes. Positions are those of the output."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._start = 0

    def keep(self, transaction: Transaction) -> bool:
        """Recover: keep the transaction's bytes and no others. False if there is no file at all."""
        self.close()
        try:
            self._descriptor = os.open(self.path, os.O_RDWR)
            size = os.fstat(self._descriptor).st_size
        except FileNotFoundError:
            return transaction.start == transaction.end
        except OSError as error:
            raise storage_error(self.path, "open", error) from error
        self._start = transaction.start
        wanted = transaction.end - transaction.start
        if size < wanted:
            raise StorageError(
                f"{self.path} has {size} bytes, but {wanted} were promised.",
                next_step="Restore the file from a copy; it has lost output that was voted for.",
                path=str(self.path),
            )
        self._cut(wanted)
        return True

    def drop(self) -> None:
        """Forget every byte."""
        self.close()
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(self.path, "remove", error) from error

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        """The first bytes after `drop` say where the transaction begins."""
        if self._descriptor is None:
            self._start = position
            self._descriptor = self._made()
        try:
            write_all(self._descriptor, Payloads.of(payloads).joined, position - self._start)
        except OSError as error:
            raise storage_error(self.path, "write", error) from error

    def sync(self) -> None:
        """Make all that was appended durable, and the file's name; a file without bytes is made if there is none."""
        if self._descriptor is None:
            self._descriptor = self._made()
        try:
            sync(self._descriptor)
        except OSError as error:
            raise storage_error(self.path, "sync", error) from error
        fsync_dir(self.path.parent)

    def read(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes [start, end), in pieces."""
        if start == end:
            return
        assert self._descriptor is not None
        while start < end:
            try:
                piece = os.pread(self._descriptor, min(READ_BYTES, end - start), start - self._start)
            except OSError as error:
                raise storage_error(self.path, "read", error) from error
            if not piece:
                raise StorageError(
                    f"{self.path} ends {end - start} bytes before the end of what was promised.",
                    next_step="Restore the file from a copy; it has lost output that was voted for.",
                    path=str(self.path),
                )
            start += len(piece)
            yield piece

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _made(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        except OSError as error:
            raise storage_error(self.path, "open", error) from error

    def _cut(self, length: int) -> None:
        assert self._descriptor is not None
        try:
            os.ftruncate(self._descriptor, length)
        except OSError as error:
            raise storage_error(self.path, "truncate", error) from error
