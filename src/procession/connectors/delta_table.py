"""Appends to a Delta table: an epoch is one commit of the table's log, with rows and an application transaction.

Invariant: the version of the application transaction `procession:<output>` is the token; that of
`procession:<output>:transaction`, in the same commit, is a number derived from the transaction's id. The token is
compared with the transaction's start on the same snapshot from which the commit is made; the log accepts an older
version silently, but not a commit of the same application after our snapshot. Upstream: `connectors/parquet_output`;
downstream: deltalake.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from procession.connectors.delta_merge import MergeRule
from procession.connectors.object_store import LocalStore, local_path, open_store
from procession.connectors.object_store_remote import missing_package, storage_options, store_error
from procession.connectors.parquet_output import FILE_BYTES, LakeTable, LakeToken, Upload, transaction_number
from procession.connectors.parquet_spool import FileFacts
from procession.errors import ConfigError, DiskError, StorageError
from procession.runtime.host_files import sync
from procession.storage.durable import fsync_dir, storage_error

try:
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
    from deltalake.transaction import AddAction
except ImportError as error:
    raise missing_package("delta", error) from error

COMMIT_RETRIES_MAX = 20
"""Maximum number of retries of a commit after commits of other writers, which do not change our token."""
HISTORY_COMMITS_MAX = 1000
"""After a crash, this many of the latest commits are searched for one of ours."""
CONFIGURATION = {"delta.checkpointInterval": "20"}
"""Configuration of tables that the sink creates. Each commit reads all commits after the last checkpoint. With
deltalake's default interval, 100, a commit takes more than twice as long."""
TRANSACTION = "procession.transaction"
FEATURES = frozenset(
    {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "timestampNtz", "deletionVectors"}
    | {"v2Checkpoint", "vacuumProtocolCheck"}
)
"""Table features that a plain append supports. Constraints are checked one by one."""
FIELD_FEATURES = ("delta.generationExpression", "delta.invariants", "delta.identity.start")
RETENTION = "delta.setTransactionRetentionDuration"

log = structlog.get_logger()


class DeltaLakeTable(LakeTable):
    """The Delta table at a URL.

    Args:
        url: A path, or the URL of an object store.
        compact_every: Number of commits after which small files are compacted; 0: never.
        file_bytes: Target size of compacted files.
        rule: How rows replace and delete rows with the same key. None: rows are only appended.
    """

    def __init__(
        self, url: str, *, compact_every: int = 0, file_bytes: int = FILE_BYTES, rule: MergeRule | None = None
    ) -> None:
        self.store = open_store(url)
        self._rule = rule
        self.url = self.store.url
        self._compact_every = compact_every
        self._file_bytes = file_bytes
        self._commits = 0
        self._options = None if local_path(url) else storage_options(os.environ)
        self._log = self.store.root / "_delta_log" if isinstance(self.store, LocalStore) else None
        self._table: DeltaTable | None = None
        self._tokens: dict[str, LakeToken] = {}
        """The tokens that were read from the snapshot in `_table`."""
        self._thread = ThreadPoolExecutor(1, "delta")
        self._updating: Future[None] | None = None
        """The update after our last commit, which runs while the next epoch arrives. No other thread may use `_table`
        until it is done."""

    def check_place(self) -> None:
        self.store.check()

    def schema(self) -> pa.Schema | None:
        self._wait_for_update()
        self._tokens.clear()
        with self.translated_errors("read"):
            try:
                self._table = DeltaTable(self.url, storage_options=self._options)
            except TableNotFoundError:
                self._table = None
                return None
            _refuse_what_appends_must_know(self._table, self.url)
            schema = pa.schema(self._table.schema().to_arrow())
        if self._rule is not None:
            self._rule.check_schema(schema, self.url)
        return schema

    def create(self, schema: pa.Schema) -> pa.Schema:
        if self._rule is not None:
            self._rule.check_schema(schema, self.url)
        with self.translated_errors("make"):
            try:
                columns = Schema.from_arrow(schema)
            except (DeltaError, ValueError, TypeError) as error:
                raise ConfigError(
                    f"A Delta table cannot have these columns: {error}.",
                    next_step="Choose other types in the schema file (--schema).",
                ) from error
            if self._log is not None:
                self.store.spool_path(Path("spool"))  # makes the directory, durably
            DeltaTable.create(
                self.url, columns, mode="ignore", configuration=CONFIGURATION, storage_options=self._options
            )
        found = self.schema()
        assert found is not None
        self._sync_log(range(1))
        return found

    def check(self, facts: FileFacts) -> None:
        if self._rule is not None:
            self._rule.check_rows(facts)

    def spool_path(self, spare: Path) -> Path:
        return self.store.spool_path(spare)

    def upload_name(self, stem: str) -> str:
        return f"part-{stem}.parquet"

    def token(self, instance: str, position: int, last_start: int) -> LakeToken:
        table = self._refreshed()
        if table is None:
            return LakeToken()
        if instance not in self._tokens:
            with self.translated_errors("read"):
                self._tokens[instance] = _read_token(table, instance)
        return self._tokens[instance]

    def publish(self, instance: str, upload: Upload) -> None:
        """Commit on the snapshot of the last `token`, which the caller has compared."""
        assert self._table is not None
        before = self._table.version()
        facts, now_ms = upload.facts, time.time_ns() // 1_000_000
        add = AddAction(upload.name, facts.bytes, {}, now_ms, True, facts.statistics)
        properties = CommitProperties(
            custom_metadata={TRANSACTION: upload.txn_id},
            max_commit_retries=COMMIT_RETRIES_MAX,
            app_transactions=[
                Transaction(application(instance), upload.end, now_ms),
                Transaction(last_transaction(instance), transaction_number(upload.txn_id), now_ms),
            ],
        )
        with self.translated_errors("commit to"):
            if self._rule is not None:
                self._merge(self._rule, upload, properties)
                return
            self._table.create_write_transaction(
                [add], mode="append", schema=self._table.schema(), commit_properties=properties
            )
        self._sync_log(range(before + 1, self._last_version(before) + 1) if self._log else range(0))
        self._updating = self._thread.submit(self._update)

    def _merge(self, rule: MergeRule, upload: Upload, properties: CommitProperties) -> None:
        """Merge the uploaded rows into the table. The uploaded file does not become part of the table."""
        assert self._table is not None
        before = self._table.version()
        with self.store.open_input(upload.name) as file:
            rows = pq.read_table(file)
        rule.merge(self._table, rule.last_rows(rows), properties)
        if self._table.version() == before:  # a MERGE that changes nothing makes no commit
            self._table.create_write_transaction(
                [], mode="append", schema=self._table.schema(), commit_properties=properties
            )
        if self._log is not None:
            self._sync_added(range(before + 1, self._last_version(before) + 1))
        self._updating = self._thread.submit(self._update)

    def settle(self, instance: str, upload: Upload, *, is_fresh: bool) -> None:
        self._settle(instance, upload, is_fresh=is_fresh)
        if self._rule is not None:
            self.store.delete(upload.name)

    def _settle(self, instance: str, upload: Upload, *, is_fresh: bool) -> None:
        if is_fresh:
            self._commits += 1
            return
        self._wait_for_update()
        assert self._table is not None
        with self.translated_errors("read"):
            commits = self._table.history(HISTORY_COMMITS_MAX)
        ours = [commit for commit in commits if commit.get(TRANSACTION) == upload.txn_id]
        if commits and not ours and len(commits) < HISTORY_COMMITS_MAX and commits[-1]["version"] == 0:
            raise StorageError(
                f"Another sink has written the output {instance} up to position {upload.end} to {self.url}.",
                next_step="Stop one of the two sinks, or give each a table of its own.",
                instance=instance,
            )
        for commit in ours:
            self.store.renew(f"_delta_log/{_log_name(commit['version'])}")

    def tidy(self) -> None:
        if not self._compact_every or self._commits < self._compact_every or self._table is None:
            return
        self._commits = 0
        try:
            self._wait_for_update()
            self._update()
            before = self._table.version()
            done = self._table.optimize.compact(target_size=self._file_bytes)
            self._update()
        except (DeltaError, OSError, ValueError) as error:
            log.warning("sink.compaction_failed", table=self.url, reason=str(error)[:300])
            return
        if self._log is not None:
            self._sync_added(range(before + 1, self._table.version() + 1))
        log.info("sink.compacted", table=self.url, added=done["numFilesAdded"], removed=done["numFilesRemoved"])

    def close(self) -> None:
        self._thread.shutdown()

    def opened(self) -> DeltaTable:
        """Return the current table as a separate object for another reader. Raises TableNotFoundError."""
        return DeltaTable(self.url, storage_options=self._options)

    def sync_versions(self, before: int) -> None:
        """Make the versions after this one durable, with the files that they name."""
        if self._log is not None:
            self._sync_added(range(before + 1, self._last_version(before) + 1))

    def _refreshed(self) -> DeltaTable | None:
        """Return the current table. An update reads all commits after the last checkpoint, even if none of them is
        new."""
        self._wait_for_update()
        if self._table is None:
            self.schema()
        else:
            version = self._table.version()
            # The oldest commits are cleaned up first, so if ours still exists, so would a later one.
            is_current = self._has_version(version) and not self._has_version(version + 1)
            if not is_current:
                with self.translated_errors("read"):
                    self._update()
        return self._table

    def _wait_for_update(self) -> None:
        updating, self._updating = self._updating, None
        if updating is not None:
            with self.translated_errors("read"):
                updating.result()

    def _update(self) -> None:
        """Read the new commits of the log, then the known tokens. Reading the tokens takes as long as reading the
        log."""
        assert self._table is not None
        known = list(self._tokens)
        self._tokens.clear()
        self._table.update_incremental()
        self._tokens = {instance: _read_token(self._table, instance) for instance in known}

    def _last_version(self, known: int) -> int:
        """Return the last version of the log at or after a known one."""
        while self._has_version(known + 1):
            known += 1
        return known

    def _has_version(self, version: int) -> bool:
        return self.store.has(f"_delta_log/{_log_name(version)}")

    def _sync_added(self, versions: range) -> None:
        """Sync files that the library wrote, then the commits that name them."""
        assert isinstance(self.store, LocalStore)
        for version in versions:
            lines = (self.store.read(f"_delta_log/{_log_name(version)}", self._file_bytes) or b"").splitlines()
            for added in filter(None, (json.loads(line).get("add") for line in lines)):
                _sync_file(self.store.root / added["path"])
        fsync_dir(self.store.root)
        self._sync_log(versions)

    def _sync_log(self, versions: range) -> None:
        """Sync the log on a local disk, which the library does not do."""
        if self._log is None:
            return
        for version in versions:
            _sync_file(self._log / _log_name(version))
        fsync_dir(self._log)

    @contextmanager
    def translated_errors(self, doing: str) -> Iterator[None]:
        """Translate errors of the library into errors of the sink."""
        try:
            yield
        except CommitFailedError as error:
            raise DiskError(
                f"Cannot commit to {self.url}: another writer was faster ({error}).",
                next_step="Stop any other sink of this output, then start this one again.",
                url=self.url,
            ) from error
        except (DeltaError, OSError, ValueError) as error:
            raise store_error(self.url, doing, error) from error


def application(instance: str) -> str:
    """Return the application whose version is the token of an output."""
    return f"procession:{instance}"


def last_transaction(instance: str) -> str:
    """Return the application whose version is the number of the last transaction of an output."""
    return f"{application(instance)}:transaction"


def _read_token(table: DeltaTable, instance: str) -> LakeToken:
    end = table.transaction_version(application(instance)) or 0
    return LakeToken(end, txn_number=table.transaction_version(last_transaction(instance)))


def _log_name(version: int) -> str:
    return f"{version:020d}.json"


def _sync_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            sync(file.fileno())
    except FileNotFoundError:
        return  # cleaned up since, because a checkpoint contains it
    except OSError as error:
        raise storage_error(path, "sync", error) from error


def _refuse_what_appends_must_know(table: DeltaTable, url: str) -> None:
    """Raise ConfigError if the table has a feature that this sink does not support, such as constraints or
    partitions."""
    metadata, protocol = table.metadata(), table.protocol()
    unknown = sorted(set(protocol.writer_features or ()) - FEATURES)
    obstacles = {
        "is partitioned": bool(metadata.partition_columns),
        "has constraints": any(name.startswith("delta.constraints.") for name in metadata.configuration),
        "maps column names": metadata.configuration.get("delta.columnMapping.mode", "none") != "none",
        "has generated or checked columns": any(
            obstacle in (field.metadata or {}) for field in table.schema().fields for obstacle in FIELD_FEATURES
        ),
        f"forgets transactions ({RETENTION})": RETENTION in metadata.configuration,
        f"needs {', '.join(unknown)}": bool(unknown),
    }
    for obstacle, is_there in obstacles.items():
        if is_there:
            raise ConfigError(
                f"This sink cannot append to {url}: the table {obstacle}.",
                next_step="Name a table without that, or let the sink create a new table.",
            )
