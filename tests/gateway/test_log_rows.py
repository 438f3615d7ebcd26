"""The size of log rows does not depend on how they were sliced or selected."""

from __future__ import annotations

import pyarrow as pa
import pytest

from procession.gateway.log_rows import LogRow, batch_of, size_of

ROWS = [LogRow(0, 7, number, 5, b"k" * (number % 3), b"x" * number) for number in range(20)]


@pytest.mark.parametrize(
    "batch",
    [
        batch_of(ROWS),
        batch_of(ROWS[:1]),
        batch_of(ROWS).slice(3, 9),
        batch_of(ROWS).filter(pa.array([number % 2 == 0 for number in range(20)])),
    ],
    ids=["all", "one", "slice", "filtered"],
)
def test_the_size_of_rows_is_that_of_their_columns(batch: pa.RecordBatch) -> None:
    assert batch.nbytes <= size_of(batch) <= batch.nbytes + 16, "nbytes counts the offsets between rows only"
