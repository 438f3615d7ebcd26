"""Results of batch functions: the input row of each result row, and which results are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from procession.operators.batch_result import read_batch_result

ROWS = np.array([4, 5, 6], np.int64)


def read(result: Any, *, is_placed: bool = True) -> tuple[list[bytes], list[int], list[int]]:
    payload, rows, ordinals = read_batch_result(result, ROWS, is_placed=is_placed)
    return payload.to_pylist(), rows.tolist(), ordinals.tolist()


def batch(payload: list[Any], rows: list[int]) -> pa.RecordBatch:
    return pa.record_batch({"payload": pa.array(payload), "row": pa.array(rows, pa.int64())})


@pytest.mark.parametrize(
    "result",
    [
        pa.array([b"a", b"b", b"c"]),
        pa.chunked_array([["a"], ["b", "c"]]),
        pa.record_batch({"payload": pa.array(["a", "b", "c"])}),
        pa.table({"payload": ["a", "b", "c"]}),
    ],
)
def test_a_result_with_as_many_rows_as_the_input_belongs_to_its_rows_in_order(result: Any) -> None:
    assert read(result) == ([b"a", b"b", b"c"], [4, 5, 6], [0, 0, 0])


def test_rows_that_name_their_input_are_numbered_within_it() -> None:
    assert read(batch(["a", "b", "c", "d"], [4, 4, 6, 6])) == ([b"a", b"b", b"c", b"d"], [4, 4, 6, 6], [0, 1, 0, 1])


def test_a_result_without_rows_is_accepted() -> None:
    assert read(batch([], [])) == ([], [], [])


def test_rows_of_another_number_without_an_input_are_refused_only_if_order_matters() -> None:
    assert read(pa.array([b"a", b"b"]), is_placed=False) == ([b"a", b"b"], [4, 4], [0, 0])
    with pytest.raises(TypeError, match="returned 2 rows for 3, and a later stage needs their order"):
        read(pa.array([b"a", b"b"]))


@pytest.mark.parametrize("rows", [[5, 4], [3, 4], [6, 7]], ids=["backwards", "before the input", "after the input"])
def test_rows_out_of_the_order_of_the_input_are_refused(rows: list[int]) -> None:
    with pytest.raises(TypeError, match="in another order than the input"):
        read(batch(["a", "b"], rows))


@pytest.mark.parametrize(
    ("result", "sentence"), [(["a"], "returned list"), (pa.array([b"a", None, b"c"]), "a null payload")]
)
def test_a_result_without_payloads_is_refused(result: Any, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        read(result)
