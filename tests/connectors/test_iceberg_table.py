"""Iceberg tables only: a commit that another writer overtakes, and tables and catalogs that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from procession.connectors.iceberg_table import IcebergLakeTable, open_iceberg
from procession.connectors.parquet_sink import LakeOptions, lake_opener
from procession.connectors.parquet_spool import merge_files
from procession.errors import ConfigError, StorageError, UsageError
from procession.sdk.participant import SinkParticipant
from procession.sdk.transaction_log import TransactionLog


def opened(directory: Path, table: IcebergLakeTable, instance: str = "app") -> SinkParticipant:
    directory.mkdir(exist_ok=True)
    txnlog = TransactionLog(directory / f"{instance}.txnlog")
    txnlog.open()
    participant = SinkParticipant(lake_opener(directory, lambda: table, LakeOptions())(instance), txnlog)
    participant.begin()
    return participant


def prepare(participant: SinkParticipant, epoch: int, id_: int) -> str:
    payload = json.dumps({"id": id_}).encode()
    start, txn = participant.committed_end, f"app-w-out-id-1.e{epoch}.f1:c_id={epoch}"
    participant.append([start], [payload])
    assert participant.phase1(txn, [(1, start, start + len(payload))])
    return txn


@pytest.fixture
def made(tmp_path: Path) -> Table:
    """Return a table that another program has created, on which the library would retry commits."""
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    catalog = load_catalog(
        "procession", type="sql", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=warehouse.as_uri()
    )
    catalog.create_namespace("sales")
    return catalog.create_table("sales.orders", pa.schema({"id": pa.int64()}))


def ids(table: Table) -> list[int]:
    return sorted(table.refresh().scan().to_arrow().column("id").to_pylist())


class OvertakenTable(IcebergLakeTable):
    """A table to which another writer commits once, just before our commit."""

    overtake: list[tuple[SinkParticipant, str]]

    def opened(self) -> Table | None:
        table = super().opened()
        if table is not None and self.overtake and self.is_publishing:
            participant, txn = self.overtake.pop()
            participant.phase2(txn, True)
        return table

    is_publishing = False

    def publish(self, instance: str, upload: object) -> None:
        self.is_publishing = True
        super().publish(instance, upload)  # type: ignore[arg-type]


def overtaken(url: str) -> OvertakenTable:
    table = open_iceberg(url)
    return OvertakenTable(table._catalog, table._name)


@pytest.mark.parametrize("other", ["app", "other"])
def test_an_overtaken_commit_is_repeated_only_if_the_token_still_allows_it(
    tmp_path: Path, made: Table, other: str
) -> None:
    url = f"{tmp_path}/warehouse/sales.orders"
    rival = opened(tmp_path / "rival", open_iceberg(url), other)
    table = overtaken(url)
    table.overtake = [(rival, prepare(rival, 2, 1000))]
    participant = opened(tmp_path / "sink", table)
    txn = prepare(participant, 1, 7)
    if other == "app":
        with pytest.raises(StorageError, match="other writers were faster"):
            participant.phase2(txn, True)
        assert ids(made) == [1000], "two sinks of one output cannot both publish"
    else:
        participant.phase2(txn, True)
        assert ids(made) == [7, 1000]
    assert "commit.retry.num-retries" not in made.refresh().properties, "the table's own setting is not changed"


def test_a_partitioned_table_is_refused(tmp_path: Path, made: Table) -> None:
    field = PartitionField(1, 1000, IdentityTransform(), "id")
    made.catalog.create_table("sales.parted", made.schema(), partition_spec=PartitionSpec(field))
    with pytest.raises(ConfigError, match="the table is partitioned"):
        opened(tmp_path / "sink", open_iceberg(f"{tmp_path}/warehouse/sales.parted"))


def test_a_url_without_a_table_or_catalog_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names no table"):
        open_iceberg(f"{tmp_path}/orders")
    with pytest.raises(UsageError, match="needs a catalog"):
        open_iceberg("s3://bucket/sales.orders")
    with pytest.raises(ConfigError, match="Cannot open the Iceberg catalog nobody"):
        open_iceberg("sales.orders", "nobody")


def test_small_files_are_compacted_and_the_output_continues_after_them(tmp_path: Path, made: Table) -> None:
    url = f"{tmp_path}/warehouse/sales.orders"
    participant = opened(tmp_path / "sink", open_iceberg(url, compact_every=4))
    for epoch in range(1, 12):
        participant.phase2(prepare(participant, epoch, epoch), True)
    participant.close()
    assert len(list(made.refresh().scan().plan_files())) <= 4
    assert ids(made) == list(range(1, 12))
    participant = opened(tmp_path / "sink", open_iceberg(url, compact_every=1))
    participant.phase2(prepare(participant, 12, 12), True)
    participant.close()
    assert ids(made) == list(range(1, 13))
    assert len(list(made.refresh().scan().plan_files())) == 1


def test_a_compaction_that_another_writer_overtakes_is_abandoned_without_loss(
    tmp_path: Path, made: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{tmp_path}/warehouse/sales.orders"
    participant = opened(tmp_path / "sink", open_iceberg(url, compact_every=2))
    participant.phase2(prepare(participant, 1, 1), True)
    from procession.connectors import iceberg_table

    def overtaken(*arguments: Any) -> Any:
        made.refresh().append(pa.table({"id": [1000]}))
        return merge_files(*arguments)

    monkeypatch.setattr(iceberg_table, "merge_files", overtaken)
    participant.phase2(prepare(participant, 2, 2), True)
    participant.close()
    assert ids(made) == [1, 2, 1000]
    assert len(list(made.refresh().scan().plan_files())) == 3
    assert not list(tmp_path.rglob("part-compacted-*"))
