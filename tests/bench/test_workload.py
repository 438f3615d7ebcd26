"""The workloads of benchmarks: they use the processor time that they state, and wrong output is found."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest

from procession.bench import loop, workload
from procession.errors import StorageError
from procession.storage.log_reader import LogReader


def output(path: Path, numbers: list[int]) -> Path:
    path.write_bytes(b"".join(b"%010d" % number for number in numbers))
    return path


RIGHT = [number for number in range(100) if number % 7]


def test_burning_uses_processor_time() -> None:
    before = time.thread_time_ns()
    workload.burn(5_000_000)
    assert time.thread_time_ns() - before >= 5_000_000


def test_the_filter_burns_for_each_record_and_drops_every_seventh() -> None:
    batch = pa.record_batch({"payload": [b"x"] * 100, "message_id": pa.array(range(100), pa.uint64())})
    before = time.thread_time_ns()
    assert workload.Filter(burn_ns=10_000)(batch).column("message_id").to_pylist() == RIGHT
    assert time.thread_time_ns() - before >= 100 * 10_000


def test_listing_1_lets_8571428_records_of_ten_million_pass() -> None:
    assert workload.expected_count(10_000_000) == 8_571_428
    assert workload.expected_count(100) == len(RIGHT)


def test_the_log_holds_ten_digits_for_each_number(tmp_path: Path) -> None:
    workload.write_log(tmp_path / "log", 60_000)
    batches = list(LogReader(tmp_path / "log").read(0, 60_000))
    assert [batch.num_rows for batch in batches] == [50_000, 10_000]
    assert batches[1].column("payload")[9_999].as_py() == b"0000059999"


def test_a_correct_output_is_counted(tmp_path: Path) -> None:
    assert workload.check_output(output(tmp_path / "o", RIGHT), 100, is_ordered=True) == 85
    assert workload.check_output(output(tmp_path / "o", RIGHT[::-1]), 100, is_ordered=False) == 85


@pytest.mark.parametrize(
    ("numbers", "is_ordered", "why"),
    [
        (RIGHT[:-1], False, "84 records"),
        ([*RIGHT, 99], False, "86 records"),
        ([2, 1, *RIGHT[2:]], True, "record 1 came out after record 2"),
        ([1, 1, *RIGHT[2:]], True, "record 1 came out after record 1"),
        ([1, 1, *RIGHT[2:]], False, "not the expected ones"),
        ([0, *RIGHT[1:]], True, "not the expected ones"),
    ],
)
def test_a_wrong_output_is_found(tmp_path: Path, numbers: list[int], is_ordered: bool, why: str) -> None:
    with pytest.raises(StorageError, match=why):
        workload.check_output(output(tmp_path / "o", numbers), 100, is_ordered=is_ordered)


@pytest.mark.parametrize("pieces", [[b"abc", b"de"], [b"a", b"bcde"], [b"abcde"]])
def test_committed_output_equal_to_that_of_the_loop_passes_however_it_is_divided(
    tmp_path: Path, pieces: list[bytes]
) -> None:
    (tmp_path / "one").write_bytes(b"abc")
    (tmp_path / "two").write_bytes(b"de")
    loop.check_equal([tmp_path / "one", tmp_path / "two"], iter(pieces))


@pytest.mark.parametrize("pieces", [[b"abc"], [b"abcd"], [b"abd"], [b"abcdef"], [b"abcde", b"f"]])
def test_committed_output_that_differs_from_that_of_the_loop_is_found(tmp_path: Path, pieces: list[bytes]) -> None:
    (tmp_path / "one").write_bytes(b"abc")
    (tmp_path / "two").write_bytes(b"de")
    with pytest.raises(StorageError):
        loop.check_equal([tmp_path / "one", tmp_path / "two"], iter(pieces))
