"""The task of a record: evenly distributed, or always the same for a key; in order in both cases."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from procession.api.pipeline import PARALLELISM_MAX
from procession.operators.partitioning import SHARES, share_of, split_by_key, split_evenly


@given(rows=st.integers(0, 500), buckets=st.integers(1, 20), turn=st.integers(0, 50))
def test_rows_are_distributed_evenly_once_and_in_runs(rows: int, buckets: int, turn: int) -> None:
    stretches = list(split_evenly(rows, buckets, turn))
    assert [row for _, first, count in stretches for row in range(first, first + count)] == list(range(rows))
    assert len({bucket for bucket, _, _ in stretches}) == len(stretches) == min(rows, buckets)
    counts = [count for _, _, count in stretches]
    assert max(counts, default=0) - min(counts, default=0) <= 1


def test_a_few_rows_at_a_time_do_not_all_go_to_one_task() -> None:
    got = [bucket for turn in range(8) for bucket, _, _ in split_evenly(1, 4, turn)]
    assert sorted(got) == [0, 0, 1, 1, 2, 2, 3, 3]


@given(keys=st.lists(st.binary(max_size=2), max_size=100), buckets=st.integers(1, 9))
def test_rows_are_partitioned_by_key_once_each_in_order(keys: list[bytes], buckets: int) -> None:
    found = dict(split_by_key(pa.array(keys, pa.binary()), buckets))
    assert sorted(row for rows in found.values() for row in rows.tolist()) == list(range(len(keys)))
    for bucket, rows in found.items():
        assert rows.tolist() == sorted(rows.tolist())
        assert all(share_of(keys[row]) % buckets == bucket for row in rows.tolist())


def test_a_key_has_the_same_share_in_every_process() -> None:
    shares = "print(share_of(b'a'), share_of('ü'.encode()), share_of(b''))"
    code = f"from procession.operators.partitioning import share_of; {shares}"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert other.split() == [str(share_of(b"a")), str(share_of("ü".encode())), str(share_of(b""))]
    assert (share_of(b"a"), share_of(b"")) == (0xE8B7BE43 % SHARES, 0)


def test_the_shares_of_the_largest_number_of_tasks_are_even() -> None:
    assert SHARES >= PARALLELISM_MAX
    for buckets in (2, 3, 7, 16):
        sizes = [0] * buckets
        for number in range(20_000):
            sizes[share_of(b"key-%d" % number) % buckets] += 1
        assert max(sizes) < 1.1 * 20_000 / buckets
