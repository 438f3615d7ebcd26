"""Readers of lake tables see whole epochs only, while the sink writes, compacts and shows ranges."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from procession.connectors.delta_table import DeltaLakeTable
from procession.connectors.iceberg_table import open_iceberg
from procession.connectors.parquet_output import LakeTable
from procession.connectors.parquet_sink import LakeOptions, lake_opener, open_parquet
from procession.sdk.participant import SinkParticipant
from procession.sdk.transaction_log import TransactionLog

ROWS = 50
"""Number of rows in an epoch."""
EPOCHS = 24

Reader = Callable[[Path], pa.Table]


def by_pyarrow(path: Path) -> pa.Table:
    return ds.dataset(path, format="parquet").to_table(columns=["epoch"])


def by_pandas(path: Path) -> pa.Table:
    return pa.Table.from_pandas(pd.read_parquet(path, columns=["epoch"]))


def by_duckdb(path: Path) -> pa.Table:
    with duckdb.connect() as connection:
        return connection.sql(f"SELECT epoch FROM read_parquet('{path}/*.parquet')").to_arrow_table()


def by_deltalake(path: Path) -> pa.Table:
    return DeltaTable(path).to_pyarrow_table(columns=["epoch"])


def by_duckdb_of_delta(path: Path) -> pa.Table:
    rows = DeltaTable(path).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        return connection.from_arrow(rows).select("epoch").to_arrow_table()


def by_pyiceberg(path: Path) -> pa.Table:
    catalog = load_catalog("procession", type="sql", uri=f"sqlite:///{path}/catalog.db")
    return catalog.load_table("sales.orders").scan(selected_fields=("epoch",)).to_arrow()


def by_duckdb_of_iceberg(path: Path) -> pa.Table:
    catalog = load_catalog("procession", type="sql", uri=f"sqlite:///{path}/catalog.db")
    connection = catalog.load_table("sales.orders").scan(selected_fields=("epoch",)).to_duckdb("orders")
    return connection.sql("SELECT epoch FROM orders").to_arrow_table()


def parquet(path: Path) -> LakeTable:
    return open_parquet(str(path))


def parquet_ranges(path: Path) -> LakeTable:
    return open_parquet(str(path), epochs_per_file=5)


def delta(path: Path) -> LakeTable:
    return DeltaLakeTable(str(path), compact_every=5)


def iceberg(path: Path) -> LakeTable:
    return open_iceberg(f"{path}/sales.orders", compact_every=5)


class Writer:
    """A sink that commits epochs in a thread."""

    def __init__(self, directory: Path, open_table: Callable[[], LakeTable], epochs: int = EPOCHS) -> None:
        directory.mkdir()
        self._epochs = epochs
        txnlog = TransactionLog(directory / "app.txnlog")
        txnlog.open()
        self._participant = SinkParticipant(lake_opener(directory, open_table, LakeOptions())("app"), txnlog)
        self._participant.begin()
        self._thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None

    def __enter__(self) -> Writer:
        self.epoch(0)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._participant.close()

    @property
    def is_writing(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            for epoch in range(1, self._epochs):
                self.epoch(epoch)
        except BaseException as error:
            self.error = error

    def epoch(self, number: int) -> None:
        participant = self._participant
        payload = json.dumps({"epoch": number}).encode()
        start, txn_id = participant.committed_end, f"app-w-out-id-1.e{number}.f1:c_id={number}"
        participant.append([start + index * len(payload) for index in range(ROWS)], [payload] * ROWS)
        assert participant.phase1(txn_id, [(1, start, start + ROWS * len(payload))])
        participant.phase2(txn_id, True)


def check_whole(epochs: list[int]) -> int:
    """Check that the rows are whole epochs, from the first one on, and return their number."""
    counts = Counter(epochs)
    assert set(counts.values()) <= {ROWS}
    assert sorted(counts) == list(range(len(counts)))
    return len(counts)


@pytest.mark.parametrize(
    ("open_table", "read"),
    [
        (parquet, by_pyarrow),
        (parquet, by_pandas),
        (parquet, by_duckdb),
        (parquet_ranges, by_duckdb),
        (delta, by_deltalake),
        pytest.param(delta, by_duckdb_of_delta, marks=pytest.mark.slow),
        (iceberg, by_pyiceberg),
        pytest.param(iceberg, by_duckdb_of_iceberg, marks=pytest.mark.slow),
    ],
    ids=lambda function: function.__name__,
)
def test_a_reader_sees_whole_epochs_while_the_sink_writes(
    open_table: Callable[[Path], LakeTable], read: Reader, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    seen = [0]
    with Writer(tmp_path / "sink", lambda: open_table(table)) as writer:
        while writer.is_writing:
            try:
                rows = read(table)
            except (duckdb.IOException, TableNotFoundError, FileNotFoundError):
                assert open_table is parquet_ranges, "only the epochs of an incomplete range may be missing"
                continue
            seen.append(check_whole(rows.column("epoch").to_pylist()))
    assert writer.error is None
    assert seen == sorted(seen), "an epoch that was visible stays visible"
    assert check_whole(read(table).column("epoch").to_pylist()) == EPOCHS


@pytest.mark.slow
def test_spark_sees_whole_epochs_while_the_sink_writes(tmp_path: Path) -> None:
    table, epochs = tmp_path / "table", 8 * EPOCHS
    seen = [0]
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    with builder.config("spark.sql.shuffle.partitions", "1").getOrCreate() as spark:

        def read() -> int:
            rows = spark.read.schema("epoch long").parquet(str(table)).collect()
            return check_whole([row.epoch for row in rows])

        with Writer(tmp_path / "sink", lambda: parquet(table), epochs) as writer:
            while writer.is_writing:
                seen.append(read())
        assert writer.error is None
        assert seen == sorted(seen), "an epoch that was visible stays visible"
        assert read() == epochs
