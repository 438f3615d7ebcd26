"""A range of records is distributed over tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from procession.spark.epoch_tasks import Range, distribute

SEQUENCES = st.integers(0, 2**63)


def test_an_empty_range_is_dealt_to_all_so_that_the_first_epoch_starts_the_workers() -> None:
    assert distribute(0, 0, 2) == [Range(0, 0, 0, of=2), Range(1, 0, 0, of=2)]


@given(start=SEQUENCES, count=st.integers(1, 10_000), parallelism=st.integers(1, 1024))
def test_ranges_are_contiguous_in_order_complete_and_never_empty(start: int, count: int, parallelism: int) -> None:
    ranges = distribute(start, start + count, parallelism)
    assert len(ranges) == min(parallelism, count)
    edge = start
    for number, dealt in enumerate(ranges):
        assert (dealt.number, dealt.first, dealt.of) == (number, edge, len(ranges))
        assert dealt.last > dealt.first
        edge = dealt.last
    assert edge == start + count


@given(start=SEQUENCES, count=st.integers(1, 10_000), parallelism=st.integers(1, 64))
def test_ranges_are_of_nearly_one_size(start: int, count: int, parallelism: int) -> None:
    sizes = [dealt.last - dealt.first for dealt in distribute(start, start + count, parallelism)]
    assert max(sizes) - min(sizes) <= 1
