"""Values over an exchange: what comes out is what went in, type and all, or it is refused."""

from __future__ import annotations

import datetime
import enum
from collections import namedtuple
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession.plan.carriage import BYTES, TEXT, pack, packed_value, unpack

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers(-(2**63), 2**63), st.binary()), inner, max_size=4),
    ),
    max_leaves=10,
)


def types_of(value: Any) -> Any:
    """The value with the type of everything in it, because 1 == 1.0 == True."""
    if isinstance(value, dict):
        return "dict", [(types_of(key), types_of(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [types_of(item) for item in value]
    return type(value).__name__, value


@given(values=st.lists(VALUES, max_size=8))
@settings(deadline=None)
def test_what_comes_out_is_what_went_in_type_and_all(values: list[Any]) -> None:
    got = unpack(*pack(values))
    assert types_of(got if isinstance(got, list) else got.to_pylist()) == types_of(values)


@pytest.mark.parametrize(
    ("values", "form", "kind"),
    [
        ([b"a", b""], BYTES, pa.binary()),
        (["a", "ü", ""], TEXT, pa.string()),
        (pa.array([b"a"], pa.binary()), BYTES, pa.binary()),
        (pa.array(["a"], pa.string()), TEXT, pa.string()),
        ([], BYTES, pa.binary()),
    ],
)
def test_bytes_and_text_stay_columns_all_the_way(values: Any, form: int, kind: pa.DataType) -> None:
    payload, forms = pack(values)
    assert payload.type == pa.binary()
    assert forms.tolist() == [form] * len(payload)
    got = unpack(payload, forms)
    assert got.type == kind
    assert got.to_pylist() == (values if isinstance(values, list) else values.to_pylist())


def test_tables_and_batches_of_arrow_go_over_too() -> None:
    table = pa.table({"a": [1, 2], "b": ["x", None]})
    batch = pa.record_batch({"a": pa.array([], pa.int64())})
    got = unpack(*pack([table, [batch], (table.to_batches()[0],)]))
    assert got[0].equals(table)
    assert got[1][0].equals(batch)
    assert got[2][0].equals(table.to_batches()[0])


Point = namedtuple("Point", "x y")


class Colour(enum.IntEnum):
    RED = 1


class Name(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "value", [{1, 2}, object(), Point(1, 2), Colour.RED, Name("x"), datetime.date(2020, 1, 1), 1j, [{"deep": {1}}]]
)
def test_a_value_that_would_come_out_as_something_else_is_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot go over an exchange"):
        packed_value(value)


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        packed_value("\ud800")
