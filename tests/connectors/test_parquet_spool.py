"""The Parquet file of an epoch: written while records arrive, in every epoch alike."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from procession.connectors import parquet_spool
from procession.connectors.parquet_columns import ColumnNames, RecordFormat, RowConverter
from procession.connectors.parquet_spool import ParquetSpool
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


def test_each_epoch_begins_to_write_as_early_as_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_spool, "ROW_GROUP_BYTES_MIN", 1000)
    spool = spool_of(tmp_path)
    for _ in range(3):
        for position in range(3):
            spool.append(position, [arrow_record(*range(100))])
        spool.finish()
        spool.wait_for_sync()
        assert pq.read_metadata(spool.path).row_group(0).num_rows == 100
    spool.close()


def test_arrow_records_of_a_slice_of_messages_are_read_from_their_place(tmp_path: Path) -> None:
    spool = spool_of(tmp_path)
    spool.append(0, Payloads.of([arrow_record(1), arrow_record(2, 3), arrow_record(4)])[1:])
    spool.finish()
    spool.wait_for_sync()
    assert pq.read_table(spool.path).column("id").to_pylist() == [2, 3, 4]
    spool.close()
