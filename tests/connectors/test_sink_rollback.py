"""Rollback of committed output removes everything after a position and nothing before it, also if it is killed
halfway."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from procession.connectors.delta_rollback import DeltaRollback
from procession.connectors.delta_table import DeltaLakeTable
from procession.connectors.file_sink import FileOutput
from procession.connectors.iceberg_rollback import IcebergRollback
from procession.connectors.iceberg_table import open_iceberg
from procession.connectors.parquet_sink import LakeOptions, lake_opener
from procession.connectors.sink_rollback import FileRollback, LaneRollback, SinkPlace
from procession.errors import ConfigError, StorageError
from procession.sdk.lane_files import open_directory
from procession.sdk.lane_merge import LaneMerge
from procession.sdk.participant import SinkParticipant
from procession.sdk.transaction_log import TransactionLog, TransactionTail, committed_ranges
from procession.storage.durable import lock_directory
from tests.sdk.lanes import LaneWriter


class Sink:
    """A sink of each kind, without a server. It commits one record per epoch, and is read as its readers do."""

    def __init__(self, kind: str, base: Path) -> None:
        self.kind = kind
        self.base = base
        self.url = {"file": "file:sink", "delta": "delta:table", "iceberg": "iceberg:warehouse/space.table"}[kind]
        document = {"url": self.url, "instance": "app", "directory": str(base / "sink"), "base": str(base)}
        self.place = SinkPlace.of("out", document)
        self.ends: list[int] = []
        self._epoch = 0

    @property
    def rollback(self) -> Any:
        return {"file": FileRollback, "delta": DeltaRollback, "iceberg": IcebergRollback}[self.kind](self.place)

    def write(self, *ids: int) -> None:
        """Start the sink, commit one record after the other, and stop it."""
        self.place.directory.mkdir(exist_ok=True)
        txnlog = TransactionLog(self.place.txnlog)
        txnlog.open()
        participant = SinkParticipant(self._output(), txnlog)
        participant.begin()
        for number in ids:
            self._epoch += 1
            payload = json.dumps({"id": number}).encode() + b"\n"
            start, txn = participant.committed_end, self.txn(self._epoch)
            participant.append([start], [payload])
            assert participant.phase1(txn, [(1, start, start + len(payload))])
            participant.phase2(txn, True)
            self.ends.append(participant.committed_end)
        participant.close()

    @staticmethod
    def txn(epoch: int) -> str:
        return f"app-w-out-id-1.e{epoch}.f1:c_id={epoch}"

    def _output(self) -> Any:
        if self.kind == "file":
            return FileOutput(self.place.directory / "app.data")
        table: Any
        table = DeltaLakeTable(self.place.target) if self.kind == "delta" else open_iceberg(self.place.target)
        return lake_opener(self.place.directory, lambda: table, LakeOptions())("app")

    def ids(self) -> list[int]:
        if self.kind == "file":
            lines = (self.place.directory / "app.data").read_bytes().splitlines()
            return [int(json.loads(line)["id"]) for line in lines]
        if self.kind == "delta":
            return sorted(DeltaTable(self.place.target).to_pyarrow_table().column("id").to_pylist())
        table = open_iceberg(self.place.target).opened()
        assert table is not None
        return sorted(table.scan().to_arrow().column("id").to_pylist())


@pytest.fixture(params=["file", "delta", "iceberg"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Sink:
    found = Sink(request.param, tmp_path)
    found.write(1, 2, 3, 4, 5)
    return found


def test_output_after_a_position_is_removed_and_new_output_follows(sink: Sink) -> None:
    end, tail = sink.ends[1], TransactionTail(sink.place.txnlog)
    assert list(tail.poll())[-1].end == sink.ends[-1]
    sink.rollback.check(end)
    assert sink.ids() == [1, 2, 3, 4, 5]
    sink.rollback.perform(end, sink.txn(2))
    assert sink.ids() == [1, 2]
    assert committed_ranges(sink.place.txnlog) == [(0, end)]
    assert list(tail.poll())[-1].end == end  # a reader that stays notices
    sink.write(30, 40)
    assert sink.ids() == [1, 2, 30, 40]
    sink.rollback.perform(sink.ends[0], sink.txn(1))  # to a position before the last rollback
    assert sink.ids() == [1]


def test_all_output_can_be_removed(sink: Sink) -> None:
    sink.rollback.check(0)
    sink.rollback.perform(0, "")
    assert sink.ids() == []
    sink.write(7)
    assert sink.ids() == [7]


def test_a_rollback_that_was_killed_before_its_log_is_repeated(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TransactionLog, "roll_back", killed)
        with pytest.raises(KeyboardInterrupt):
            sink.rollback.perform(sink.ends[1], sink.txn(2))
    sink.rollback.check(sink.ends[1])
    for _ in range(2):
        sink.rollback.perform(sink.ends[1], sink.txn(2))
    sink.write(30)
    assert sink.ids() == [1, 2, 30]


def test_a_sink_that_has_less_than_the_savepoint_or_still_runs_is_refused(sink: Sink) -> None:
    with pytest.raises(ConfigError, match="Sink 'out' cannot remove its output"):
        sink.rollback.check(sink.ends[-1] + 1)
    held = lock_directory(sink.place.directory)
    with pytest.raises(StorageError):
        sink.rollback.perform(sink.ends[1], sink.txn(2))
    held.close()
    assert sink.ids() == [1, 2, 3, 4, 5]


def test_a_delta_table_with_later_commits_of_others_is_refused(tmp_path: Path) -> None:
    sink = Sink("delta", tmp_path)
    sink.write(1, 2)
    write_deltalake(sink.place.target, pa.table({"id": [99]}), mode="append")
    sink.write(3)
    with pytest.raises(ConfigError, match="is a WRITE by another writer"):
        sink.rollback.check(sink.ends[0])
    sink.rollback.check(sink.ends[1])


def test_a_delta_version_whose_files_were_removed_is_refused(tmp_path: Path) -> None:
    sink = Sink("delta", tmp_path)
    sink.write(1, 2, 3)
    table = DeltaTable(sink.place.target)
    table.optimize.compact()
    DeltaTable(sink.place.target).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(ConfigError, match="VACUUM removes such files"):
        sink.rollback.check(sink.ends[0])


def test_a_compacted_iceberg_table_is_refused(tmp_path: Path) -> None:
    sink = Sink("iceberg", tmp_path)
    sink.write(1, 2, 3)
    lake = open_iceberg(sink.place.target, compact_every=1)
    lake.spool_path(tmp_path / "spool")
    lake.schema()
    lake._commits = 1
    lake.tidy()
    with pytest.raises(ConfigError, match="files were compacted since"):
        sink.rollback.check(sink.ends[0])


def merged(directory: Path, position: Any = None, turns: int = 100) -> tuple[list[int], Any]:
    """Return the numbers that a merger of the lanes emits in `turns` turns, and where it continues."""
    merge = LaneMerge(open_directory(directory), position=position)
    found: list[int] = []
    for batches in itertools.islice(merge.turns(), turns):
        found += [int(payload) for batch in batches for payload in batch.rows.column(0).to_pylist()]
    merge.close()
    return found, merge.position


def test_lanes_are_rolled_back_and_a_merger_that_has_emitted_more_is_refused(tmp_path: Path) -> None:
    writer = LaneWriter(tmp_path, 2)
    for epoch in range(4):
        writer.epoch([[10 * epoch], [10 * epoch + 1]])
    writer.close()
    (_, at_end), (_, middle) = merged(tmp_path), merged(tmp_path, turns=2)
    staying = LaneMerge(open_directory(tmp_path), position=middle)
    assert staying.is_ready is False
    turns = staying.turns()
    for batch in next(turns):
        assert batch.rows.num_rows
    for lane in range(2):
        instance = f"shop-trades-{lane}"
        document = {"url": "lanes:.", "instance": instance, "directory": str(tmp_path), "base": str(tmp_path)}
        place = SinkPlace.of("trades", document)
        end = middle["at"][instance]
        LaneRollback(place).check(end)
        for _ in range(2):
            LaneRollback(place).perform(end, "shop-w-trades-id-c0ffee.e1.f1:c_id=1")
        assert (tmp_path / f"{instance}.lane").stat().st_size == end
    assert merged(tmp_path)[0] == [0, 1, 10, 11]
    with pytest.raises(StorageError, match=r"was rolled back to byte .* but epochs up to 2 of it are merged already"):
        next(turns)
    staying.close()
    writer = LaneWriter(tmp_path, 2)
    writer.epochs = 4  # epochs never go back
    writer.epoch([[40], [41]])
    writer.epoch([[50], [51]])
    writer.close()
    assert merged(tmp_path)[0] == [0, 1, 10, 11, 40, 41, 50, 51]
    numbers, later = merged(tmp_path, middle, turns=1)
    assert numbers == [40, 41]
    assert merged(tmp_path, later)[0] == [50, 51]
    with pytest.raises(StorageError, match=r"was rolled back to byte .* but epochs up to 3 of it are merged already"):
        merged(tmp_path, at_end)  # the lanes are as long as they were, with other records
