"""The ordered logs of several gateways as one sequence, equal to the one that a single gateway would write."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from procession.merge.interleave import RowPlaces, interleaved, row_ranges
from procession.merge.waiting_rows import Key

SCHEMA = pa.schema([("order_time", pa.int64()), ("stream_id", pa.uint64()), ("message_id", pa.uint64())])


def batch(keys: list[Key]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([key._asdict() for key in keys], SCHEMA)


def keys_of(rows: pa.RecordBatch) -> list[Key]:
    return [Key(**row) for row in rows.to_pylist()]


@st.composite
def logs(draw: st.DrawFn) -> list[list[Key]]:
    """Generate logs with each stream in one of them."""
    times = st.lists(st.integers(-3, 3), min_size=1, max_size=6)
    streams = draw(st.dictionaries(st.sampled_from([0, 1, 7, 2**64 - 1]), times, min_size=1))
    found: list[list[Key]] = [[], [], []]
    for stream_id, stream_times in streams.items():
        log = found[draw(st.integers(0, 2))]
        log += [Key(time, stream_id, number) for number, time in enumerate(sorted(stream_times))]
    return [sorted(log) for log in found if log]


@given(logs())
def test_rows_are_in_the_order_of_time_stream_and_message(found: list[list[Key]]) -> None:
    paths = [[batch(log[:1]), batch(log[1:])] for log in found]
    assert keys_of(interleaved(paths)) == sorted(key for log in found for key in log)


@given(logs(), st.data())
def test_the_ranges_of_parts_give_the_same_sequence_part_by_part(found: list[list[Key]], data: st.DataObject) -> None:
    whole = sorted(key for log in found for key in log)
    inner = data.draw(st.lists(st.integers(0, len(whole)), max_size=3))
    edges = sorted([data.draw(st.integers(0, len(whole))), *inner, len(whole)])
    parts = list(row_ranges([RowPlaces.of([batch(log)]) for log in found], edges))
    assert len(parts) == len(edges) - 1
    for ranges, (first, last) in zip(parts, pairwise(edges), strict=True):
        rows = [log[start:end] for log, (start, end) in zip(found, ranges, strict=True)]
        assert sorted(key for part in rows for key in part) == whole[first:last]


@given(logs(), st.tuples(st.integers(-4, 4), st.sampled_from([0, 1, 5, 2**64 - 1]), st.integers(0, 6)))
def test_the_rows_up_to_a_key_are_counted_whether_or_not_the_key_exists(
    found: list[list[Key]], bound: tuple[int, int, int]
) -> None:
    for log in found:
        places = RowPlaces.of([batch(log)])
        assert places.count_up_to(Key(*bound)) == sum(key <= bound for key in log)
        assert [places.key(row) for row in range(len(log))] == log
