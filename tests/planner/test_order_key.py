"""The order of results that are fired together: by time, then by key, then by their number."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from procession.planner.order_key import AFTER, KEY_BYTES, PLACE, TAKEN_MAX, rank_of, rows_of_results, take_in_order
from tests.operators.test_operator import MemoryStates

KEYS = st.lists(st.binary(max_size=4) | st.binary(min_size=KEY_BYTES - 1, max_size=KEY_BYTES + 8), min_size=1)


@given(KEYS)
def test_the_numbers_of_keys_are_in_the_order_of_their_ranks(keys: list[bytes]) -> None:
    rows = rows_of_results([(0, (5, key, 0), key, None) for key in keys])
    columns = [column.tolist() for column in rows.tail]
    assert len(columns) == PLACE
    assert sorted(range(len(keys)), key=lambda row: [column[row] for column in columns]) == sorted(
        range(len(keys)), key=lambda row: rank_of(keys[row])
    )


def test_short_keys_are_in_the_order_of_their_bytes_and_long_ones_are_distinguished() -> None:
    keys = [b"", b"\0", b"\0\0", b"a", b"a\0", b"\xff"]
    assert sorted({*keys}, key=rank_of) == keys
    whole = b"x" * KEY_BYTES
    assert rank_of(whole) < rank_of(whole + b"1")
    assert rank_of(whole + b"1") != rank_of(whole + b"2")


def test_results_are_rows_with_their_input_row_place_and_key() -> None:
    rows = rows_of_results([(3, (7, b"k", 2), b"out", "value"), (4, (AFTER, b"", 0), b"", "other")])
    assert rows.as_list() == ["value", "other"]
    assert rows.all_origins().tolist() == [3, 4]
    assert rows.tail[0].tolist() == [7, AFTER]
    assert rows.tail[-1].tolist() == [2, 0]
    assert rows.keys.to_pylist() == [b"out", b""]
    assert all(column.dtype == np.int64 for column in rows_of_results([(0, (1, b"", 0), b"", None)]).tail)


def test_states_are_read_in_the_order_of_keys_in_chunks_of_any_size() -> None:
    states = MemoryStates()
    states.keys_max = 2 * TAKEN_MAX
    names = [b"%05d" % number for number in range(3 * TAKEN_MAX)]
    states.update({b"k" + name: int(name) for name in reversed(names)})
    states[b"other"] = "stays"
    chunks = list(take_in_order(states))
    assert [len(chunk) for chunk in chunks] == [TAKEN_MAX] * 3
    assert [taken for chunk in chunks for taken in chunk] == [(name, int(name)) for name in names]
    assert dict(states) == {b"other": "stays"}
