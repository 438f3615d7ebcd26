"""`procession sink parquet|delta|iceberg`: the lake sinks as commands.

Invariant: as in `cli`. Upstream: `cli/connector_group`, which loads them. Downstream: `connectors/parquet_sink`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from procession.cli.command_options import with_groups
from procession.cli.sink_commands import Json, ReceiveOptions, Records, print_json

if TYPE_CHECKING:
    from procession.connectors.parquet_output import LakeTable
    from procession.connectors.parquet_sink import LakeOptions, OpenTable

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="The table: a path, or s3://BUCKET/PREFIX. For S3, set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and"
        " AWS_REGION in the environment; AWS_ENDPOINT_URL for a store other than Amazon's.",
    ),
]
Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="The sink's own directory: its transaction logs and notes of uploads.")
]


FILE_BYTES, FILE_BYTES_MIN = 128 * 1024 * 1024, 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class CompactionOptions:
    """Options of sinks whose tables can be compacted."""

    compact_every: Annotated[
        int, typer.Option(min=0, help="Number of commits after which small files are compacted. 0: never.")
    ] = 0
    file_bytes: Annotated[int, typer.Option(min=FILE_BYTES_MIN, help="Target size of compacted files, in bytes.")] = (
        FILE_BYTES
    )


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """Options of every lake sink for the conversion of records to rows."""

    records: Records = "messages"
    format: Annotated[
        Literal["json", "arrow", "bytes"],
        typer.Option(help="What a record is: json (an object), arrow (an IPC stream) or bytes (one column)."),
    ] = "json"
    schema: Annotated[
        Path | None,
        typer.Option(
            show_default="the table's, or inferred from the first epoch",
            help='JSON file of column names and types: {"id": "int64 not null", "at": "timestamp"}.',
        ),
    ] = None
    key_column: Annotated[str, typer.Option(help="Column for the record's key (with --records blocks).")] = ""
    event_time_column: Annotated[
        str, typer.Option(help="Column for the record's event time (with --records blocks).")
    ] = ""
    position_column: Annotated[
        str, typer.Option(help="Column for the position in the output, by which rows can be sorted.")
    ] = ""

    def load(self) -> LakeOptions:
        from procession.connectors.parquet_columns import ColumnNames, RecordFormat
        from procession.connectors.parquet_sink import LakeOptions
        from procession.errors import UsageError
        from procession.sdk.record_blocks import RecordForm

        if (self.key_column or self.event_time_column) and self.records != "blocks":
            raise UsageError(
                "Records in messages have no key and no event time.",
                next_step="Leave --key-column and --event-time-column out, or give --records blocks.",
            )
        names = ColumnNames(self.key_column, self.event_time_column, self.position_column)
        return LakeOptions(RecordForm(self.records), RecordFormat(self.format), self.schema, names)


@dataclass(frozen=True, kw_only=True)
class LakeSinkOptions:
    """Options of every lake sink."""

    as_json: Json = False
    rows: RowOptions
    receive: ReceiveOptions

    def serve(self, directory: Path, open_table: OpenTable) -> None:
        from procession.connectors.parquet_sink import run_lake_sink

        run_lake_sink(
            directory,
            open_table,
            self.rows.load(),
            self.receive.listen,
            cookie=self.receive.cookie(),
            tls=self.receive.tls.load(),
            on_outcome=print_json if self.as_json else None,
        )


@with_groups
def sink_parquet(
    url: Url,
    directory: Directory,
    epochs_per_file: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of committed epochs per file. A file is written earlier at --file-bytes, and when the sink"
            " stops.",
        ),
    ] = 1,
    file_bytes: Annotated[
        int,
        typer.Option(min=FILE_BYTES_MIN, help="Bytes at which a file is written before it has --epochs-per-file."),
    ] = FILE_BYTES,
    *,
    options: LakeSinkOptions,
) -> None:
    """Write one Parquet file per committed epoch to a directory or an object store. It appears at the commit."""
    from procession.connectors.parquet_sink import open_parquet

    def open_table() -> LakeTable:
        return open_parquet(url, epochs_per_file=epochs_per_file, file_bytes=file_bytes)

    options.serve(directory, open_table)


@with_groups
def sink_delta(
    url: Url,
    directory: Directory,
    key: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Replace the row with the same values in these columns: shop,hour.")
    ] = "",
    delete_when: Annotated[
        str,
        typer.Option(metavar="COLUMN=VALUE", help="With --key: records with this value delete the row of their key."),
    ] = "",
    *,
    compaction: CompactionOptions,
    options: LakeSinkOptions,
) -> None:
    """Append each committed epoch to a Delta table, in one commit of its log. The table is created if there is none.

    With --key, each epoch is merged instead: the last record of each key replaces the key's row.
    """
    from procession.connectors.delta_merge import MergeRule
    from procession.connectors.delta_table import DeltaLakeTable

    rule = MergeRule.parse(key, delete_when)

    def open_table() -> LakeTable:
        return DeltaLakeTable(url, **asdict(compaction), rule=rule)

    options.serve(directory, open_table)


@with_groups
def sink_iceberg(
    url: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="WAREHOUSE/NAMESPACE.TABLE, where WAREHOUSE is a directory; with --catalog NAMESPACE.TABLE.",
        ),
    ],
    directory: Directory,
    catalog: Annotated[
        str,
        typer.Option(
            show_default="SQLite, in WAREHOUSE/catalog.db",
            help="Catalog of pyiceberg's configuration: PYICEBERG_CATALOG__NAME__URI and others, or .pyiceberg.yaml.",
        ),
    ] = "",
    *,
    compaction: CompactionOptions,
    options: LakeSinkOptions,
) -> None:
    """Append each committed epoch to an Iceberg table, in one commit of its catalog. A missing table is created."""
    from procession.connectors.iceberg_table import open_iceberg

    def open_table() -> LakeTable:
        return open_iceberg(url, catalog, **asdict(compaction))

    options.serve(directory, open_table)
