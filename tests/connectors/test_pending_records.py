"""The file of records that wait for their commit: every record with a vote is there, or the loss is reported."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from procession.connectors.pending_records import PendingRecords
from procession.errors import StorageError
from procession.sdk.transaction_log import Transaction

SCHEMA = pa.schema([("value", pa.binary())])


def batch(*values: bytes | None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.binary())], schema=SCHEMA)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    pending = PendingRecords(tmp_path / "out.pending", SCHEMA)
    pending.append(batch(b"one", None), 3)
    pending.append(batch(b"", b"four"), 4)
    pending.sync()
    pending.close()
    return tmp_path / "out.pending"


def values(pending: PendingRecords) -> list[bytes | None]:
    return [value for found in pending.batches() for value in found.column(0).to_pylist()]


def test_a_restarted_sink_finds_the_synced_records(path: Path) -> None:
    pending = PendingRecords(path, SCHEMA)
    pending.keep(Transaction("id", 10, 17))
    assert values(pending) == [b"one", None, b"", b"four"]
    pending.drop()
    assert not pending.has_records
    pending.append(batch(b"next"), 4)
    assert values(pending) == [b"next"]
    pending.close()


@pytest.mark.parametrize("lost", [1, 40, 10_000])
def test_a_file_that_lost_bytes_is_reported(path: Path, lost: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: max(0, len(data) - lost)])
    with pytest.raises(StorageError, match="is damaged"):
        PendingRecords(path, SCHEMA).keep(Transaction("id", 10, 17))


def test_a_missing_file_is_reported_unless_it_was_empty(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is damaged"):
        PendingRecords(tmp_path / "none", SCHEMA).keep(Transaction("id", 10, 17))
    PendingRecords(tmp_path / "none", SCHEMA).keep(Transaction("id", 10, 10))


def test_every_changed_byte_of_a_batch_is_noticed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageError, match="checksum"):
        PendingRecords(path, SCHEMA).keep(Transaction("id", 10, 17))


def test_a_file_of_another_transaction_is_noticed(path: Path) -> None:
    with pytest.raises(StorageError, match="stands for 7 bytes, not 8"):
        PendingRecords(path, SCHEMA).keep(Transaction("id", 10, 18))
