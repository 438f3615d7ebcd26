"""The records that a program gives to Pipeline.run, as a source sends them."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession import Pipeline
from procession.connectors.given_records import BATCH_RECORDS_MAX, GivenRecords, written
from procession.errors import StorageError
from procession.testing.arrivals import Arrivals, Record


def arrivals() -> Arrivals:
    pipeline = Pipeline("given")
    orders = pipeline.source("orders", codec="json", streams=["north", "south"])
    orders.sink("out", to="file:output")
    north = [Record({"id": number}, key="k", event_time=number + 1) for number in range(BATCH_RECORDS_MAX + 5)]
    return Arrivals.of(pipeline.graph(), {"orders": {"north": north}})


def test_a_stream_is_read_in_order_and_from_any_record(tmp_path: Path) -> None:
    found = arrivals()
    (tmp_path / "records").write_bytes(written(found.rows(is_ended=False), found.names))
    source = GivenRecords(tmp_path / "records")
    north, south = sorted(source.streams(), key=lambda stream: "south" in stream.name)
    assert {north.id, south.id} == found.streams
    batches = list(source.read(north, None))
    assert [len(batch) for batch in batches] == [BATCH_RECORDS_MAX, 5]
    assert batches[1].payloads.to_pylist()[-1] == b'{"id":%d}' % (BATCH_RECORDS_MAX + 4)
    assert batches[0].event_times[:2].tolist() == [1_000_000_000, 2_000_000_000]
    assert batches[0].keys is not None
    assert batches[0].keys[0].as_py() == b"k"
    (rest,) = source.read(north, BATCH_RECORDS_MAX + 3)
    assert rest.message_ids.tolist() == [BATCH_RECORDS_MAX + 4, BATCH_RECORDS_MAX + 5]
    assert list(source.read(south, None)) == []


def test_a_damaged_file_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "records").write_bytes(b"ARROW1 and nothing else")
    with pytest.raises(StorageError, match="cannot be read"):
        GivenRecords(tmp_path / "records")
