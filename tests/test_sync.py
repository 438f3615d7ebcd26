"""When any sync fails, its caller gets a StorageError."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from procession import faults
from procession.commit.checkpoint import Checkpoint
from procession.commit.spark_log import SparkLog
from procession.connectors.file_sink import FileOutput
from procession.connectors.pending_file import PendingFile
from procession.errors import StorageError
from procession.sdk.transaction_log import Transaction
from procession.storage.durable import write_durably
from procession.storage.journal import Journal
from procession.storage.log import IngressLog
from procession.storage.segment import INGRESS_SCHEMA
from procession.storage.state_file import SCHEMA
from procession.storage.state_store import write_file
from procession.storage.table_copies import TableCopies

WORDS = os.strerror(errno.EIO)
SYNCS_MAX = 60


def journal(place: Path) -> None:
    one = Journal(place / "journal")
    one.open()
    one.append({"number": 1})
    one.replace([{"number": 2}])
    one.close()


def log(place: Path) -> None:
    with IngressLog(place / "log") as one:
        one.append(pa.RecordBatch.from_pylist([row(0)], INGRESS_SCHEMA))
        one.sync()
    with IngressLog(place / "log"):
        pass


def row(number: int) -> dict[str, object]:
    values: dict[str, object] = {field.name: 0 for field in INGRESS_SCHEMA}
    return values | {field.name: b"" for field in INGRESS_SCHEMA if pa.types.is_binary(field.type)} | {"id": number}


def copies(place: Path) -> None:
    (place / "table").write_bytes(b"table")
    assert TableCopies(place / "copies").take(place / "table")


def statefile(place: Path) -> None:
    write_file(place / "state", [pa.RecordBatch.from_pylist([], SCHEMA)])


def spark_files(place: Path) -> None:
    """Write files as Spark does, without a sync."""
    for part in ("offsets", "commits"):
        (place / part).mkdir()
        (place / part / "0").write_text('v1\n{}\n{"log": 1}' if part == "offsets" else "v1\n{}")
    (place / "metadata").write_text("{}")
    spark_log = SparkLog(place)
    spark_log.sync_offsets(0)
    spark_log.sync_commit(0)


def checkpoint(place: Path) -> None:
    """Copy the first driver's checkpoint as a second driver does."""
    first = Checkpoint.claim(place / "checkpoint", name="p", fingerprint="f")
    spark_files(first.directory)
    Checkpoint.claim(place / "checkpoint", name="p", fingerprint="f")


def file_sink(place: Path) -> None:
    output = FileOutput(place / "out.data")
    output.append(0, [b"bytes"])
    output.prepare(Transaction("t:c_id=1", 0, 5))
    output.close()


def pending(place: Path) -> None:
    one = PendingFile(place / "pending")
    one.append(0, [b"bytes"])
    one.sync()
    one.close()


def replacing(place: Path) -> None:
    write_durably(place / "file", b"bytes")


def met(deed: Callable[[Path], None], place: Path) -> StorageError | None:
    try:
        deed(place)
    except StorageError as error:
        return error
    return None


DEEDS = (journal, log, copies, statefile, spark_files, checkpoint, file_sink, pending, replacing)


@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
def test_whichever_sync_fails_it_is_reported_with_the_file_and_a_next_step(
    deed: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = tmp_path / "fault"
    monkeypatch.setattr(faults, "_file", fault)
    for number in range(1, SYNCS_MAX):
        place = tmp_path / str(number)
        place.mkdir()
        fault.write_text(f"disk:sync@{number}")
        error = met(deed, place)
        if error is None:
            break
        assert WORDS in str(error)
        assert str(place) in str(error)
        assert error.next_step
        fault.unlink()
        faults.disk("sync")  # without a fault, this call resets the count of syncs
    assert 1 < number < SYNCS_MAX, "at least one sync failed, and the last run had no failure"
