"""Runs the lake sinks: opens the table from the options and serves the sink.

Invariant: a table is opened with its first output, so that a wrong URL, a missing bucket or refused credentials stop
the sink with one sentence before it accepts a record. Upstream: `cli/lake_commands`; downstream:
`connectors/parquet_output` and the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from procession.connectors.object_store import open_store
from procession.connectors.parquet_columns import ColumnNames, RecordFormat, RowConverter
from procession.connectors.parquet_directory import ParquetDirectory
from procession.connectors.parquet_output import FILE_BYTES, LakeOutput, LakeTable
from procession.connectors.parquet_schema import load_schema
from procession.sdk.output import OpenOutput
from procession.sdk.record_blocks import RecordForm
from procession.sdk.sink_directory import LISTEN, OnOutcome, run_sink
from procession.tls import ServerTls

OpenTable = Callable[[], LakeTable]


@dataclass(frozen=True, slots=True)
class LakeOptions:
    """The options of a lake sink for the conversion of records to rows."""

    form: RecordForm = RecordForm.MESSAGES
    record_format: RecordFormat = RecordFormat.JSON
    schema_file: Path | None = None
    names: ColumnNames = field(default_factory=ColumnNames)

    def declared(self) -> pa.Schema | None:
        """Return the columns of the schema file and of the options."""
        if self.schema_file is None:
            return None
        schema = load_schema(self.schema_file)
        return pa.schema([*schema, *(field for field in self.names.fields() if field.name not in schema.names)])


def lake_opener(directory: Path, open_table: OpenTable, options: LakeOptions) -> OpenOutput:
    """Return a function that opens the output of an instance in this directory. Each output has its own table
    object."""
    declared = options.declared()

    def open_output(instance: str) -> LakeOutput:
        columns = RowConverter(options.record_format, options.names)
        return LakeOutput(directory / instance, open_table(), columns, options.form, declared)

    return open_output


def run_lake_sink(
    directory: Path,
    open_table: OpenTable,
    options: LakeOptions,
    listen: str = LISTEN,
    *,
    cookie: bytes | None = None,
    tls: ServerTls | None = None,
    on_outcome: OnOutcome | None = None,
) -> None:
    """Serve the sink until a signal stops it; raises the error that stopped it otherwise."""
    table = open_table()
    table.check_place()
    table.schema()
    run_sink(
        lake_opener(directory, open_table, options), directory, listen, cookie=cookie, tls=tls, on_outcome=on_outcome
    )


def open_parquet(url: str, *, epochs_per_file: int = 1, file_bytes: int = FILE_BYTES) -> ParquetDirectory:
    """Return the directory or prefix of Parquet files at a URL. The options are those of `ParquetDirectory`."""
    return ParquetDirectory(open_store(url), epochs_per_file=epochs_per_file, file_bytes=file_bytes)
