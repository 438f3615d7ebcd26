"""Appends to an Iceberg table: an epoch is one commit of the catalog, with a file and a table property.

Invariant: the property `procession.output.<output>` is the token; it changes in the commit that adds the file. If
another writer commits first, this module refreshes the table, reads the token and commits again. The library's own
retry could add the file twice. Upstream: `connectors/parquet_output`; downstream: pyiceberg.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog

from procession.connectors.object_store import ObjectStore, local_path, open_store
from procession.connectors.object_store_remote import missing_package, store_error
from procession.connectors.parquet_output import FILE_BYTES, LakeTable, LakeToken, Upload
from procession.connectors.parquet_spool import merge_files
from procession.errors import ConfigError, DiskError, StorageError, UsageError
from procession.storage.durable import make_directory

try:
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.exceptions import (
        CommitFailedException,
        NamespaceAlreadyExistsError,
        NoSuchNamespaceError,
        NoSuchTableError,
        TableAlreadyExistsError,
        ValidationException,
    )
    from pyiceberg.io.pyarrow import parquet_files_to_data_files
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
except ImportError as error:
    raise missing_package("iceberg", error) from error

FILE_IO = "procession.connectors.iceberg_file_io.DurableFileIO"
CATALOG_FILE = "catalog.db"
COMMITS_MAX = 20
"""Maximum number of tries of a commit if other writers commit first."""
RETRY_S = 0.05
S3_SETTINGS = (
    ("s3.endpoint", "AWS_ENDPOINT_URL"),
    ("s3.region", "AWS_DEFAULT_REGION"),
    ("s3.region", "AWS_REGION"),
)
"""Settings that pyiceberg does not read from the environment itself. Without a region, pyiceberg asks AWS."""
PLACES = ("s3://", "file://")
NO_RETRY = {"commit.retry.num-retries": "0"}

log = structlog.get_logger()


class IcebergLakeTable(LakeTable):
    """The Iceberg table of a catalog.

    Args:
        catalog: The catalog.
        name: NAMESPACE.TABLE.
        compact_every: Number of commits after which small files are compacted; 0: never.
        file_bytes: Target size of compacted files.
    """

    def __init__(self, catalog: Catalog, name: str, *, compact_every: int = 0, file_bytes: int = FILE_BYTES) -> None:
        self._compact_every = compact_every
        self._file_bytes = file_bytes
        self._commits = 0
        self._merge_path = Path()
        self._catalog = catalog
        self._name = name
        self.url = f"{catalog.name}/{name}"
        self._table: Table | None = None
        self._store: ObjectStore | None = None

    @property
    def store(self) -> ObjectStore:  # type: ignore[override]
        if self._store is None:
            raise StorageError(
                f"The table {self.url} no longer exists.",
                next_step="Restore the table, or begin with a new table and a new directory of the sink.",
            )
        return self._store

    def check_place(self) -> None:
        self.schema()
        place = self._catalog.properties.get("warehouse", "") if self._table is None else self._table.location()
        if place.startswith(PLACES):  # the warehouse of some catalogs is a name
            open_store(place).check()

    def schema(self) -> pa.Schema | None:
        with self.translated_errors("read"):
            try:
                self._table = self._catalog.load_table(self._name)
            except (NoSuchTableError, NoSuchNamespaceError):
                self._table = None
                return None
            if self._table.spec().fields:
                raise ConfigError(
                    f"This sink cannot append to {self.url}: the table is partitioned.",
                    next_step="Name a table without partitions, or let the sink make a new one.",
                )
            self._store = open_store(self._table.location())
            return _plain_schema(self._table.schema().as_arrow())

    def create(self, schema: pa.Schema) -> pa.Schema:
        with self.translated_errors("make"):
            with suppress(NamespaceAlreadyExistsError):
                self._catalog.create_namespace(self._name.rpartition(".")[0])
            try:
                self._catalog.create_table(self._name, schema, properties=NO_RETRY)
            except TableAlreadyExistsError:
                pass
            except (TypeError, NotImplementedError) as error:
                raise ConfigError(
                    f"An Iceberg table cannot have these columns: {error}.",
                    next_step="Choose other types in the schema file (--schema).",
                ) from error
        found = self.schema()
        assert found is not None
        return found

    def spool_path(self, spare: Path) -> Path:
        self._merge_path = spare.with_suffix(".merge")
        return spare

    def upload_name(self, stem: str) -> str:
        return f"data/part-{stem}.parquet"

    def token(self, instance: str, position: int, last_start: int) -> LakeToken:
        table = self.opened()
        return LakeToken() if table is None else output_token(table, instance)

    def publish(self, instance: str, upload: Upload) -> None:
        value = json.dumps({"end": upload.end, "transaction": upload.txn_id})
        for attempt in range(COMMITS_MAX):
            table = self.opened()
            if table is None or output_token(table, instance).end != upload.start:
                break
            location = f"{table.location()}/{upload.name}"
            with self.translated_errors("commit to"):
                try:
                    with table.transaction() as transaction:
                        transaction.add_files([location], check_duplicate_files=False)
                        transaction.set_properties({output_property(instance): value})
                    return
                except CommitFailedException:
                    time.sleep(RETRY_S * min(attempt + 1, 10))
        raise DiskError(
            f"Cannot commit to {self.url}: other writers were faster.",
            next_step="Stop any other sink of this output, then start this one again.",
            url=self.url,
        )

    def settle(self, instance: str, upload: Upload, *, is_fresh: bool) -> None:
        """Do nothing: the catalog's commit is durable, and its files were synced before it."""
        self._commits += 1

    def tidy(self) -> None:
        if not self._compact_every or self._commits < self._compact_every:
            return
        self._commits = 0
        table = self.opened()
        groups = small_files(table, self._file_bytes) if table is not None else []
        if table is None or not groups:
            return
        merged: list[str] = []
        try:
            with self.translated_errors("compact"):
                for group in groups:
                    merged.append(f"data/part-compacted-{secrets.token_hex(8)}.parquet")
                    self._merge(table, group, merged[-1])
                locations = [f"{table.location()}/{name}" for name in merged]
                with table.transaction() as transaction, transaction.update_snapshot().overwrite() as snapshot:
                    for file in (file for group in groups for file in group):
                        snapshot.delete_data_file(file)
                    for file in parquet_files_to_data_files(table.io, table.metadata, iter(locations)):
                        snapshot.append_data_file(file)
        except (StorageError, CommitFailedException, ValidationException) as error:
            for name in merged:
                self.store.delete(name)
            log.warning("sink.compaction_failed", table=self.url, reason=str(error)[:300])
            return
        log.info("sink.compacted", table=self.url, added=len(merged), removed=sum(map(len, groups)))

    def _merge(self, table: Table, files: Sequence[DataFile], name: str) -> None:
        names = (file.file_path.removeprefix(f"{table.location()}/") for file in files)
        schema = _plain_schema(table.schema().as_arrow())
        merge_files((self.store.open_input(file) for file in names), schema, self._merge_path)
        self.store.upload(self._merge_path, name)

    def close(self) -> None:
        """Do nothing: the catalog has no connection to close."""

    def opened(self) -> Table | None:
        """Return the current table; None if there is no table."""
        if self._table is None:
            self.schema()
        else:
            with self.translated_errors("read"):
                self._table.refresh()
        if self._table is not None:
            self._table.metadata.properties.update(NO_RETRY)  # changes this copy of the properties, not the table's
        return self._table

    @contextmanager
    def translated_errors(self, doing: str) -> Iterator[None]:
        """Translate errors of the catalog into errors of the sink."""
        try:
            yield
        except (StorageError, ConfigError, CommitFailedException):
            raise
        except Exception as error:  # a catalog raises errors of its own driver: SQLAlchemy, HTTP, Thrift
            raise store_error(self.url, doing, error) from error


def small_files(table: Table, file_bytes: int) -> list[list[DataFile]]:
    """Group data files, in the order of their names, so that a group has at most `file_bytes`. Files from which rows
    were deleted, and files in another location, are omitted."""
    tasks = [task for task in table.scan().plan_files() if not task.delete_files]
    files = sorted((task.file for task in tasks), key=lambda file: file.file_path)
    groups: list[list[DataFile]] = []
    size = file_bytes + 1
    for file in files:
        if file.file_size_in_bytes >= file_bytes or not file.file_path.startswith(f"{table.location()}/"):
            continue
        size += file.file_size_in_bytes
        if size > file_bytes:
            groups.append([])
            size = file.file_size_in_bytes
        groups[-1].append(file)
    return [group for group in groups if len(group) > 1]


def output_property(instance: str) -> str:
    """Return the name of the property with the token of an output."""
    return f"procession.output.{instance}"


def output_token(table: Table, instance: str) -> LakeToken:
    """Return the token of an output in this table."""
    value = table.properties.get(output_property(instance))
    if value is None:
        return LakeToken()
    try:
        found = json.loads(value)
        return LakeToken(int(found["end"]), str(found["transaction"]))
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"The property {output_property(instance)} of {table.name()} is not ours: {value[:100]}.",
            next_step="Restore the property from an earlier version of the table, or begin with a new table.",
        ) from error


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema without field ids: files are matched by the names of their columns."""
    return pa.schema([_plain_field(field) for field in schema])


def _plain_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _plain_type(field.type), field.nullable)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(kind.field(index)) for index in range(kind.num_fields)])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _plain_type(kind.value_type), kind.value_field.nullable))
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


def open_iceberg(
    url: str, catalog_name: str = "", *, compact_every: int = 0, file_bytes: int = FILE_BYTES
) -> IcebergLakeTable:
    """Return the table of a URL.

    Args:
        url: With a catalog NAMESPACE.TABLE. Otherwise DIR/NAMESPACE.TABLE: the directory is the warehouse, and
        contains a SQLite catalog.
        catalog_name: A catalog of pyiceberg's configuration: `PYICEBERG_CATALOG__<NAME>__…` or `.pyiceberg.yaml`.
        compact_every: As of `IcebergLakeTable`.
        file_bytes: As of `IcebergLakeTable`.
    """
    properties: dict[str, Any] = {}
    for name, variable in S3_SETTINGS:
        if os.environ.get(variable):
            properties[name] = os.environ[variable]
    warehouse, _, name = url.rpartition("/") if not catalog_name else ("", "", url)
    if not name.rpartition(".")[0]:
        raise UsageError(f"The address {url} names no table.", next_step="Give NAMESPACE.TABLE as its last part.")
    if not catalog_name:
        local = local_path(warehouse) if warehouse else Path.cwd()
        if local is None:
            raise UsageError(
                "A warehouse in an object store needs a catalog.",
                next_step="Give --catalog NAME and NAMESPACE.TABLE; the environment says where the catalog is"
                " (PYICEBERG_CATALOG__NAME__URI, …__WAREHOUSE).",
            )
        make_directory(local)
        properties |= {"type": "sql", "uri": f"sqlite:///{local / CATALOG_FILE}", "warehouse": local.as_uri()}
        properties |= {"py-io-impl": FILE_IO}
    try:
        catalog = load_catalog(catalog_name or "procession", **properties)
    except Exception as error:
        raise ConfigError(
            f"Cannot open the Iceberg catalog {catalog_name or warehouse}: {error}.",
            next_step="Check the catalog's settings (PYICEBERG_CATALOG__… in the environment, or .pyiceberg.yaml).",
        ) from error
    return IcebergLakeTable(catalog, name, compact_every=compact_every, file_bytes=file_bytes)
