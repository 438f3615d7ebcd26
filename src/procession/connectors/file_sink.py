"""Files as sink: bytes out.

The one rule: the output file holds each byte at the position that the round gave it, so that it needs no memory of how
far it was written. Before it on the walk: sdk/outlet. After it: DIR/<instance>.data, of which DIR/<instance>.txnlog
says what is committed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from procession import faults
from procession.address import Address, address_of, listening_socket, parse_address
from procession.errors import ConfigError, StorageError
from procession.sdk.outlet import Outlet
from procession.sdk.program import run_program
from procession.sdk.sink import SinkServer
from procession.sdk.txnlog import Transaction, TxnLog
from procession.storage.durable import fsync_dir, lock_directory, storage_error, write_all, write_durably


class FileOutput:
    """An output in one file, written in place. What of it is committed, its transaction log says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise storage_error(path, "open", error) from error
        fsync_dir(path.parent)

    def recover(self, committed_end: int, prepared: Transaction | None) -> None:
        end = max(committed_end, prepared.end if prepared else 0)
        size = os.fstat(self._descriptor).st_size
        if size < end:
            raise StorageError(
                f"{self.path} has {size} bytes, but {end} were promised.",
                next_step="Restore the file from a copy; it has lost committed output.",
                path=str(self.path),
            )
        self._cut(end)

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        try:
            write_all(self._descriptor, b"".join(payloads), position)
        except OSError as error:
            raise storage_error(self.path, "write", error) from error

    def prepare(self, transaction: Transaction) -> None:
        try:
            faults.disk("sync")
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise storage_error(self.path, "sync", error) from error

    def commit(self, transaction: Transaction) -> None:
        """Nothing: the transaction log's entry is what makes it visible."""

    def abort(self, transaction: Transaction) -> None:
        self._cut(transaction.start)

    def close(self) -> None:
        os.close(self._descriptor)

    def _cut(self, end: int) -> None:
        try:
            os.ftruncate(self._descriptor, end)
        except OSError as error:
            raise storage_error(self.path, "truncate", error) from error


class RepeatableFileOutput(FileOutput):
    """An idempotent output: positions may be written again, with the same bytes."""

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        data = b"".join(payloads)
        before = os.pread(self._descriptor, len(data), position)
        if before != data[: len(before)]:
            raise StorageError(
                f"{self.path} gets other bytes at position {position} than it had there: the pipeline is not"
                " deterministic.",
                next_step="Take deterministic=True and idempotent=True out of the app, and begin with a new output.",
                path=str(self.path),
            )
        super().append(position + len(before), [data[len(before) :]])


class FileSink:
    """The outlets of one directory, which it holds for this process alone."""

    def __init__(self, directory: Path, idempotent: Collection[str] = ()) -> None:
        self.directory = directory
        self._idempotent = idempotent
        self._lock = lock_directory(directory)

    def open_outlet(self, instance: str) -> Outlet:
        txnlog = TxnLog(self.directory / f"{instance}.txnlog")
        txnlog.open()
        is_idempotent = instance in self._idempotent
        kind = RepeatableFileOutput if is_idempotent else FileOutput
        return Outlet(kind(self.directory / f"{instance}.data"), txnlog, is_idempotent=is_idempotent)

    def previous(self) -> Address | None:
        """Where the sink's last life listened: workers look for it there."""
        try:
            return parse_address(json.loads((self.directory / "sink.json").read_bytes())["listen"])
        except (OSError, ValueError, KeyError, TypeError, ConfigError):
            return None

    def announce(self, address: Address) -> None:
        """Write down where we listen, for whoever started us."""
        facts = {"listen": str(address), "pid": os.getpid()}
        write_durably(self.directory / "sink.json", json.dumps(facts).encode())

    def close(self) -> None:
        os.close(self._lock)


def run_sink(directory: Path, listen: str, *, cookie: bytes = b"", idempotent: Collection[str] = ()) -> None:
    """Serve the sink until a signal stops it; raises the StorageError that stopped it otherwise."""
    sink = FileSink(directory, idempotent)
    try:
        with listening_socket(parse_address(listen), sink.previous()) as listener:
            sink.announce(address_of(listener))
            run_program(SinkServer(sink.open_outlet, cookie=cookie).serve(listener))
    finally:
        sink.close()
