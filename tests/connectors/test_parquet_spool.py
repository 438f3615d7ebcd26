"""The Parquet file of an epoch is written while records arrive, in every epoch in the same way."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from procession.connectors import parquet_spool
from procession.connectors.parquet_columns import ColumnNames, RecordFormat, RowConverter
from procession.connectors.parquet_spool import ParquetSpool, repeating_columns
from procession.sdk.payloads import Payloads
from procession.sdk.record_blocks import RecordForm


def arrow_record(*ids: int) -> bytes:
    stream = pa.BufferOutputStream()
    batch = pa.record_batch({"id": pa.array(ids, pa.int64())})
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    return stream.getvalue().to_pybytes()


def spool_of(directory: Path) -> ParquetSpool:
    columns = RowConverter(RecordFormat.ARROW, ColumnNames())
    return ParquetSpool(directory / "spool", columns, RecordForm.MESSAGES, lambda schema: schema)


def test_each_epoch_starts_to_write_as_early_as_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_spool, "ROW_GROUP_BYTES_MIN", 1000)
    spool = spool_of(tmp_path)
    for _ in range(3):
        for position in range(3):
            spool.append(position, [arrow_record(*range(100))])
        spool.finish()
        spool.wait_for_sync()
        assert pq.read_metadata(spool.path).row_group(0).num_rows == 100
    spool.close()


def test_arrow_records_in_a_slice_of_messages_are_read_from_the_right_offset(tmp_path: Path) -> None:
    spool = spool_of(tmp_path)
    spool.append(0, Payloads.of([arrow_record(1), arrow_record(2, 3), arrow_record(4)])[1:])
    spool.finish()
    spool.wait_for_sync()
    assert pq.read_table(spool.path).column("id").to_pylist() == [2, 3, 4]
    spool.close()


def test_columns_of_distinct_values_are_written_without_a_dictionary() -> None:
    rows = parquet_spool.DICTIONARY_SAMPLE_ROWS
    table = pa.table(
        {"id": range(rows), "kind": ["a", "b"] * (rows // 2), "text": [f"row {row}" for row in range(rows)]}
    )
    assert repeating_columns(table) == ["kind"]
    assert repeating_columns(table.slice(1)) is True, "too few rows for a choice"
    nested = table.append_column("point", pa.array([{"x": row} for row in range(rows)]))
    assert repeating_columns(nested) is True, "inner columns have their own names"
    assert repeating_columns(table.append_column("none", pa.nulls(rows))) == ["kind", "none"]


def test_the_file_has_dictionaries_for_the_other_columns(tmp_path: Path) -> None:
    rows = parquet_spool.DICTIONARY_SAMPLE_ROWS
    spool = ParquetSpool(
        tmp_path / "spool", RowConverter(RecordFormat.ARROW, ColumnNames()), RecordForm.MESSAGES, lambda schema: schema
    )
    batch = pa.record_batch({"id": pa.array(range(rows)), "kind": pa.array(["a", "b"] * (rows // 2))})
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    spool.append(0, [stream.getvalue().to_pybytes()])
    spool.finish()
    spool.wait_for_sync()
    group = pq.read_metadata(spool.path).row_group(0)
    assert [group.column(index).has_dictionary_page for index in range(2)] == [False, True]
    spool.close()


def test_row_groups_grow_with_the_file_and_the_last_one_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = arrow_record(*range(100))
    monkeypatch.setattr(parquet_spool, "ROW_GROUP_BYTES_MIN", len(record))
    monkeypatch.setattr(parquet_spool, "ROW_GROUP_BYTES_MAX", 5 * len(record))
    spool = spool_of(tmp_path)
    for position in range(60):
        spool.append(position, [record])
    spool.finish()
    spool.wait_for_sync()
    metadata = pq.read_metadata(spool.path)
    sizes = [metadata.row_group(index).num_rows // 100 for index in range(metadata.num_row_groups)]
    spool.close()
    before = list(itertools.accumulate(sizes, initial=0))
    assert sizes[:-1] == [min(max(math.ceil(rows / 4), 1), 5) for rows in before[:-2]]
    assert before[-1] == 60


def test_the_choice_of_dictionary_columns_is_repeated_after_some_files_or_for_other_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_spool, "DICTIONARY_SAMPLE_ROWS", 10)
    monkeypatch.setattr(parquet_spool, "DICTIONARY_FILES", 2)
    spool = spool_of(tmp_path)

    def has_dictionary(*ids: int) -> bool:
        spool.append(0, [arrow_record(*ids)])
        spool.finish()
        spool.wait_for_sync()
        return bool(pq.read_metadata(spool.path).row_group(0).column(0).has_dictionary_page)

    distinct, same = range(10), [7] * 10
    assert [has_dictionary(*ids) for ids in (distinct, same, same, distinct)] == [False, False, True, True]
    spool.close()
