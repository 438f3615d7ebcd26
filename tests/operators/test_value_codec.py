"""Values over an exchange: a decoded value equals the encoded one, including its type, or it is refused."""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict, namedtuple
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, NamedTuple

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession import Pipeline, PlanError
from procession.operators.named_types import NamedTypes
from procession.operators.value_codec import BYTES, PLAIN, TEXT, ValueCodec

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
    """Return the value with the type of everything in it, because 1 == 1.0 == True."""
    if isinstance(value, dict):
        return "dict", [(types_of(key), types_of(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [types_of(item) for item in value]
    return type(value).__name__, value


@given(values=st.lists(VALUES, max_size=8))
@settings(deadline=None)
def test_a_decoded_value_equals_the_encoded_one_including_its_type(values: list[Any]) -> None:
    got = PLAIN.unpack(*PLAIN.pack(values))
    assert types_of(got if isinstance(got, list) else got.to_pylist()) == types_of(values)


def test_text_with_half_a_surrogate_pair_and_very_large_numbers_are_encoded() -> None:
    texts = ["\ud83d", "a\udc00b", ["\ud83d"], {"\ud83d": "ü"}, ("\ud83d", bytearray(b"a"))]
    for value in (*texts, 2**64, -(10**5_000), [10**5_000]):
        for values in ([value, value], ["a", value]):
            got = PLAIN.unpack(*PLAIN.pack(values))
            assert types_of(got) == types_of(values)


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
def test_bytes_and_text_are_kept_as_columns(values: Any, form: int, kind: pa.DataType) -> None:
    payload, forms = PLAIN.pack(values)
    assert payload.type == pa.binary()
    assert forms.tolist() == [form] * len(payload)
    got = PLAIN.unpack(payload, forms)
    assert got.type == kind
    assert got.to_pylist() == (values if isinstance(values, list) else values.to_pylist())


def test_tables_and_batches_of_arrow_are_encoded_too() -> None:
    table = pa.table({"a": [1, 2], "b": ["x", None]})
    batch = pa.record_batch({"a": pa.array([], pa.int64())})
    got = PLAIN.unpack(*PLAIN.pack([table, [batch], (table.to_batches()[0],)]))
    assert got[0].equals(table)
    assert got[1][0].equals(batch)
    assert got[2][0].equals(table.to_batches()[0])


class Name(str):
    __slots__ = ()


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


Point = namedtuple("Point", "x y")


class Span(NamedTuple):
    first: int
    last: Any = None


@dataclass
class Order:
    name: str
    lines: list[Any] = field(default_factory=list)
    total: Decimal | None = None
    is_checked: bool = field(default=False, init=False)


@dataclass(frozen=True, slots=True)
class Money:
    amount: Decimal
    of: Any = None


class Unlisted(enum.Enum):
    ONE = 1


LISTED = ValueCodec(NamedTypes.of([Colour, Rights, Point, Span, Order, Money]))

HASHABLE = st.recursive(
    st.one_of(LEAVES, st.dates(), st.uuids(), st.sampled_from([*Colour, Rights.READ | Rights.WRITE])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(inner, max_size=3),
        st.builds(Money, st.decimals(allow_nan=False), inner),
    ),
    max_leaves=4,
)
RICH = st.recursive(
    st.one_of(
        HASHABLE,
        st.times(timezones=st.none() | st.just(UTC)),
        st.datetimes(allow_imaginary=True, timezones=st.none() | st.timezones()),
        st.datetimes(timezones=st.just(timezone(timedelta(hours=-3), "home"))),
        st.timedeltas(),
        st.decimals(allow_nan=False),
        st.binary().map(bytearray),
        st.sets(HASHABLE, max_size=3),
        st.dictionaries(HASHABLE, st.integers(), max_size=3),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(st.tuples(st.text(), inner), max_size=3).map(OrderedDict),
        st.builds(Point, inner, inner),
        st.builds(Span, st.integers(), inner),
        st.builds(Order, st.text(), st.lists(inner, max_size=2), st.none() | st.decimals(allow_nan=False)),
        st.dictionaries(st.text(), inner, max_size=3),
    ),
    max_leaves=6,
)


def all_types_of(value: Any) -> Any:
    """Return the value with the type of everything in it. Unordered collections are sorted lists."""
    name = type(value).__name__
    if isinstance(value, dict):
        pairs = [(all_types_of(key), all_types_of(item)) for key, item in value.items()]
        return name, pairs if isinstance(value, OrderedDict) else sorted(pairs, key=repr)
    if isinstance(value, set | frozenset):
        return name, sorted(map(all_types_of, value), key=repr)
    if isinstance(value, list | tuple):
        return name, [all_types_of(item) for item in value]
    if is_dataclass(value):
        return name, [all_types_of(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, datetime | time):
        zone = value.tzinfo
        return name, value.replace(tzinfo=None), value.fold, type(zone).__name__, str(zone)
    return name, str(value) if isinstance(value, Decimal) else value


@given(value=RICH)
@settings(deadline=None)
def test_values_of_all_documented_types_are_decoded_equal_and_of_the_same_type(value: Any) -> None:
    got = LISTED.decoded_value(LISTED.packed(value))
    assert got == value
    assert all_types_of(got) == all_types_of(value)


def test_an_unlisted_class_is_refused_and_the_error_says_how_to_list_it() -> None:
    for value in (Point(1, 2), Colour.RED, Order("x"), [{"deep": Money(Decimal(1))}]):
        with pytest.raises(TypeError, match=r"is not listed: write Pipeline\(…, types=\["):
            PLAIN.packed_value(value)
    with pytest.raises(TypeError, match=r"Unlisted\.ONE: 1"):
        LISTED.packed_value([Unlisted.ONE])


@pytest.mark.parametrize(
    "value",
    [object(), Name("x"), memoryview(b"x"), {"a": [memoryview(b"x")]}, 1j, [{"deep": {1j}}], Counter("a"), range(3)],
)
def test_a_value_that_would_be_decoded_differently_is_refused_by_value_and_type(value: Any) -> None:
    with pytest.raises(TypeError, match="can be neither exchanged nor stored") as caught:
        LISTED.packed_value(value)
    if type(value) in (Counter, Name, range):
        assert repr(value) in str(caught.value)
        assert type(value).__name__ in str(caught.value)


class Elsewhere(tzinfo):
    pass


def test_a_zone_that_could_not_be_found_again_is_refused() -> None:
    for value in (datetime(2026, 1, 1, tzinfo=Elsewhere()), time(1, tzinfo=Elsewhere())):  # type: ignore[abstract]
        with pytest.raises(TypeError, match="time zone"):
            PLAIN.packed_value(value)


def test_a_name_in_a_file_is_looked_up_in_the_list_and_never_imported() -> None:
    for name in ("os.system", "builtins.eval", "Order", "procession.operators.value_codec.ValueCodec"):
        for code in (15, 16, 17):
            hostile = msgpack.packb(msgpack.ExtType(code, PLAIN.packed([name, {}, None][: 3 if code == 15 else 2])))
            with pytest.raises(PlanError, match="which the pipeline does not list"):
                PLAIN.decoded_value(hostile)


def test_a_changed_class_uses_defaults_for_new_fields_and_refuses_other_changes() -> None:
    def changed(fields_of: list[Any]) -> ValueCodec:
        return ValueCodec(NamedTypes.of([make_dataclass("Order", fields_of)]))

    stored = LISTED.packed(Order("x"))
    same = [("name", str), ("lines", list), ("total", Any), ("is_checked", bool)]
    more = changed([*same, ("more", int, field(default=5)), ("made", list, field(default_factory=list))])
    assert (more.decoded_value(stored).more, more.decoded_value(stored).made) == (5, [])
    for fields_of in ([*same, ("more", int)], same[1:]):
        with pytest.raises(PlanError, match="stored values are of an earlier version of it"):
            changed(fields_of).decoded_value(stored)
    fewer = ValueCodec(NamedTypes.of([enum.Enum("Colour", ["RED"])]))  # type: ignore[list-item]
    assert fewer.decoded_value(LISTED.packed(Colour.RED)).name == "RED"
    with pytest.raises(PlanError, match="no member 'BLUE'"):
        fewer.decoded_value(LISTED.packed(Colour.BLUE))
    assert ValueCodec(NamedTypes.of([namedtuple("Point", "x y z", defaults=[0])])).decoded_value(
        LISTED.packed(Point(1, 2))
    ) == (1, 2, 0)
    with pytest.raises(PlanError, match="the fields x"):
        ValueCodec(NamedTypes.of([namedtuple("Point", "x")])).decoded_value(LISTED.packed(Point(1, 2)))


def test_only_classes_whose_values_can_be_stored_are_listed_and_names_are_unique() -> None:
    for wrong in (int, Name, "Order", Counter):
        with pytest.raises(PlanError, match="not a dataclass, a named tuple, a pydantic model or an enum"):
            Pipeline("p", types=[wrong])  # type: ignore[list-item]
    with pytest.raises(PlanError, match="two classes of the pipeline have the name 'Point'"):
        Pipeline("p", types=[Point, namedtuple("Point", "x")])
    assert Pipeline("p", types=[Order, Order]).types.classes == (Order,)
