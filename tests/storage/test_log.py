"""The ingress log compared with a plain list: recovery, limits, trimming, a reader in another process, a full disk."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession.errors import StorageError
from procession.storage.log import (
    ROW_BYTES,
    IngressLog,
)
from procession.storage.log_reader import LogReader
from procession.storage.segment import HEADER_BYTES, INGRESS_SCHEMA
from tests.storage.disks import file_size_limit, tiny_disk

Row = tuple[int, int, int, int, bytes, bytes]


def rows(start: int, count: int, payload_bytes: int = 5) -> list[Row]:
    return [(0, 7, n, n * 10, b"k%d" % n, b"%d" % n * payload_bytes) for n in range(start, start + count)]


def batch(of: list[Row]) -> pa.RecordBatch:
    columns = list(zip(*of, strict=True)) or [()] * len(INGRESS_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, INGRESS_SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=INGRESS_SCHEMA)


def listed(batches: Iterator[pa.RecordBatch]) -> list[Row]:
    return [tuple(row.values()) for piece in batches for row in piece.to_pylist()]


def everything(log: IngressLog) -> list[Row]:
    return listed(log.read(log.start_sequence, log.next_sequence))


def only_segment(directory: Path) -> Path:
    (path,) = directory.glob("*.segment")
    return path


def test_a_row_has_the_sequence_that_append_gave(tmp_path: Path) -> None:
    with IngressLog(tmp_path) as log:
        assert [log.append(batch(rows(start, 3))) for start in (0, 3, 6)] == [0, 3, 6]
        assert log.append(batch([])) == log.next_sequence == 9
        for start in range(10):
            for end in range(start, 10):
                assert listed(log.read(start, end)) == rows(start, end - start)


def test_only_synced_rows_are_durable(tmp_path: Path) -> None:
    with IngressLog(tmp_path) as log:
        log.append(batch(rows(0, 3)))
        assert (log.durable_end, log.next_sequence) == (0, 3)
        assert log.end_for(0, 100, 1 << 30) == 0
        assert log.sync() == log.durable_end == 3
        assert log.end_for(0, 100, 1 << 30) == 3
    with IngressLog(tmp_path) as log:
        assert log.durable_end == 3, "recovery has written to disk what it found"


def alone(path: Path, data: bytes | bytearray) -> None:
    """Make this the only segment of its log, as it was before a recovery."""
    for other in path.parent.glob("*.segment"):
        other.unlink()
    path.write_bytes(data)


def test_a_log_truncated_at_any_byte_recovers_to_complete_entries_and_continues(tmp_path: Path) -> None:
    ends = [HEADER_BYTES]
    with IngressLog(tmp_path) as log:
        for start in (0, 2, 4):
            log.append(batch(rows(start, 2)))
            ends.append(only_segment(tmp_path).stat().st_size)
    path = only_segment(tmp_path)
    data = path.read_bytes()
    for cut in range(len(data) + 1):
        alone(path, data[:cut])
        with IngressLog(tmp_path) as log:
            whole = 2 * max(0, sum(end <= cut for end in ends) - 1)
            assert everything(log) == rows(0, whole)
            assert log.append(batch(rows(whole, 1))) == whole
        with IngressLog(tmp_path) as log:
            assert everything(log) == rows(0, whole + 1)


def test_every_flipped_byte_is_found_at_recovery(tmp_path: Path) -> None:
    """In synced data it is an error. In the unsynced tail, the log ends before it."""
    with IngressLog(tmp_path) as log:
        log.append(batch(rows(0, 2)))
        log.sync()
        promised_end = only_segment(tmp_path).stat().st_size
        for start in (2, 4):
            log.append(batch(rows(start, 2)))
    path = only_segment(tmp_path)
    data = path.read_bytes()
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 0xFF
        alone(path, flipped)
        if position < promised_end:
            with pytest.raises(StorageError, match="damaged"):
                IngressLog(tmp_path)
            assert path.read_bytes() == flipped, "a damaged log is not changed"
        else:
            with IngressLog(tmp_path) as log:
                assert everything(log) == rows(0, log.next_sequence)
                assert log.next_sequence == (2 if position < promised_end + (len(data) - promised_end) // 2 else 4)


def test_every_flipped_byte_is_found_by_a_reader(tmp_path: Path) -> None:
    with IngressLog(tmp_path) as log:
        log.append(batch(rows(0, 2)))
    path = only_segment(tmp_path)
    data = path.read_bytes()
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 0xFF
        path.write_bytes(flipped)
        with pytest.raises(StorageError):
            listed(LogReader(tmp_path).read(0, 2))


def test_damage_in_a_segment_that_is_not_the_last_is_an_error_at_any_byte(tmp_path: Path) -> None:
    with IngressLog(tmp_path, segment_bytes_max=1) as log:
        for start in range(0, 6, 2):
            log.append(batch(rows(start, 2)))
    path = sorted(tmp_path.glob("*.segment"))[1]
    data = path.read_bytes()
    for position in range(len(data)):
        path.write_bytes(data[:position])
        with pytest.raises(StorageError, match=r"damaged|no records"):
            IngressLog(tmp_path)
    path.unlink()
    with pytest.raises(StorageError, match="no records 2 to 4"):
        IngressLog(tmp_path)


def test_a_log_that_ends_before_the_committed_position_starts_again_there(tmp_path: Path) -> None:
    with IngressLog(tmp_path, segment_bytes_max=1) as log:
        for start in range(3):
            log.append(batch(rows(start, 1)))
    with IngressLog(tmp_path, committed_end=3) as log:
        assert (log.start_sequence, log.next_sequence) == (0, 3)
    with IngressLog(tmp_path, committed_end=10) as log:
        assert (log.start_sequence, log.next_sequence) == (10, 10)
        assert log.append(batch(rows(10, 1))) == 10
    with IngressLog(tmp_path, committed_end=10) as log:
        assert everything(log) == rows(10, 1)


def test_a_log_has_one_writer(tmp_path: Path) -> None:
    with IngressLog(tmp_path), pytest.raises(StorageError, match="Another process holds"):
        IngressLog(tmp_path)
    IngressLog(tmp_path).close()


def test_trim_deletes_whole_segments_below_and_never_the_last(tmp_path: Path) -> None:
    with IngressLog(tmp_path, segment_bytes_max=1) as log:
        for start in range(0, 8, 2):
            log.append(batch(rows(start, 2)))
        for before, start in ((1, 0), (2, 2), (5, 4), (100, 6)):
            log.trim(before)
            assert log.start_sequence == start
            assert everything(log) == rows(start, 8 - start)
        with pytest.raises(StorageError, match="no records 0 to 8"):
            listed(log.read(0, 8))
        with pytest.raises(StorageError, match="no records 0 to 6"):
            log.end_for(0, 10, 10)
    with IngressLog(tmp_path) as log:
        assert (log.start_sequence, log.next_sequence) == (6, 8)


def test_a_range_ends_at_the_limit_of_records(tmp_path: Path) -> None:
    with IngressLog(tmp_path) as log:
        for start in range(0, 9, 3):
            log.append(batch(rows(start, 3)))
        log.sync()
        for start in range(9):
            for records_max in range(1, 12):
                assert log.end_for(start, records_max, 1 << 30) == min(9, start + records_max)
        assert log.end_for(9, 5, 5) == 9
        assert log.end_for(0, 0, 0) == 1


@pytest.mark.parametrize("segment_bytes_max", [1, 2000, 1 << 20])
def test_a_range_holds_no_more_bytes_than_the_limit_but_at_least_one_record(
    tmp_path: Path, segment_bytes_max: int
) -> None:
    with IngressLog(tmp_path, segment_bytes_max=segment_bytes_max) as log:
        for start in range(0, 30, 5):
            log.append(batch(rows(start, 5, payload_bytes=1000 if start == 10 else 3)))
        log.sync()
        costs = [ROW_BYTES + len(key) + len(payload) for *_, key, payload in everything(log)]
        for start in range(30):
            for bytes_max in range(0, 20_000, 97):
                end = log.end_for(start, 1000, bytes_max)
                assert end == start + 1 or sum(costs[start:end]) <= bytes_max
        assert log.end_for(10, 1000, 1) == 11, "a record larger than the limit is taken alone"
        assert log.end_for(0, 1000, log.lag_bytes(0)) == 30
        assert log.end_for(3, 1000, 3 * ROW_BYTES) == 5, "a range may begin and end within an entry"


def test_lag_is_the_bytes_from_a_sequence_to_the_end(tmp_path: Path) -> None:
    with IngressLog(tmp_path, segment_bytes_max=1) as log:
        for start in range(0, 6, 2):
            log.append(batch(rows(start, 2)))
        sizes = [path.stat().st_size - HEADER_BYTES for path in sorted(tmp_path.glob("*.segment"))]
        assert [log.lag_bytes(start) for start in range(7)] == [
            *(sum(sizes[start // 2 :]) for start in range(6)),
            0,
        ]


steps = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 5)),
    st.tuples(st.sampled_from(["sync", "open"]), st.just(0)),
    st.tuples(st.just("trim"), st.integers(0, 40)),
    st.tuples(st.just("read"), st.integers(0, 40)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=25), st.sampled_from([1, 1500, 1 << 20]))
def test_a_log_is_a_list(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[str, int]], segment_bytes_max: int
) -> None:
    directory = tmp_path_factory.mktemp("log")
    log = IngressLog(directory, segment_bytes_max=segment_bytes_max)
    elsewhere = LogReader(directory)
    expected: list[Row] = []
    durable = 0
    for what, number in script:
        if what == "append":
            added = rows(len(expected), number)
            assert log.append(batch(added)) == len(expected)
            expected += added
            durable = max(durable, log.durable_end)
        elif what == "sync":
            durable = log.sync()
            assert durable == len(expected)
        elif what == "open":
            log.close()
            log = IngressLog(directory, segment_bytes_max=segment_bytes_max)
            durable = len(expected)
        elif what == "trim":
            log.trim(number)
            assert log.start_sequence <= max(number, log.start_sequence)
        else:
            start = max(log.start_sequence, min(number, len(expected)))
            assert listed(elsewhere.read(start, len(expected))) == expected[start:]
        assert (log.durable_end, log.next_sequence) == (durable, len(expected))
        assert everything(log) == expected[log.start_sequence :]
    log.close()


def test_slices_and_columns_of_another_layout_are_written_by_value(tmp_path: Path) -> None:
    with IngressLog(tmp_path) as log:
        log.append(batch(rows(0, 10)).slice(3, 4))
        assert everything(log) == rows(3, 4)


def test_batches_are_in_the_mapped_file_and_survive_its_deletion(tmp_path: Path) -> None:
    before = pa.total_allocated_bytes()
    with IngressLog(tmp_path, segment_bytes_max=1) as log:
        log.append(batch(rows(0, 1000, payload_bytes=200)))
        log.append(batch(rows(1000, 1)))
        (found,) = LogReader(tmp_path).read(0, 1000)
        assert pa.total_allocated_bytes() - before < 10_000, "nothing was copied"
        assert all(buffer is None or buffer.address % 8 == 0 for buffer in found["payload"].buffers())
        log.trim(1000)
        assert listed(iter([found])) == rows(0, 1000, payload_bytes=200)


READER = """
import sys
from pathlib import Path
from procession.storage.log_reader import LogReader
reader = LogReader(Path(sys.argv[1]))
for line in sys.stdin:
    start, end = map(int, line.split())
    ids = [i for batch in reader.read(start, end) for i in batch["message_id"].to_pylist()]
    print(ids == list(range(start, end)), flush=True)
"""


def test_a_reader_in_another_process_follows_a_growing_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", READER, str(tmp_path)]
    with (
        IngressLog(tmp_path, segment_bytes_max=4000) as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdin
        assert process.stdout
        committed = 0
        for turn in range(1, 120):
            log.append(batch(rows(log.next_sequence, turn % 9)))
            end = log.sync()
            log.append(batch(rows(log.next_sequence, 2)))  # continues to grow while the other one reads
            process.stdin.write(f"{committed} {end}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "True\n"
            if turn % 3 == 0:
                committed = end
                log.trim(committed)
        process.stdin.close()


def test_a_missing_range_is_named(tmp_path: Path) -> None:
    with IngressLog(tmp_path) as log:
        log.append(batch(rows(0, 3)))
        with pytest.raises(StorageError, match="no records 3 to 5") as caught:
            listed(LogReader(tmp_path).read(1, 5))
        assert (caught.value.start, caught.value.end) == (3, 5)
    with pytest.raises(StorageError, match="nowhere"):
        listed(LogReader(tmp_path / "nowhere").read(0, 1))


def test_a_log_syncs_in_a_thread_while_it_grows_and_rolls(tmp_path: Path) -> None:
    with IngressLog(tmp_path, segment_bytes_max=3000) as log:
        stop = threading.Event()
        ends: list[int] = []

        def sync_on() -> None:
            while not stop.is_set():
                ends.append(log.sync())

        thread = threading.Thread(target=sync_on)
        thread.start()
        for _ in range(200):
            log.append(batch(rows(log.next_sequence, 3)))
        stop.set()
        thread.join()
        assert ends == sorted(ends)
        assert log.sync() == 600
        assert everything(log) == rows(0, 600)


def test_an_append_that_fails_halfway_does_not_change_the_log(tmp_path: Path) -> None:
    with IngressLog(tmp_path) as log:
        log.append(batch(rows(0, 2)))
        size = only_segment(tmp_path).stat().st_size
        with file_size_limit(size + 100), pytest.raises(StorageError, match="segment") as caught:
            log.append(batch(rows(2, 2)))
        assert caught.value.next_step
        assert only_segment(tmp_path).stat().st_size == size
        assert log.append(batch(rows(2, 2))) == 2, "the log continues when there is space again"
        assert everything(log) == rows(0, 4)


def test_after_a_failed_sync_the_log_refuses_appends_until_it_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with IngressLog(tmp_path) as log:
        log.append(batch(rows(0, 2)))
        with monkeypatch.context() as broken:
            broken.setattr("os.fdatasync", fail)
            with pytest.raises(StorageError, match="Input/output error"):
                log.sync()
        for again in (log.sync, lambda: log.append(batch(rows(2, 1)))):
            with pytest.raises(StorageError, match="Input/output error"):
                again()
        assert log.durable_end == 0
    with IngressLog(tmp_path) as log:
        assert everything(log) == rows(0, 2)
        assert log.durable_end == 2


def fill(log: IngressLog) -> None:
    while True:
        log.append(batch(rows(log.next_sequence, 10)))


def test_a_full_disk_is_a_storage_error_and_loses_nothing() -> None:
    with tiny_disk() as disk:
        (disk / "other").write_bytes(bytes(20_000))
        log = IngressLog(disk / "log", segment_bytes_max=10_000)
        with pytest.raises(StorageError, match="No space left") as caught:
            fill(log)
        assert "Free space" in caught.value.next_step
        end = log.next_sequence
        assert everything(log) == rows(0, end)
        log.close()
        with pytest.raises(StorageError, match="No space left"):
            IngressLog(disk / "log", segment_bytes_max=10_000)
        (disk / "other").unlink()
        with IngressLog(disk / "log", segment_bytes_max=10_000) as log:
            assert everything(log) == rows(0, end)
            log.trim(end)
            log.append(batch(rows(end, 1)))
            assert listed(log.read(end, end + 1)) == rows(end, 1)


def test_the_file_names_of_an_existing_log_are_on_disk_before_anything_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that was killed between creating a segment and the sync of its directory leaves a name that a power cut
    would remove, with all rows that were offered from it."""
    IngressLog(tmp_path).close()
    synced: list[Path] = []
    monkeypatch.setattr("procession.storage.log.fsync_dir", lambda path, files: synced.append(path))
    IngressLog(tmp_path).close()
    assert synced == [tmp_path]
