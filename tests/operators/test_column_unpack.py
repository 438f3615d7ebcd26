"""Stored records that were in columns are columns again; rows that were stored otherwise are refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from procession.operators.column_pack import packed_records
from procession.operators.column_unpack import unpacked_records
from procession.operators.value_codec import PLAIN
from tests.operators.test_column_pack import KIND, records


def column_of(given_records: list[dict[str, Any]]) -> pa.StructArray:
    return pa.array([{field.name: record.get(field.name) for field in KIND} for record in given_records], KIND)


@given(st.lists(records, min_size=1, max_size=10), st.integers(0, 3))
@example([{"x": -0.0, "n": -1, "text": "\x00"}, {}], 0)
@example([{"text": "", "b": False}, {"text": "\U0001f600", "b": True}], 1)
def test_what_was_packed_is_unpacked_to_the_same_column(given_records: list[dict[str, Any]], start: int) -> None:
    packed = packed_records(column_of(given_records))
    assert packed is not None
    if start >= len(packed):
        return
    found = unpacked_records(packed[start:], KIND)
    assert found is not None
    found.validate(full=True)
    # NaN is not equal to itself, but its text is
    assert repr(found.to_pylist()) == repr(column_of(given_records)[start:].to_pylist())


@given(st.lists(records, min_size=1, max_size=5), st.integers(0, 4), st.binary(max_size=8) | st.none())
def test_a_row_in_another_form_is_refused(given_records: list[dict[str, Any]], row: int, other: bytes | None) -> None:
    packed = packed_records(column_of(given_records))
    assert packed is not None
    rows = packed.to_pylist()
    row %= len(rows)
    rows[row] = PLAIN.packed(given_records[row]) if other is None else other
    assert unpacked_records(pa.array(rows, pa.binary()), KIND) is None


@given(st.lists(records, min_size=1, max_size=3), st.integers(0, 10_000), st.integers(0, 255))
def test_bytes_that_were_changed_are_refused_or_decoded_as_alone(
    given_records: list[dict[str, Any]], place: int, byte: int
) -> None:
    packed = packed_records(column_of(given_records))
    assert packed is not None
    rows = packed.to_pylist()
    changed = bytearray(rows[0])
    changed[place % len(changed)] = byte
    cut = bytes(changed[: place % len(changed)])
    assert unpacked_records(pa.array([cut, *rows[1:]], pa.binary()), KIND) is None
    found = unpacked_records(pa.array([bytes(changed), *rows[1:]], pa.binary()), KIND)
    if found is None:
        return
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:  # the text is no UTF-8: the codec refuses it, too
        with pytest.raises(UnicodeDecodeError):
            PLAIN.decoded_value(bytes(changed))
        return
    assert repr(found[0].as_py()) == repr(PLAIN.decoded_value(bytes(changed)))


@pytest.mark.parametrize(
    "other",
    [
        pa.struct([("n", pa.int64())]),
        pa.struct(list(KIND)[:-1]),
        pa.struct([*list(KIND)[1:], KIND[0]]),
        pa.struct([KIND[0], ("small", pa.string()), *list(KIND)[2:]]),
        pa.struct([*list(KIND)[:-1], ("day", pa.date32())]),
    ],
)
def test_records_of_another_type_are_refused(other: pa.StructType) -> None:
    packed = packed_records(column_of([{"n": 1, "small": 2}]))
    assert packed is not None
    assert unpacked_records(packed, other) is None


def test_numbers_beyond_their_type_are_refused() -> None:
    packed = packed_records(pa.array([{"n": 300}]))
    assert unpacked_records(packed, pa.struct([("n", pa.int8())])) is None
    assert unpacked_records(pa.array([], pa.binary()), KIND) is None
