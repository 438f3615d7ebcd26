"""The file sink: writes each output to DIR/<instance>.data.

Invariant: the file has each byte at the position that the round assigned to it, so the sink stores no write position.
DIR/<instance>.txnlog lists the committed transactions. Bytes are synced once, before the vote. A failed sync stops
the sink, and the bytes are truncated and sent again. A file without any vote is created again, because its directory
entry may not be on disk.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from procession.errors import StorageError
from procession.runtime.files import FileSystem, OpenFile, OpenMode
from procession.runtime.host_files import HOST_FILES
from procession.sdk.output import OpenOutput, Output
from procession.sdk.payloads import Payloads
from procession.sdk.sink_directory import LISTEN, OnOutcome, run_sink
from procession.sdk.transaction_log import Transaction
from procession.storage.durable import fsync_dir, remove, storage_error
from procession.tls import ServerTls


class FileOutput(Output):
    """An output in one file, written in place. Its transaction log lists the committed transactions."""

    def __init__(self, path: Path, files: FileSystem = HOST_FILES) -> None:
        self.path = path
        self._files = files
        self._has_vote = False
        self._file = self._opened()

    def recover(self, committed_end: int, prepared: Transaction | None) -> None:
        end = max(committed_end, prepared.end if prepared else 0)
        if not self._has_vote and not end:
            self._make_anew()
        self._has_vote = True
        size = self._file.size
        if size < end:
            raise StorageError(
                f"{self.path} has {size} bytes, but its log records {end}.",
                next_step="Restore the file from a backup; it has lost committed output.",
                path=str(self.path),
            )
        self._cut(end)

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        try:
            self._file.write(position, Payloads.of(payloads).joined)
        except OSError as error:
            raise storage_error(self.path, "write", error) from error

    def prepare(self, transaction: Transaction) -> None:
        try:
            self._file.sync(is_data_only=True)
        except OSError as error:
            raise storage_error(self.path, "sync", error) from error

    def commit(self, transaction: Transaction) -> None:
        """Do nothing: the entry in the transaction log makes the output visible."""

    def abort(self, transaction: Transaction) -> None:
        self._cut(transaction.start)

    def close(self) -> None:
        self._file.close()

    def _opened(self) -> OpenFile:
        try:
            return self._files.open(self.path, OpenMode.CREATE)
        except OSError as error:
            raise storage_error(self.path, "open", error) from error

    def _make_anew(self) -> None:
        """Create the file again, because an earlier process may have failed to sync its directory entry.

        Without a vote there is no proof that the entry is on disk."""
        self._file.close()
        try:
            remove(self.path, self._files)
        except OSError as error:
            raise storage_error(self.path, "remove", error) from error
        self._file = self._opened()
        fsync_dir(self.path.parent, self._files)

    def _cut(self, end: int) -> None:
        try:
            self._file.truncate(end)
        except OSError as error:
            raise storage_error(self.path, "truncate", error) from error


class RepeatableFileOutput(FileOutput):
    """An idempotent output: positions may be written again, with the same bytes."""

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        data = bytes(Payloads.of(payloads).joined)
        before = self._file.read(len(data), position)
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
    on_outcome: OnOutcome | None = None,
    files: FileSystem = HOST_FILES,
) -> None:
    """Serve the sink until a signal stops it. Raises the StorageError that stops it otherwise."""
    open_output = opener(directory, idempotent, files)
    run_sink(
        open_output,
        directory,
        listen,
        cookie=cookie,
        tls=tls,
        idempotent=idempotent,
        on_outcome=on_outcome,
        files=files,
    )


def opener(directory: Path, idempotent: Collection[str] = (), files: FileSystem = HOST_FILES) -> OpenOutput:
    """Return a function that opens the output of an instance in this directory."""

    def open_output(instance: str) -> FileOutput:
        kind = RepeatableFileOutput if instance in idempotent else FileOutput
        return kind(directory / f"{instance}.data", files)

    return open_output
