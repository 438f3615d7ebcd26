"""Shards of a merger: every record is in exactly one shard, and lanes without records of a shard are skipped."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.errors import UsageError
from procession.operators.partitioning import split_by_key
from procession.sdk.lane_shards import KeyShard
from procession.wire.lane_blocks import LaneIdentity


def identity(order: str, lanes: int, *covers: int) -> LaneIdentity:
    return LaneIdentity("group", "pipeline", "sink", covers, lanes, order)


@pytest.mark.parametrize("text", ["", "1", "4/4", "-1/4", "0/0", "1/2/3", "a/4", "0/10000"])
def test_an_invalid_shard_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a shard"):
        KeyShard.parse(text)
    assert KeyShard.parse("3/4") == KeyShard(3, 4)


@given(st.lists(st.one_of(st.none(), st.binary(max_size=3)), max_size=30), st.integers(1, 5))
def test_each_record_is_in_one_shard_and_keeps_its_order(keys: list[bytes | None], count: int) -> None:
    rows = pa.record_batch({"key": pa.array(keys, pa.binary()), "number": pa.array(range(len(keys)), pa.int64())})
    found = [KeyShard(number, count).filtered(rows).column("number").to_pylist() for number in range(count)]
    assert sorted(number for shard in found for number in shard) == list(range(len(keys)))
    assert all(shard == sorted(shard) for shard in found)


@given(st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=30), st.sampled_from([(2, 4), (3, 3), (1, 5)]))
def test_a_lane_that_is_left_out_has_no_record_of_the_shard(keys: list[bytes], sizes: tuple[int, int]) -> None:
    count, lanes = sizes
    batch = pa.record_batch({"key": pa.array(keys, pa.binary())})
    for lane, indexes in split_by_key(batch.column("key"), lanes):
        rows = batch.take(pa.array(indexes))
        for number in range(count):
            shard = KeyShard(number, count)
            if not shard.is_in(identity("key", lanes, lane)):
                assert shard.filtered(rows).num_rows == 0
                assert lane not in shard.lanes(identity("key", lanes), range(lanes))


def test_all_lanes_are_read_if_they_were_not_written_by_key_or_do_not_divide() -> None:
    shard = KeyShard(1, 2)
    assert shard.lanes(identity("key", 4), range(4)) == {1, 3}
    assert shard.lanes(identity("total", 4), range(4)) == {0, 1, 2, 3}
    assert shard.lanes(identity("key", 3), range(3)) == {0, 1, 2}
    assert shard.is_in(identity("key", 4, 0, 1)), "a merged lane covers several"
    assert not shard.is_in(identity("key", 4, 0, 2))
