"""The merger compared with a plain sort: any number of paths, any batches, keys of any length."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession.errors import StorageError
from procession.merge import kway
from procession.merge.kway import merged

Key = tuple[int, ...]


def batch_of(keys: list[Key], length: int = 1) -> pa.RecordBatch:
    columns = {f"order_{place}": pa.array([key[place] for key in keys], pa.int64()) for place in range(length)}
    return pa.record_batch({"payload": pa.array([repr(key).encode() for key in keys], pa.binary()), **columns})


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[bytes]:
    return [payload for batch in batches for payload in batch.column("payload").to_pylist()]


@st.composite
def paths(draw: st.DrawFn) -> tuple[int, list[list[Key]], list[list[pa.RecordBatch]]]:
    """Generate keys in runs of any length on paths, each divided into batches, some of them empty."""
    length = draw(st.integers(1, 3))
    numbers = st.integers(0, 9) | st.sampled_from([-(2**63), 2**63 - 1])
    keys = sorted(draw(st.sets(st.tuples(*[numbers] * length), max_size=60)))
    count = draw(st.integers(1, 5))
    owners: list[list[Key]] = [[] for _ in range(count)]
    owner = 0
    for key in keys:
        if draw(st.booleans()):
            owner = draw(st.integers(0, count - 1))
        owners[owner].append(key)
    batches = []
    for own in owners:
        cuts = sorted(draw(st.lists(st.integers(0, len(own)), max_size=4)))
        edges = [0, *cuts, len(own)]
        batches.append([batch_of(own[a:b], length) for a, b in pairwise(edges)])
    return length, owners, batches


@given(given_paths=paths(), stretch=st.sampled_from([1, 4, 64]))
@settings(deadline=None)
def test_the_output_equals_a_sort_of_everything(
    given_paths: tuple[int, list[list[Key]], list[list[pa.RecordBatch]]], stretch: int
) -> None:
    _, owners, batches = given_paths
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kway, "STRETCH_ROWS_MIN", stretch)
        expected = [repr(key).encode() for key in sorted(key for own in owners for key in own)]
        assert rows_of(merged(batches)) == expected
        assert all(batch.schema.names == ["payload"] for batch in merged(batches, ["payload"]))
        assert rows_of(merged(batches, ["payload"])) == expected


def test_paths_that_do_not_overlap_are_passed_on_without_a_copy() -> None:
    one, two = batch_of([(number,) for number in range(1000)]), batch_of([(number,) for number in range(1000, 2000)])
    out = list(merged([[two], [one]]))
    assert [batch.num_rows for batch in out] == [1000, 1000]
    assert out[0].column("payload").buffers()[2].address == one.column("payload").buffers()[2].address


def test_long_runs_are_passed_on_without_a_copy_and_short_ones_are_combined() -> None:
    own = [[(number,) for number in range(2000) if number // 500 % 2 == path] for path in range(2)]
    out = list(merged([[batch_of(own[0])], [batch_of(own[1])]]))
    assert [batch.num_rows for batch in out] == [500] * 4
    own = [[(number,) for number in range(2000) if number % 2 == path] for path in range(2)]
    assert max(batch.num_rows for batch in merged([[batch_of(own[0])], [batch_of(own[1])]])) > 1000


def test_a_path_is_read_only_as_far_as_it_is_needed() -> None:
    read: list[int] = []

    def slow() -> Iterator[pa.RecordBatch]:
        for number in range(10):
            read.append(number)
            yield batch_of([(number * 100,)])

    out = merged([slow(), [batch_of([(5,), (950,)])]])
    next(out)
    assert len(read) <= 2


@pytest.mark.parametrize(
    "batches",
    [
        [[[(1,), (2,)]], [[(2,), (3,)]]],
        [[[(1,)]], [[(1,)]]],
        [[[(5,)], [(4,)]], [[(1,)]]],
        [[[(0, 1), (0, 2)]], [[(0, 2)]]],
    ],
)
def test_a_repeated_key_or_a_decreasing_path_is_found(batches: list[list[list[Key]]]) -> None:
    length = len(batches[0][0][0])
    with pytest.raises(StorageError, match="same order key"):
        rows_of(merged([[batch_of(keys, length) for keys in path] for path in batches]))


def test_no_record_one_record_and_empty_paths_are_merged() -> None:
    assert rows_of(merged([])) == []
    assert rows_of(merged([[], []])) == []
    assert rows_of(merged([[batch_of([])], [batch_of([(7,)])], []])) == [b"(7,)"]


def test_many_paths_are_merged_by_columns() -> None:
    chance = np.random.default_rng(7)
    owners = chance.integers(0, 15, 50_000)
    own = [[(int(number),) for number in np.flatnonzero(owners == path)] for path in range(15)]
    batches = [[batch_of(keys[start : start + 900]) for start in range(0, len(keys), 900)] for keys in own]
    assert rows_of(merged(batches)) == [b"(%d,)" % number for number in range(50_000)]
