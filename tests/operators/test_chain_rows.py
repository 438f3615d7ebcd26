"""Rows into and out of a chain: rows packed for an exchange are unpacked unchanged, and a slice has a part of every
column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from procession.operators.chain_rows import INPUT, TICK, TIME, ChainRows, batch_of
from procession.operators.value_codec import BYTES, PLAIN, TEXT
from procession.record import COLUMNS


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def exchanged(*, carried: bool = False) -> ChainRows:
    columns = [
        ("form", pa.array([BYTES, TICK, TEXT], pa.uint8())),
        ("key", pa.array([b"x", b"", b"z"], pa.binary())),
        (TIME, pa.array([10, 20, 30], pa.int64())),
        (INPUT, pa.array([1, 2, 3], pa.uint64())),
        *((name, pa.array([0, 1, 2])) for name in COLUMNS if carried and name not in ("payload", "key")),
    ]
    order = [numbers(4, 5, 6), numbers(0, 0, 1)]
    return ChainRows.of_exchange(batch_of(pa.array([b"a", b"", b"c"], pa.binary()), order, columns))


def test_rows_after_an_exchange_equal_the_packed_rows() -> None:
    rows = exchanged()
    assert len(rows) == 3
    assert [column.tolist() for column in rows.order] == [[4, 5, 6], [0, 0, 1]]
    assert rows.keys.to_pylist() == [b"x", b"", b"z"]
    assert rows.times.tolist() == [10, 20, 30]
    assert rows.inputs.tolist() == [1, 2, 3]
    assert rows.columns is None
    assert not rows.is_ingress


def test_the_columns_of_records_are_unpacked_if_the_exchange_has_them() -> None:
    assert exchanged(carried=True).columns.schema.names == list(COLUMNS)


def test_a_tick_has_no_value() -> None:
    rows = exchanged()
    assert rows.are_ticks.tolist() == [False, True, False]
    assert rows.decoded(PLAIN) == [b"a", None, "c"]


def test_a_slice_has_a_part_of_every_column() -> None:
    part = exchanged(carried=True).slice(1, 2)
    assert part.payload.to_pylist() == [b"", b"c"]
    assert [column.tolist() for column in part.order] == [[5, 6], [0, 1]]
    assert part.forms.tolist() == [TICK, TEXT]
    assert part.columns.num_rows == 2
    assert part.keys.to_pylist() == [b"", b"z"]
    assert part.times.tolist() == [20, 30]
    assert part.inputs.tolist() == [2, 3]


def test_records_of_the_log_are_as_they_were_received() -> None:
    records = pa.record_batch({"payload": pa.array([b"a", b"b"])})
    rows = ChainRows.of_ingress(records, numbers(8, 9), np.array([True, False]))
    assert rows.is_ingress
    assert rows.slice(1, 1).order[0].tolist() == [9]
    assert rows.slice(0, 1).are_late.tolist() == [True]
