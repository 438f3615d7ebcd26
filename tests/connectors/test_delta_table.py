"""Delta tables only: tables to which appends are not allowed, statistics, and compaction."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from procession.connectors.delta_table import DeltaLakeTable
from procession.connectors.parquet_sink import LakeOptions, lake_opener
from procession.errors import ConfigError, StorageError
from procession.sdk.participant import SinkParticipant
from procession.sdk.transaction_log import TransactionLog


def opened(directory: Path, table: DeltaLakeTable) -> SinkParticipant:
    directory.mkdir(exist_ok=True)
    txnlog = TransactionLog(directory / "app.txnlog")
    txnlog.open()
    participant = SinkParticipant(lake_opener(directory, lambda: table, LakeOptions())("app"), txnlog)
    participant.begin()
    return participant


def commit(participant: SinkParticipant, epoch: int, **record: object) -> None:
    payload = json.dumps(record).encode()
    start, txn = participant.committed_end, f"app-w-out-id-1.e{epoch}.f1:c_id={epoch}"
    participant.append([start], [payload])
    assert participant.phase1(txn, [(1, start, start + len(payload))])
    participant.phase2(txn, True)


def test_small_files_are_compacted_and_the_output_continues_after_them(tmp_path: Path) -> None:
    path = tmp_path / "table"
    participant = opened(tmp_path / "sink", DeltaLakeTable(str(path), compact_every=4))
    for epoch in range(1, 12):
        commit(participant, epoch, id=epoch, name="x")
    table = DeltaTable(path)
    assert len(table.file_uris()) <= 4
    assert sorted(table.to_pyarrow_table().column("id").to_pylist()) == list(range(1, 12))
    participant.close()
    participant = opened(tmp_path / "sink", DeltaLakeTable(str(path), compact_every=4))
    commit(participant, 12, id=12, name="x")
    assert DeltaTable(path).count() == 12
    participant.close()


def test_statistics_are_exact_so_that_readers_skip_no_matching_file(tmp_path: Path) -> None:
    participant = opened(tmp_path / "sink", DeltaLakeTable(str(tmp_path / "table")))
    commit(participant, 1, id=1, name="a", long="y" * 100, nested={"id": 7})
    commit(participant, 2, id=5, name=None, long="z" * 100, nested={"id": 8})
    participant.close()
    commit_2 = (tmp_path / "table/_delta_log/00000000000000000002.json").read_text()
    logged = [json.loads(line) for line in commit_2.splitlines()]
    [stats] = [json.loads(entry["add"]["stats"]) for entry in logged if "add" in entry]
    assert stats == {
        "numRecords": 1,
        "minValues": {"id": 5},
        "maxValues": {"id": 5},
        "nullCount": {"id": 0, "name": 1, "long": 0},
    }
    found = DeltaTable(tmp_path / "table").to_pyarrow_dataset().to_table(filter=pa.compute.field("id") > 2)
    assert found.column("id").to_pylist() == [5]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"partition_by": ["id"]}, "is partitioned"),
        ({"configuration": {"delta.columnMapping.mode": "name"}}, "maps column names"),
        (
            {"configuration": {"delta.setTransactionRetentionDuration": "interval 7 days"}},
            "forgets transactions",
        ),
    ],
)
def test_a_table_with_unsupported_writer_features_is_refused(
    tmp_path: Path, options: dict[str, object], text: str
) -> None:
    path = tmp_path / "table"
    DeltaTable.create(path, pa.schema({"id": pa.int64(), "name": pa.string()}), **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=text):
        opened(tmp_path / "sink", DeltaLakeTable(str(path)))


def test_a_table_with_constraints_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_deltalake(path, pa.table({"id": [1]}))
    DeltaTable(path).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(ConfigError, match="has constraints"):
        opened(tmp_path / "sink", DeltaLakeTable(str(path)))


def test_commits_of_other_writers_are_noticed_even_after_a_cleanup_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_deltalake(path, pa.table({"id": [0]}))
    idle = DeltaLakeTable(str(path))
    assert idle.token("app", 0, -1).end == 0
    participant = opened(tmp_path / "sink", DeltaLakeTable(str(path)))
    commit(participant, 1, id=1)
    assert idle.token("app", 0, -1).end == participant.committed_end
    commit(participant, 2, id=2)
    commit(participant, 3, id=3)
    DeltaTable(path).create_checkpoint()
    for version in range(3):
        (path / f"_delta_log/{version:020d}.json").unlink()
    assert idle.token("app", 0, -1).end == participant.committed_end
    participant.close()


def test_a_table_that_nobody_has_changed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = DeltaLakeTable(str(tmp_path / "table"))
    participant = opened(tmp_path / "sink", table)
    commit(participant, 1, id=1)
    table.token("app", 0, -1)  # the update after the commit has ended
    updates = []
    update = DeltaTable.update_incremental
    monkeypatch.setattr(DeltaTable, "update_incremental", lambda table: updates.append(update(table)))
    commit(participant, 2, id=2)
    commit(participant, 3, id=3)
    participant.close()
    assert len(updates) == 2


def test_an_update_that_fails_after_a_commit_stops_the_next_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = DeltaLakeTable(str(tmp_path / "table"))
    participant = opened(tmp_path / "sink", table)

    update = DeltaTable.update_incremental
    reasons = [OSError("the store is away")]

    def fail_once(updated: DeltaTable) -> None:
        if reasons:
            raise reasons.pop()
        update(updated)

    monkeypatch.setattr(DeltaTable, "update_incremental", fail_once)
    commit(participant, 1, id=1)
    with pytest.raises(StorageError, match="the store is away"):
        commit(participant, 2, id=2)
    assert table.token("app", 0, -1).end == participant.committed_end
    participant.close()


def test_a_new_table_has_checkpoints_often_enough_for_short_epochs(tmp_path: Path) -> None:
    participant = opened(tmp_path / "sink", DeltaLakeTable(str(tmp_path / "table")))
    for number in range(1, 21):
        commit(participant, number, id=number)
    participant.close()
    assert list((tmp_path / "table/_delta_log").glob("*.checkpoint.parquet"))
