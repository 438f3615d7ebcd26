"""The outputs of the lake sinks: an epoch becomes visible once, as a whole, and a token has the position of the
output's end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from procession.connectors.delta_table import DeltaLakeTable
from procession.connectors.iceberg_table import open_iceberg
from procession.connectors.parquet_columns import ColumnNames, RecordFormat
from procession.connectors.parquet_output import LakeTable
from procession.connectors.parquet_sink import LakeOptions, lake_opener, open_parquet
from procession.errors import ConfigError, ProcessionError, RecordError, StorageError
from procession.sdk.participant import SinkParticipant
from procession.sdk.record_blocks import RecordForm, block_batch, encode_block
from procession.sdk.transaction_log import TransactionLog

TABLES: dict[str, Callable[[Path], LakeTable]] = {
    "parquet": lambda path: open_parquet(str(path)),
    "delta": lambda path: DeltaLakeTable(str(path)),
    "iceberg": lambda path: open_iceberg(f"{path}/sales.orders"),
}


class Place:
    """One output over several runs. Each `open` starts one."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.directory = directory / "sink"
        self.table = directory / "table"
        self._lake_output: SinkParticipant | None = None

    def open(self, options: LakeOptions | None = None, instance: str = "app") -> SinkParticipant:
        self.close()
        self.directory.mkdir(exist_ok=True)
        open_output = lake_opener(self.directory, lambda: TABLES[self.kind](self.table), options or LakeOptions())
        txnlog = TransactionLog(self.directory / f"{instance}.txnlog")
        txnlog.open()
        self._lake_output = SinkParticipant(open_output(instance), txnlog)
        self._lake_output.begin()
        return self._lake_output

    def close(self) -> None:
        if self._lake_output is not None:
            self._lake_output.close()
        self._lake_output = None

    def rows(self) -> pa.Table:
        if self.kind == "delta":
            return DeltaTable(self.table).to_pyarrow_table()
        if self.kind == "iceberg":
            from pyiceberg.catalog import load_catalog

            catalog = load_catalog("procession", type="sql", uri=f"sqlite:///{self.table}/catalog.db")
            return catalog.load_table("sales.orders").scan().to_arrow()
        return ds.dataset(self.table, format="parquet").to_table()

    def ids(self) -> list[int]:
        return sorted(self.rows().column("id").to_pylist())


@pytest.fixture(params=TABLES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = Place(request.param, tmp_path)
    yield place
    place.close()


def records(*ids: int) -> list[bytes]:
    return [json.dumps({"id": id_, "name": f"n{id_}", "price": id_ + 0.5}).encode() for id_ in ids]


def prepare(participant: SinkParticipant, epoch: int, payloads: list[bytes]) -> str:
    start = participant.committed_end
    txn = f"app-w-out-id-1.e{epoch}.f1:c_id={epoch}"
    position, ids = start, []
    for payload in payloads:
        ids.append(position)
        position += len(payload)
    participant.append(ids, payloads)
    assert participant.phase1(txn, [(1, start, position)])
    return txn


def commit(participant: SinkParticipant, epoch: int, payloads: list[bytes]) -> None:
    participant.phase2(prepare(participant, epoch, payloads), True)


def test_an_epoch_is_visible_after_its_commit_and_an_aborted_one_never_is(place: Place) -> None:
    participant = place.open()
    commit(participant, 1, records(1, 2))
    txn = prepare(participant, 2, records(3, 4))
    assert place.ids() == [1, 2]
    participant.phase2(txn, False)
    commit(participant, 3, records(5))
    assert place.ids() == [1, 2, 5]
    assert sorted(place.rows().column("price").to_pylist()) == pytest.approx([1.5, 2.5, 5.5])


def test_an_epoch_that_was_published_but_not_logged_is_not_published_again(place: Place) -> None:
    participant = place.open()
    commit(participant, 1, records(1, 2))
    txn = prepare(participant, 2, records(3))
    before = (place.directory / "app.txnlog").read_bytes()
    participant.phase2(txn, True)
    place.close()
    (place.directory / "app.txnlog").write_bytes(before)  # as after a death of the process before it wrote the decision
    participant = place.open()
    assert participant.uncommitted == (txn,)
    participant.phase2(txn, True)
    assert place.ids() == [1, 2, 3]
    commit(participant, 3, records(4))
    assert place.ids() == [1, 2, 3, 4]


def test_a_published_epoch_is_not_aborted_and_keeps_its_rows(place: Place) -> None:
    participant = place.open()
    txn = prepare(participant, 1, records(1, 2))
    before = (place.directory / "app.txnlog").read_bytes()
    participant.phase2(txn, True)
    place.close()
    (place.directory / "app.txnlog").write_bytes(before)  # as after a death of the process before it wrote the decision
    participant = place.open()
    with pytest.raises(StorageError, match=r"aborts .* already"):
        participant.phase2(txn, False)
    assert place.ids() == [1, 2]


def test_an_epoch_of_empty_records_alone_is_refused_before_the_vote(place: Place) -> None:
    lake_output = place.open(LakeOptions(record_format=RecordFormat.BYTES))
    commit(lake_output, 1, [b"one", b""])
    with pytest.raises(RecordError, match="All records of an epoch are empty"):
        prepare(lake_output, 2, [b"", b""])


def test_an_upload_without_a_vote_is_removed(place: Place) -> None:
    participant = place.open()
    commit(participant, 1, records(1))
    files = {path for path in place.table.rglob("*") if path.suffix in (".parquet", ".pending")}
    before = (place.directory / "app.txnlog").read_bytes()
    prepare(participant, 2, records(2))
    assert {path for path in place.table.rglob("*") if path.suffix in (".parquet", ".pending")} > files
    place.close()
    (place.directory / "app.txnlog").write_bytes(before)  # as after a death of the process before its vote
    participant = place.open()
    assert {path for path in place.table.rglob("*") if path.suffix in (".parquet", ".pending")} == files
    commit(participant, 3, records(3))
    assert place.ids() == [1, 3]


def test_a_second_sink_of_the_same_output_is_stopped_and_adds_nothing(place: Place, tmp_path: Path) -> None:
    other = Place(place.kind, tmp_path)
    other.directory = tmp_path / "other"
    first = place.open()
    second = other.open()
    late = prepare(second, 1, records(7, 8, 9))
    commit(first, 1, records(1))
    with pytest.raises(StorageError) as caught:
        second.phase2(late, True)
    assert "up to position" in caught.value.sentence or "Another sink" in caught.value.sentence
    other.close()
    with pytest.raises(StorageError, match="up to position"):
        other.open()
    other.close()
    commit(first, 2, records(2))
    assert place.ids() == [1, 2]


def test_two_sinks_that_commit_at_the_same_moment_cannot_both_publish(place: Place, tmp_path: Path) -> None:
    """The other sink publishes after this one has read the token, so only the atomic step detects it."""
    other = Place(place.kind, tmp_path)
    other.directory = tmp_path / "other"
    participant = place.open(LakeOptions(schema_file=_schema_file(tmp_path)))
    rival = other.open(LakeOptions(schema_file=_schema_file(tmp_path)))
    txn, late = prepare(participant, 1, records(1)), prepare(rival, 1, records(7, 8))
    table: Any = rival._output._table  # type: ignore[attr-defined]
    publish = table.publish

    def overtaken(instance: str, upload: Any) -> None:
        participant.phase2(txn, True)
        publish(instance, upload)

    table.publish = overtaken
    with pytest.raises(StorageError):
        rival.phase2(late, True)
    other.close()
    assert place.ids() == [1]


def test_a_lost_directory_of_the_sink_stops_it(place: Place) -> None:
    commit(place.open(), 1, records(1))
    place.close()
    for path in place.directory.iterdir():
        path.unlink()
    with pytest.raises(StorageError, match=r"up to position \d+, but this sink has written it up to 0"):
        place.open()


def test_a_table_that_was_set_back_stops_the_sink(place: Place) -> None:
    import shutil

    participant = place.open()
    commit(participant, 1, records(1))
    place.close()
    shutil.copytree(place.table, place.table.with_name("copy"))
    commit(place.open(), 2, records(2))
    place.close()
    shutil.rmtree(place.table)
    place.table.with_name("copy").rename(place.table)
    with pytest.raises(StorageError, match="up to position"):
        place.open()


def test_an_old_copy_whose_transaction_was_redone_up_to_the_same_end_is_refused(place: Place, tmp_path: Path) -> None:
    import shutil

    participant = place.open()
    commit(participant, 1, records(1))
    aborted = prepare(participant, 2, records(2))
    shutil.copytree(place.directory, tmp_path / "copy")
    participant.phase2(aborted, False)
    commit(participant, 3, records(3))
    place.close()
    copy = Place(place.kind, tmp_path)
    copy.directory = tmp_path / "copy"
    with pytest.raises(StorageError, match="old copy of the sink's directory"):
        copy.open()
    copy.close()
    assert place.ids() == [1, 3]


def test_a_lost_upload_after_the_vote_stops_the_sink(place: Place) -> None:
    participant = place.open()
    commit(participant, 1, records(1))
    before = {*place.table.rglob("*")}
    prepare(participant, 2, records(2))
    place.close()
    for path in {*place.table.rglob("*")} - before:
        path.unlink()
    with pytest.raises(StorageError, match="voted for is lost"):
        place.open()


def test_several_outputs_append_to_one_table(place: Place, tmp_path: Path) -> None:
    other = Place(place.kind, tmp_path)
    first = place.open()
    commit(first, 1, records(1))
    second = other.open(instance="app:other=1")
    for epoch in range(2, 6):
        mine, theirs = prepare(first, epoch, records(epoch)), prepare(second, epoch, records(100 + epoch))
        second.phase2(theirs, True)
        first.phase2(mine, True)
    other.close()
    assert place.ids() == [1, 2, 3, 4, 5, 102, 103, 104, 105]


def test_blocks_have_key_and_event_time_and_positions_sort_in_the_order_of_the_output(place: Place) -> None:
    names = ColumnNames("who", "at", "position")
    participant = place.open(LakeOptions(RecordForm.BLOCKS, names=names))
    first = encode_block(block_batch(records(3, 1), keys=[b"a", None], event_times_ns=[1_000_000_001, None]))
    second = encode_block(block_batch(records(2)))
    commit(participant, 1, [first, second])
    rows = place.rows().sort_by("position")
    assert rows.column("id").to_pylist() == [3, 1, 2]
    assert rows.column("who").to_pylist() == ["a", None, None]
    assert rows.column("at").cast(pa.int64()).to_pylist() == [1_000_000, None, None]
    assert rows.column("position").to_pylist() == [0, 1, len(first)]


def test_arrow_records_are_converted_to_the_types_of_the_table(place: Place, tmp_path: Path) -> None:
    options = LakeOptions(record_format=RecordFormat.ARROW, schema_file=_schema_file(tmp_path))
    participant = place.open(options)
    rows = pa.table({"id": pa.array([1, 2], pa.int16()), "name": pa.array(["x", None])})
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, rows.schema) as writer:
        writer.write_table(rows)
    commit(participant, 1, [stream.getvalue().to_pybytes()])
    assert place.rows().to_pylist() == [
        {"id": 1, "name": "x", "price": None},
        {"id": 2, "name": None, "price": None},
    ]
    with pytest.raises(RecordError, match="not an Arrow IPC stream"):
        prepare(participant, 2, [b"no"])


def test_a_record_that_does_not_fit_stops_the_sink_before_the_vote_and_is_named(place: Place, tmp_path: Path) -> None:
    participant = place.open(LakeOptions(schema_file=_schema_file(tmp_path)))
    commit(participant, 1, records(1))
    bad = [*records(2, 3), b'{"id": 4, "name": "x", "price": "dear"}', *records(5)]
    with pytest.raises(RecordError, match='has "dear" in the column price, whose type is double') as caught:
        prepare(participant, 2, bad)
    assert caught.value.fields["position"] == participant.committed_end + len(b"".join(bad[:2]))
    participant = place.open()
    assert participant.uncommitted == ()
    commit(participant, 3, records(2))
    assert place.ids() == [1, 2]


def test_a_schema_file_that_is_not_that_of_the_table_is_refused(place: Place, tmp_path: Path) -> None:
    commit(place.open(), 1, records(1))
    path = tmp_path / "other.json"
    path.write_text('{"id": "string"}')
    with pytest.raises(ConfigError, match="has other columns than the schema file"):
        place.open(LakeOptions(schema_file=path))
    place.open(LakeOptions(schema_file=_schema_file(tmp_path)))


def test_a_full_disk_is_reported_in_one_sentence_and_nothing_is_lost(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    participant = place.open()
    commit(participant, 1, records(1))
    with monkeypatch.context() as patched:
        patched.setattr("procession.connectors.parquet_spool.faults.disk", _full_disk(errno.ENOSPC))
        with pytest.raises(ProcessionError, match="No space left on device") as caught:
            prepare(participant, 2, records(2))
    assert "Free space" in caught.value.next_step
    participant = place.open()
    commit(participant, 3, records(2))
    assert place.ids() == [1, 2]


def test_duckdb_and_pandas_see_whole_epochs_when_they_list_the_directory(tmp_path: Path) -> None:
    place = Place("parquet", tmp_path)
    participant = place.open()
    commit(participant, 1, records(1, 2))
    prepare(participant, 2, records(3))
    for glob in ("*.parquet", "**/*.parquet"):
        [(count,)] = duckdb.sql(f"select count(*) from read_parquet('{place.table}/{glob}')").fetchall()
        assert count == 2
    assert pq.read_table(place.table).num_rows == 2
    assert len(__import__("pandas").read_parquet(place.table)) == 2
    place.close()


def _full_disk(number: int) -> Callable[[str], None]:
    def disk(_: str) -> None:
        import os

        raise OSError(number, os.strerror(number))

    return disk


def _schema_file(directory: Path) -> Path:
    path = directory / "schema.json"
    path.write_text('{"id": "int64", "name": "string", "price": "float64"}')
    return path
