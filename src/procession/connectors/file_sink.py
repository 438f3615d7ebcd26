"""The file sink: writes each output to DIR/<instance>.data.

Invariant: the file has each byte at the position that the round assigned to it, so the sink needs no write position of
its own. DIR/<instance>.txnlog says what is committed. Bytes are synced once, before the vote. A failed sync stops the
sink, and the bytes are truncated and sent again. A file without any vote is created again, because its directory entry
may not be on disk.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from procession.errors import StorageError
from procession.sdk.output import OpenOutput, Output
from procession.sdk.payloads import Payloads
from procession.sdk.sink_directory import LISTEN, Tell, run_sink
from procession.sdk.transaction_log import Transaction
from procession.storage.durable import fsync_dir, storage_error, sync, write_all
from procession.tls import ServerTls


class FileOutput(Output):
    """An output in one file, written in place. Its transaction log says what is committed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._has_vote = False
        self._descriptor = self._opened()

    def recover(self, committed_end: int, prepared: Transaction | None) -> None:
        end = max(committed_end, prepared.end if prepared else 0)
        if not self._has_vote and not end:
            self._make_anew()
        self._has_vote = True
        size = os.fstat(self._descriptor).st_size
        if size < end:
            raise StorageError(
                f"{self.path} has {size} bytes, but {end} were promised.",
                next_step="Restore the file from a backup; it has lost committed output.",
                path=str(self.path),
            )
        self._cut(end)

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        try:
            write_all(self._descriptor, Payloads.of(payloads).joined, position)
        except OSError as error:
            raise storage_error(self.path, "write", error) from error

    def prepare(self, transaction: Transaction) -> None:
        try:
            sync(self._descriptor, is_data_only=True)
        except OSError as error:
            raise storage_error(self.path, "sync", error) from error

    def commit(self, transaction: Transaction) -> None:
        """Do nothing: the entry in the transaction log makes the output visible."""

    def abort(self, transaction: Transaction) -> None:
        self._cut(transaction.start)

    def close(self) -> None:
        os.close(self._descriptor)

    def _opened(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise storage_error(self.path, "open", error) from error

    def _make_anew(self) -> None:
        """Create the file again, because an earlier process may have failed to sync its directory entry.

        Without a vote there is no proof that the entry is on disk."""
        os.close(self._descriptor)
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(self.path, "remove", error) from error
        self._descriptor = self._opened()
        fsync_dir(self.path.parent)

    def _cut(self, end: int) -> None:
        try:
            os.ftruncate(self._descriptor, end)
        except OSError as error:
            raise storage_error(self.path, "truncate", error) from error


class RepeatableFileOutput(FileOutput):
    """An idempotent output: positions may be written again, with the same bytes."""

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        data = bytes(Payloads.of(payloads).joined)
        before = os.pread(self._descriptor, len(data), position)
        if before != data[: len(before)]:
            raise StorageError(
                f"{self.path} gets other bytes at position {position} than before: the pipeline is not deterministic.",
                next_step="Remove deterministic=True and idempotent=True from the app, and start with a new output.",
                path=str(self.path),
            )
        super().append(position + len(before), [data[len(before) :]])


def run_file_sink(
    directory: Path,
    listen: str = LISTEN,
    *,
    cookie: bytes | None = None,
    tls: ServerTls | None = None,
    idempotent: Collection[str] = (),
    tell: Tell | None = None,
) -> None:
    """Serve the sink until a signal stops it. Raises the StorageError that stops it otherwise."""
    open_output = opener(directory, idempotent)
    run_sink(open_output, directory, listen, cookie=cookie, tls=tls, idempotent=idempotent, tell=tell)


def opener(directory: Path, idempotent: Collection[str] = ()) -> OpenOutput:
    """Return a function that opens the output of an instance in this directory."""

    def open_output(instance: str) -> FileOutput:
        kind = RepeatableFileOutput if instance in idempotent else FileOutput
        return kind(directory / f"{instance}.data")

    return open_output
