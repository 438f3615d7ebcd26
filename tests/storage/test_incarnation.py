"""A log is identified by its incarnation and its running checksum. Data that a process did not sync itself is written
again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from procession.errors import StorageError
from procession.storage.log import IngressLog
from procession.storage.log_reader import LogReader
from procession.storage.segment import (
    INGRESS_SCHEMA,
    KIND_RECORD,
    encode_entry,
    encode_header,
    segment_name,
)

LARGE = 1 << 30


def batch(start: int, count: int, payload: bytes = b"payload") -> pa.RecordBatch:
    rows = [(KIND_RECORD, 7, number, 0, b"", payload) for number in range(start, start + count)]
    return pa.RecordBatch.from_pylist(
        [dict(zip(INGRESS_SCHEMA.names, row, strict=True)) for row in rows], INGRESS_SCHEMA
    )


def ids(rows: object) -> list[int]:
    return [row["message_id"] for part in rows for row in part.to_pylist()]  # type: ignore[attr-defined]


def fill(log: IngressLog, upto: int) -> None:
    for start in range(log.next_sequence, upto, 2):
        log.append(batch(start, 2))
        log.sync()


def test_a_sequence_is_known_by_the_same_offset_however_often_the_log_is_opened_rolled_and_trimmed(
    tmp_path: Path,
) -> None:
    with IngressLog(tmp_path, segment_bytes_max=2000) as log:
        fill(log, 40)
        known = {sequence: log.offset(sequence) for sequence in range(41)}
        assert len({offset.checksum for offset in known.values()}) == 21, "a row is known by the entry that holds it"
    for start in (10, 20, 40):
        with IngressLog(tmp_path, segment_bytes_max=2000) as log:
            log.trim(start)
            assert log.start_sequence > 0 or start == 10
            assert {at: log.offset(at) for at in range(start, 41)} == {at: known[at] for at in range(start, 41)}


def test_two_logs_with_the_same_records_are_not_the_same(tmp_path: Path) -> None:
    with IngressLog(tmp_path / "one") as one, IngressLog(tmp_path / "other") as other:
        fill(one, 4)
        fill(other, 4)
        assert one.offset(4).incarnation != other.offset(4).incarnation
        assert one.offset(4).checksum != other.offset(4).checksum


def test_a_log_that_is_begun_anew_is_another_one(tmp_path: Path) -> None:
    with IngressLog(tmp_path) as log:
        fill(log, 4)
        before = log.offset(4)
    (tmp_path / segment_name(0)).unlink()
    with IngressLog(tmp_path, committed_end=4) as log:
        assert log.next_sequence == 4
        assert log.offset(4).incarnation != before.incarnation


@pytest.mark.parametrize("segment_bytes_max", [1, LARGE])
def test_a_reader_with_a_limit_reads_only_offered_rows(tmp_path: Path, segment_bytes_max: int) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    with IngressLog(right, segment_bytes_max=segment_bytes_max) as log:
        fill(log, 2)
        shutil.copytree(right, wrong)
        fill(log, 8)
        offered = [log.offset(sequence) for sequence in range(1, 9)]
    with IngressLog(wrong, segment_bytes_max=segment_bytes_max) as log:
        for start in range(2, 8, 2):
            log.append(batch(start, 2, b"changed"))
    for offset in offered:
        assert ids(LogReader(right).read(0, offset.sequence, offset)) == list(range(offset.sequence))
        assert ids(LogReader(right).read(offset.sequence - 1, offset.sequence, offset)) == [offset.sequence - 1]
        if offset.sequence > 2:
            with pytest.raises(StorageError, match=f"the records before {offset.sequence} are different"):
                ids(LogReader(wrong).read(0, 1, offset))
    with pytest.raises(StorageError, match="not the one that records were offered from"):
        ids(LogReader(right).read(0, 8, offered[-1]._replace(incarnation="begun anew")))
    with IngressLog(right, segment_bytes_max=segment_bytes_max) as log:
        fill(log, 10)
        assert ids(LogReader(right).read(0, 8, offered[-1])) == list(range(8)), "a gateway that goes on changes nothing"
        log.trim(6)
        assert ids(LogReader(right).read(6, 8, offered[-1])) == [6, 7]


def test_a_segment_of_another_log_is_refused_where_it_does_not_join(tmp_path: Path) -> None:
    """The last segment is right, and one before it was replaced."""
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    with IngressLog(right, segment_bytes_max=1) as log:
        fill(log, 6)
        offered = log.offset(6)
    with IngressLog(right) as log:
        header = log._segments[1].header
    index = b"".join(map(bytes, encode_entry(batch(2, 2, b"changed"), 2, 2)))
    shutil.copytree(right, wrong)
    (wrong / segment_name(2)).write_bytes(encode_header(header) + index)
    assert ids(LogReader(wrong).read(4, 6, offered)) == [4, 5]
    with pytest.raises(StorageError, match="are different"):
        ids(LogReader(wrong).read(0, 1, offered))


def test_a_reader_that_has_indexed_a_log_reads_no_rows_of_one_in_its_place(tmp_path: Path) -> None:
    with IngressLog(tmp_path / "log") as log:
        fill(log, 2)
        shutil.copytree(tmp_path / "log", tmp_path / "wrong")
        fill(log, 4)
        reader = LogReader(tmp_path / "log")
        assert ids(reader.read(0, 4)) == [0, 1, 2, 3]
    with IngressLog(tmp_path / "wrong") as log:
        log.append(batch(2, 2, b"changed"))
        log.append(batch(4, 2, b"payload"))
        log.sync()
        (tmp_path / "log").rename(tmp_path / "right")
        (tmp_path / "wrong").rename(tmp_path / "log")
    with pytest.raises(StorageError, match="does not match its checksum"):
        ids(reader.read(2, 6))


def test_entries_that_no_later_entry_marks_as_synced_are_rewritten_before_they_are_offered(tmp_path: Path) -> None:
    with IngressLog(tmp_path) as log:
        log.append(batch(0, 2))
        log.sync()
        log.append(batch(2, 2))
        log.append(batch(4, 2))
        path = tmp_path / segment_name(0)
        before = path.stat().st_ino
        reader = LogReader(tmp_path)
        mapped = list(reader.read(0, 6))
    with IngressLog(tmp_path) as log:
        assert log.durable_end == 6
        tail = tmp_path / segment_name(2)
        assert tail.exists(), "the first entry is known to be synced, since the second says so"
        assert path.stat().st_ino == before, "what was synced is left where it is"
        assert ids(log.read(0, 6)) == list(range(6))
        log.append(batch(6, 2))
        log.sync()
        assert ids(reader.read(0, 8)) == list(range(8)), "whoever had mapped the log reads on"
        assert ids(mapped) == list(range(6))
    with IngressLog(tmp_path) as log:
        assert ids(log.read(0, 8)) == list(range(8))


def test_a_tail_that_is_all_of_its_file_replaces_it(tmp_path: Path) -> None:
    with IngressLog(tmp_path) as log:
        log.append(batch(0, 2))
    path = tmp_path / segment_name(0)
    before = path.stat().st_ino
    # Held open, or the number of its inode may be used again.
    with open(path, "rb") as kept, IngressLog(tmp_path) as log:
        assert path.stat().st_ino != before
        assert os.fstat(kept.fileno()).st_nlink == 0
        assert ids(log.read(0, 2)) == [0, 1]


def test_an_empty_file_is_made_again_since_its_name_may_not_be_on_disk(tmp_path: Path) -> None:
    IngressLog(tmp_path).close()
    path = tmp_path / segment_name(0)
    with open(path, "rb") as kept, IngressLog(tmp_path) as log:
        assert os.fstat(kept.fileno()).st_nlink == 0
        assert log.offset(0).incarnation == f"{int.from_bytes(kept.read(24)[16:], 'little'):016x}"


def test_a_tail_is_synced_before_the_log_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Linux, after a failed sync the page cache has the bytes, the disk does not, and a second sync reports success.
    Only bytes that are written again reach the disk."""
    with IngressLog(tmp_path) as log:
        log.append(batch(0, 2))
        with monkeypatch.context() as patched:
            patched.setattr("procession.runtime.host_files.sync", _failing)
            with pytest.raises(StorageError, match="Input/output error"):
                log.sync()
        with pytest.raises(StorageError):
            log.sync()
        with pytest.raises(StorageError):
            log.append(batch(2, 2))
    written: list[Path] = []
    monkeypatch.setattr("procession.storage.durable.fsync_dir", lambda path, files: written.append(path))
    with IngressLog(tmp_path) as log:
        assert written.count(tmp_path) == 1, "a new file, and its name"
        assert log.end_for(0, LARGE, LARGE) == 2


def _failing(_descriptor: int, *, is_data_only: bool = False) -> None:
    raise OSError(5, os.strerror(5))


def test_a_log_of_a_later_version_is_refused_with_a_sentence(tmp_path: Path) -> None:
    IngressLog(tmp_path).close()
    path = tmp_path / segment_name(0)
    data = bytearray(path.read_bytes())
    data[4] = 3
    path.write_bytes(data)
    with pytest.raises(StorageError, match=r"later version.*format 3"):
        IngressLog(tmp_path)
