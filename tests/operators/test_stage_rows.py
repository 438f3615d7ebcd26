"""Rows between two stages: the input row of each, and the order in which branches are merged."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from procession.operators.stage_rows import StageRows, concatenated, joined, ordinals


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize("values", [["a", "b", "c"], pa.array(["a", "b", "c"])], ids=["objects", "a column"])
def test_rows_that_are_taken_keep_their_origins_keys_and_times(values: list[str] | pa.Array) -> None:
    rows = StageRows(values, None, (numbers(7, 8, 9),), pa.array([b"x", b"y", b"z"]), pa.array([10, 20, 30]))
    taken = rows.take(numbers(2, 0, 0))
    assert taken.as_list() == ["c", "a", "a"]
    assert taken.all_origins().tolist() == [2, 0, 0]
    assert taken.tail[0].tolist() == [9, 7, 7]
    assert taken.keys.to_pylist() == [b"z", b"x", b"x"]
    assert taken.times.to_pylist() == [30, 10, 10]


def test_a_slice_knows_its_place_in_the_whole() -> None:
    piece = StageRows(["a", "b", "c"]).slice(1, 5)
    assert (piece.as_list(), piece.all_origins().tolist()) == (["b", "c"], [1, 2])
    assert [piece.origin(row) for row in range(2)] == [1, 2]
    assert piece.slice(1, 1).all_origins().tolist() == [2]


def test_only_none_means_all_rows() -> None:
    rows = StageRows(["a", "b"])
    assert rows.only(None) is rows
    assert rows.only([1]).as_list() == ["b"]


def test_an_order_key_is_padded_with_zeros_at_its_end() -> None:
    padded = StageRows(["a", "b"]).numbered(numbers(3, 4)).padded(3)
    assert [column.tolist() for column in padded.tail] == [[3, 4], [0, 0], [0, 0]]


def test_pieces_are_one_after_the_other_with_the_origins_of_each() -> None:
    pieces = [StageRows(["a"], numbers(5), keys=pa.array([b"x"])), StageRows(["b"], numbers(2), keys=pa.array([b"y"]))]
    whole = concatenated(pieces)
    assert (whole.as_list(), whole.all_origins().tolist()) == (["a", "b"], [5, 2])
    assert whole.keys.to_pylist() == [b"x", b"y"]
    assert concatenated(pieces[:1]) is pieces[0]


def test_branches_are_merged_in_the_order_of_the_input_row_and_then_of_the_branch() -> None:
    first = StageRows(["a0", "a2"], numbers(0, 2)).numbered(0)
    second = StageRows(["b0", "b1"], numbers(0, 1)).numbered(1)
    assert joined([second, first], None, is_kept=True).as_list() == ["a0", "b0", "b1", "a2"]
    assert joined([second, first], None, is_kept=False).as_list() == ["b0", "b1", "a0", "a2"]


def test_a_branch_without_keys_or_times_gets_those_of_its_input_rows_if_another_has_its_own() -> None:
    own = StageRows(["a"], numbers(0), (numbers(0),), pa.array([b"own"]), pa.array([1]))
    plain = StageRows(["b"], numbers(1), (numbers(1),))
    of = (lambda rows: pa.array([b"in"] if rows is plain else [b"own"]), lambda rows: pa.array([len(rows)]))
    whole = joined([own, plain], of, is_kept=True)
    assert (whole.keys.to_pylist(), whole.times.to_pylist()) == ([b"own", b"in"], [1, 1])
    assert joined([own, plain], None, is_kept=True).keys is None


@pytest.mark.parametrize(("counts", "expected"), [([], []), ([2, 0, 3], [0, 1, 0, 1, 2])])
def test_ordinals_count_from_zero_for_each(counts: list[int], expected: list[int]) -> None:
    assert ordinals(numbers(*counts)).tolist() == expected
