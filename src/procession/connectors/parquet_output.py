"""Writes the output of a lake sink: one Parquet file per epoch, durable before the vote, published in one atomic
step.

Invariant: the table's token is the end position of this output. It changes in the same atomic step that makes the
data visible. So after a crash the token shows whether a transaction is committed. If the token is neither at the
transaction's start nor at its end, the sink stops. The name of the uploaded file is on disk before the upload, so a
file without a vote is found and removed. Upstream: `sdk/participant`; downstream: a LakeTable.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import structlog

from procession import faults
from procession.commit.transaction_id import TransactionId
from procession.connectors.object_store import ObjectStore
from procession.connectors.parquet_columns import RowConverter
from procession.connectors.parquet_spool import FileFacts, ParquetSpool
from procession.connectors.pending_records import empty_records
from procession.errors import ConfigError, StorageError
from procession.format_number import check_format
from procession.sdk.output import Output
from procession.sdk.record_blocks import RecordForm
from procession.sdk.transaction_log import Transaction
from procession.storage.durable import storage_error, write_durably

FORMAT = 1
NAME_CHARACTERS_MAX = 100
FILE_BYTES = 128 * 1024 * 1024
"""Default size up to which small files are compacted."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LakeToken:
    """The end of an output in a table, and the last transaction: its id, or a number derived from the id. With
    neither, the last transaction is unknown."""

    end: int = 0
    txn_id: str | None = None
    txn_number: int | None = None

    def is_of(self, txn_id: str) -> bool:
        """Return whether this transaction may be the last one of the output."""
        if self.txn_number is not None:
            return self.txn_number == transaction_number(txn_id)
        return self.txn_id in (None, txn_id)


@dataclass(frozen=True, slots=True)
class Upload:
    """A transaction of this output, and its file in the table's store."""

    txn_id: str
    start: int
    end: int
    name: str
    facts: FileFacts


class LakeTable(Protocol):
    """A table to append to. Its methods raise a StorageError where the medium fails."""

    url: str
    """The table's URL, for messages."""
    store: ObjectStore
    """The store with the table's files. A table that does not exist yet may have no store."""

    def check_place(self) -> None:
        """Raise StorageError if the table's location cannot be written. Called before the sink starts."""
        return

    def schema(self) -> pa.Schema | None:
        """Return the table's current schema; None if there is no table."""

    def create(self, schema: pa.Schema) -> pa.Schema:
        """Create the table if there is none. Return the schema of the table."""

    def spool_path(self, spare: Path) -> Path:
        """Return the path for writing a file before its upload; `spare` is a path in the sink's directory."""

    def upload_name(self, stem: str) -> str:
        """Return the name, relative to the store, of a file that no reader sees."""

    def check(self, facts: FileFacts) -> None:
        """Raise RecordError if the rows of this file cannot be published. Called before the vote."""
        return

    def token(self, instance: str, position: int, last_start: int) -> LakeToken:
        """Read the token from the table. It should be at `position` or later. `last_start` is the start of the
        transaction that ended at `position`, -1 if unknown; some tables need it to find the token."""

    def publish(self, instance: str, upload: Upload) -> None:
        """Make the file visible and move the token from `start` to `end`, in one step or not at all."""

    def settle(self, instance: str, upload: Upload, *, is_fresh: bool) -> None:
        """Make the published step durable, and remove files that are no longer needed. Unless `is_fresh`, an earlier
        process published, and may have crashed before the step was durable."""

    def tidy(self) -> None:
        """Run the maintenance that is due after a commit. It does not change rows."""

    def close(self) -> None:
        """Publish the epochs that were held back, because the sink stops without an error."""


class LakeOutput(Output):
    """One output of a lake sink.

    Args:
        base: Path in the sink's directory, without a suffix, for the output's own files.
        table: The table.
        columns: Converts the records.
        form: How the records arrive.
        declared: The schema that the user declares. It creates the table, or must equal the table's schema.
    """

    def __init__(
        self, base: Path, table: LakeTable, columns: RowConverter, form: RecordForm, declared: pa.Schema | None = None
    ) -> None:
        self.instance = base.name
        self._table = table
        self._columns = columns
        self._declared = declared
        self._note = base.with_name(f"{base.name}.upload")
        self._upload: Upload | None
        self._last_start: int
        self._upload, self._last_start = self._noted()
        self._spool = ParquetSpool(table.spool_path(base.with_name(f"{base.name}.spool")), columns, form, self._made)

    def recover(self, committed_end: int, prepared: Transaction | None) -> None:
        self._spool.drop()
        self._read_schema()
        upload = self._upload
        token = self._token(prepared.start if prepared else committed_end)
        allowed = (prepared.start, prepared.end) if prepared else (committed_end,)
        if token.end not in allowed:
            raise self._elsewhere(token, committed_end)
        if prepared and prepared.start < token.end == prepared.end and not token.is_of(prepared.txn_id):
            raise StorageError(
                f"The table at {self._table.url} holds the output {self.instance} up to position {token.end}, but not"
                f" by {prepared.txn_id}: {self._note.parent} is an old copy of the sink's directory.",
                next_step="Start the sink with the directory that this output was written from, or begin with a new"
                " table.",
                instance=self.instance,
            )
        if prepared is not None and prepared.start < prepared.end:
            if upload is None or upload.txn_id != prepared.txn_id:
                raise self._lost(prepared, f"{self._note} does not know it")
            if token.end == prepared.start and not self._table.store.has(upload.name):
                raise self._lost(prepared, f"{upload.name} is not in {self._table.url}")
        elif upload is not None and upload.end > committed_end:
            self._forget(upload)  # nobody voted for it, or it was aborted

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        self._spool.append(position, payloads)

    def prepare(self, transaction: Transaction) -> None:
        if transaction.start == transaction.end:
            if self._spool.has_records:
                raise empty_records()
            return
        facts = self._spool.finish()
        self._table.check(facts)
        token = self._token(transaction.start)
        if token.end != transaction.start:
            raise self._elsewhere(token, transaction.start)
        name = self._table.upload_name(file_stem(self.instance, transaction))
        self._note_down(Upload(*transaction, name, facts), self._start_before(transaction.start))
        faults.point("sink:before-upload")
        self._spool.wait_for_sync()  # a sync reports an error only once, so the error must not be ignored
        self._table.store.upload(self._spool.path, name, is_synced=True)
        faults.point("sink:after-upload")

    def commit(self, transaction: Transaction) -> None:
        if transaction.start == transaction.end:
            return
        upload = self._upload
        if upload is None or upload.txn_id != transaction.txn_id:
            raise self._lost(transaction, f"{self._note} does not know it")
        token = self._token(transaction.start)
        is_fresh = token.end == transaction.start
        if token.end == transaction.end and token.is_of(transaction.txn_id):
            log.info("sink.already_committed", transaction=transaction.txn_id)
        elif is_fresh:
            faults.point("sink:before-publish")
            self._table.publish(self.instance, upload)
            faults.point("sink:after-publish")
        else:
            raise self._elsewhere(token, transaction.start)
        self._table.settle(self.instance, upload, is_fresh=is_fresh)
        self._table.tidy()

    def abort(self, transaction: Transaction) -> None:
        self._spool.drop()
        if self._upload is not None and self._upload.txn_id == transaction.txn_id:
            if self._token(transaction.start).end != transaction.start:
                raise StorageError(
                    f"The driver aborts {transaction.txn_id}, which is in {self._table.url} already.",
                    next_step="Find the other driver or sink of this pipeline; one of them runs on an old copy.",
                )
            self._forget(self._upload)

    def close(self) -> None:
        self._spool.close()
        try:
            self._table.close()
        except StorageError as error:  # the file is removed when the sink starts again
            log.warning("sink.close_failed", table=self._table.url, reason=error.sentence)

    def _read_schema(self) -> None:
        schema = self._table.schema()
        if schema is None and self._declared is not None:
            schema = self._table.create(self._declared)
        if schema is None:
            return
        if self._declared is not None and not _is_same(self._declared, schema):
            raise ConfigError(
                f"The table at {self._table.url} has other columns than the schema file: {_shown(schema)}.",
                next_step="Leave --schema out to use the table's columns, or correct the file.",
            )
        self._columns.use(schema)

    def _made(self, proposed: pa.Schema) -> pa.Schema:
        schema = self._table.create(proposed)
        log.info("sink.table_created", table=self._table.url, columns=_shown(schema))
        return schema

    def _forget(self, upload: Upload) -> None:
        """Remove a file that does not belong to the output, then its entry in the note."""
        self._table.store.delete(upload.name)
        self._note_down(None, self._last_start)

    def _token(self, position: int) -> LakeToken:
        return self._table.token(self.instance, position, self._start_before(position))

    def _start_before(self, position: int) -> int:
        """Return the start of the transaction that ended at this position; -1 if unknown."""
        upload = self._upload
        return upload.start if upload is not None and upload.end == position else self._last_start

    def _note_down(self, upload: Upload | None, last_start: int) -> None:
        note = {"format": FORMAT, "upload": asdict(upload) if upload else None, "last_start": last_start}
        write_durably(self._note, json.dumps(note).encode())
        self._upload, self._last_start = upload, last_start

    def _noted(self) -> tuple[Upload | None, int]:
        try:
            note = json.loads(self._note.read_bytes())
        except FileNotFoundError:
            return None, -1
        except (OSError, ValueError) as error:
            cause = error if isinstance(error, OSError) else OSError(str(error))
            raise storage_error(self._note, "read", cause) from error
        check_format(self._note, note.get("format"), FORMAT)
        upload = note["upload"]
        return Upload(**{**upload, "facts": FileFacts(**upload["facts"])}) if upload else None, note["last_start"]

    def _elsewhere(self, token: LakeToken, expected: int) -> StorageError:
        return StorageError(
            f"The table at {self._table.url} holds the output {self.instance} up to position {token.end}, but this"
            f" sink has written it up to {expected}.",
            next_step="Stop any other sink that writes this output, use the sink's own directory and table, or begin"
            " with a new table.",
            instance=self.instance,
            token=token.end,
            expected=expected,
        )

    def _lost(self, transaction: Transaction, reason: str) -> StorageError:
        return StorageError(
            f"Output that was voted for is lost ({transaction.txn_id}): {reason}.",
            next_step="Restore the sink's directory or the file from a copy, then start again.",
            path=str(self._note),
        )


def file_stem(instance: str, transaction: Transaction) -> str:
    """Return a unique name for an upload: the output, its position, the epoch, the attempt, and a random part, in
    case two sinks get the same transaction."""
    parsed = TransactionId.parse(transaction.txn_id)
    attempt = (
        f"e{parsed.epoch}-f{parsed.fence}-a{parsed.attempt}"
        if parsed
        else hashlib.sha256(transaction.txn_id.encode()).hexdigest()[:20]
    )
    return f"{safe_name(instance)}-{transaction.start:020d}-{attempt}-{secrets.token_hex(4)}"


def transaction_number(txn_id: str) -> int:
    """Return a number of 63 bits for a transaction, for tables whose tokens are numbers."""
    return int.from_bytes(hashlib.sha256(txn_id.encode()).digest()[:8]) >> 1


def safe_name(instance: str) -> str:
    """Return the instance's name in a form that is valid in file names and URLs, and unique."""
    kept = re.sub(r"[^A-Za-z0-9._-]", "_", instance)[:NAME_CHARACTERS_MAX]
    return kept if kept == instance else f"{kept}-{hashlib.sha256(instance.encode()).hexdigest()[:12]}"


def _is_same(declared: pa.Schema, schema: pa.Schema) -> bool:
    return {field.name: _plain(field.type) for field in declared} == {
        field.name: _plain(field.type) for field in schema
    }


def _plain(kind: pa.DataType) -> str:
    """Return a type as text without the details that file formats change: large types, names of list elements."""
    return re.sub(r"large_|: not null| not null|<(item|element): ", lambda m: "<" if m[0][0] == "<" else "", str(kind))


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)[:500]
