"""The epochs sink: writes one file per committed epoch, DIR/<instance>.epochs/<position>-<epoch><suffix>.

Invariant: a file in the directory is complete and committed, and never changes. It is renamed into the directory when
the epoch is committed. Names begin with the position of the file's first byte, so they sort in output order.
Uncommitted output is outside of the directory. Readers may remove files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from procession import faults
from procession.connectors.pending_file import READ_BYTES, PendingFile
from procession.errors import StorageError, UsageError
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.sdk.output import Output
from procession.sdk.sink_directory import LISTEN, OnOutcome, run_sink
from procession.sdk.transaction_log import Transaction
from procession.storage.durable import fsync_dir, make_if_missing, renew_durably, storage_error
from procession.tls import ServerTls

SUFFIX = ".data"
"""The default suffix of file names."""
SUFFIX_CHARACTERS_MAX = 32

_EPOCH = re.compile(r"\.e(\d{1,20})\.f\d+:c_id=\d+$")
_EPOCH_BEFORE = re.compile(r":c_id=(\d{1,20})$")
"""Matches the epoch in transaction ids of earlier versions, which had no attempt number."""
_NAME = re.compile(r"(\d{20})-(\d{20}).*", re.ASCII | re.DOTALL)
_SUFFIX = re.compile(r"\.[A-Za-z0-9._-]+", re.ASCII)

log = structlog.get_logger()


class EpochsOutput(Output):
    """The output of one instance. With `is_empty_kept`, an epoch without output gets an empty file."""

    def __init__(
        self, base: Path, *, suffix: str = SUFFIX, is_empty_kept: bool = False, files: FileSystem = HOST_FILES
    ) -> None:
        self.directory = epochs_directory(base)
        self._files = files
        self._suffix = suffix
        self._is_empty_kept = is_empty_kept
        self._pending = PendingFile(base.with_name(f"{base.name}.pending"), files)
        self._draft = base.with_name(f"{base.name}.renewed")
        """This file is outside of the directory, so readers do not see it."""
        try:
            make_if_missing(self.directory, files)
        except OSError as error:
            raise storage_error(self.directory, "make", error) from error
        fsync_dir(self.directory.parent, files)

    def recover(self, committed_end: int, prepared: Transaction | None) -> None:
        if prepared is None or not self._has_file(prepared):
            self._pending.drop()
        elif not self._pending.keep(prepared):
            # Only `commit` renames the file, so the sink crashed between the rename and the log entry. A reader may
            # have removed the file since.
            log.info("sink.already_committed", transaction=prepared.txn_id)

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        self._pending.append(position, payloads)

    def prepare(self, transaction: Transaction) -> None:
        if self._has_file(transaction):
            self._pending.sync()

    def commit(self, transaction: Transaction) -> None:
        if not self._has_file(transaction):
            return
        path = self.directory / file_name(transaction, self._suffix)
        self._pending.close()
        try:
            if self._files.exists(self._pending.path):
                if self._files.exists(path) and transaction.start < transaction.end:
                    if self._is_in_both(path):
                        self._renew(path)
                        self._pending.drop()
                        return
                    raise StorageError(
                        f"{path} already exists.",
                        next_step="Move it away if it does not belong to this output, then start again.",
                        path=str(path),
                    )
                self._files.rename(self._pending.path, path)
                faults.point("sink:epoch-renamed")
                fsync_dir(self.directory, self._files)
                return
        except OSError as error:
            raise storage_error(path, "write", error) from error
        if self._files.exists(path):
            # An earlier process renamed it and may have failed to sync the directory: copy and rename it again.
            self._renew(path)

    def _is_in_both(self, path: Path) -> bool:
        """Return whether this file has the bytes of the pending file. After a power cut, a renamed file may have both
        names: each directory is synced separately."""
        with self._files.open(path) as renamed, self._files.open(self._pending.path) as pending:
            size = pending.size
            return renamed.size == size and all(
                renamed.read(READ_BYTES, start) == pending.read(READ_BYTES, start)
                for start in range(0, size, READ_BYTES)
            )

    def _renew(self, path: Path) -> None:
        try:
            with self._files.open(path) as file:
                size = file.size
            renew_durably(path, size, self._files, self._draft)
        except FileNotFoundError:
            return  # a reader has removed it
        except StorageError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
        except OSError as error:
            raise storage_error(path, "write", error) from error

    def abort(self, transaction: Transaction) -> None:
        self._pending.drop()

    def close(self) -> None:
        self._pending.close()

    def _has_file(self, transaction: Transaction) -> bool:
        return self._is_empty_kept or transaction.start < transaction.end


@dataclass(frozen=True, slots=True)
class EpochFile:
    """One file of an epochs directory: bytes [start, end) of the output."""

    path: Path
    start: int
    end: int


def epochs_directory(base: Path) -> Path:
    """Return the directory of an output's files. `base` is the sink's directory plus the instance."""
    return base.with_name(f"{base.name}.epochs")


def file_name(transaction: Transaction, suffix: str = SUFFIX) -> str:
    """Return the file's name: the position, and the epoch in the transaction id, or 0. It is the same for every attempt
    of the epoch."""
    found = _EPOCH.search(transaction.txn_id) or _EPOCH_BEFORE.search(transaction.txn_id)
    return f"{transaction.start:020d}-{int(found[1]) if found else 0:020d}{suffix}"


def epoch_files(directory: Path, after: str = "") -> Iterator[EpochFile]:
    """Yield the files of an epochs directory in output order, from names greater than `after` on.

    Files with other names are ignored."""
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        raise storage_error(directory, "read", error) from error
    for name in names:
        if name > after and (found := _NAME.fullmatch(name)):
            path, start = directory / name, int(found[1])
            try:
                yield EpochFile(path, start, start + path.stat().st_size)
            except FileNotFoundError:
                continue  # a reader has removed it


def run_epochs_sink(
    directory: Path,
    listen: str = LISTEN,
    *,
    suffix: str = SUFFIX,
    is_empty_kept: bool = False,
    cookie: bytes | None = None,
    tls: ServerTls | None = None,
    on_outcome: OnOutcome | None = None,
    files: FileSystem = HOST_FILES,
) -> None:
    """Serve the sink until a signal stops it. Raises the StorageError that stops it otherwise."""
    if not _SUFFIX.fullmatch(suffix) or len(suffix) > SUFFIX_CHARACTERS_MAX:
        raise UsageError(
            f"{suffix!r} is not a valid suffix.", next_step="Use a dot and letters or digits, such as .csv."
        )

    def open_output(instance: str) -> EpochsOutput:
        return EpochsOutput(directory / instance, suffix=suffix, is_empty_kept=is_empty_kept, files=files)

    run_sink(open_output, directory, listen, cookie=cookie, tls=tls, on_outcome=on_outcome, files=files)
