"""Reads lake tables with the reader's own library: the payloads of one output, in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from procession.sdk.sink_process import Visible


def joined(table: pa.Table) -> bytes:
    return b"".join(table.sort_by("position").column("payload").to_pylist())


def of_parquet(table: Path) -> Visible:
    def visible(_: Path, instance: str) -> bytes:
        paths = sorted(table.glob(f"part-{instance}-[0-9]*.parquet"))
        return joined(pa.concat_tables([pq.read_table(path) for path in paths])) if paths else b""

    return visible


def of_delta(table: Path) -> Visible:
    from deltalake import DeltaTable

    def visible(_: Path, instance: str) -> bytes:
        if not DeltaTable.is_deltatable(str(table)):
            return b""
        paths = [path for path in DeltaTable(table).file_uris() if f"/part-{instance}-0" in path]
        return joined(pa.concat_tables([pq.read_table(path) for path in paths])) if paths else b""

    return visible


def of_iceberg(table: Path) -> Visible:
    from procession.connectors.iceberg_table import open_iceberg

    def visible(_: Path, instance: str) -> bytes:
        opened = open_iceberg(f"{table}/sales.orders")
        if opened.schema() is None or opened._table is None:
            return b""
        paths = [task.file.file_path.removeprefix("file://") for task in opened._table.scan().plan_files()]
        paths = [path for path in paths if f"/part-{instance}-0" in path]
        return joined(pa.concat_tables([pq.read_table(path) for path in paths])) if paths else b""

    return visible


@dataclass(frozen=True, slots=True)
class Place:
    name: str
    arguments: tuple[str, ...]
    reader: Callable[[Path], Visible]


PLACES = (
    Place("parquet", ("parquet", "{table}", "{dir}"), of_parquet),
    Place("delta", ("delta", "{table}", "{dir}"), of_delta),
    Place("iceberg", ("iceberg", "{table}/sales.orders", "{dir}"), of_iceberg),
)
