"""Keys: their bytes sort as the keys do, decode to the same keys, and distinguish records."""

from __future__ import annotations

import enum
import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from procession import Pipeline, PlanError, aggregates, tables, windows
from procession.operators.named_types import NamedTypes
from procession.planner.keys import PLAIN_KEYS, KeyCodec, of_bytes
from tests.operators.random_pipelines import STREAMS
from tests.slow_cases import examples
from tests.spark.test_plans import expected, ran


class Side(enum.Enum):
    BUY = 1
    SELL = 2


class Level(enum.StrEnum):
    LOW = "a"
    HIGH = "b"


class Stranger(enum.Enum):
    ONE = 1


KEYS = KeyCodec(NamedTypes.of([Side, Level]))

ZONES = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), ZoneInfo("Europe/Paris")])
# The documented order of types. Within each type, Python's `<` defines the order.
KINDS: tuple[st.SearchStrategy[Any], ...] = (
    st.none(),
    st.booleans(),
    st.integers() | st.integers(-(2**200), 2**200) | st.sampled_from([2**63, 2**63 - 1, -(2**63), -(2**63) - 1]),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False),
    st.dates(),
    st.datetimes(),
    st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1), timezones=ZONES),  # noqa: DTZ001
    st.uuids(),
    st.binary(),
    st.text(),
)
TYPES = [type(None), bool, int, float, Decimal, date, datetime, datetime, UUID, bytes, str]
LEAVES = st.one_of(*KINDS)
ANY = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=6)


def rank(key: Any) -> Any:
    """Return the value that keys are sorted by: the position of the type, then the key."""
    if isinstance(key, tuple):
        return 12, [rank(part) for part in key]
    if isinstance(key, enum.Enum):
        return 11, type(key).__name__, rank(key.value)
    if key is None:
        return 0, 0
    if type(key) is datetime:
        return (7, key.astimezone(UTC)) if key.tzinfo is not None else (6, key)
    return TYPES.index(type(key)), key


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_the_bytes_of_keys_of_one_type_sort_as_the_keys(kind: int) -> None:
    @given(KINDS[kind], KINDS[kind])
    def check(one: Any, other: Any) -> None:
        if one is not None:
            assert (KEYS.encode(one) < KEYS.encode(other)) == (one < other)
        assert (KEYS.encode(one) == KEYS.encode(other)) == (one == other)

    check()


@given(ANY, ANY)
@example("a", "a\0")
@example(("a\0",), ("a", None))
@example(("a",), ("a\0", 1))
@example((b"\0\xff",), (b"\0", b""))
@example((1, ("x",)), (1, ("x", "")))
@example((Level.LOW, 2), (Level.HIGH, 1))
@example(Side.SELL, Level.LOW)
@example((Decimal("1.5"), 1), (Decimal("1.50"), 0))
@example((-(2**70), 1), (-(2**70), 0))
@example((Decimal("-3"), 1), (Decimal("-3"), 0))
def test_mixed_keys_and_tuples_sort_by_type_and_then_by_value(one: Any, other: Any) -> None:
    assert (KEYS.encode(one) < KEYS.encode(other)) == (rank(one) < rank(other))
    assert (KEYS.encode(one) == KEYS.encode(other)) == (rank(one) == rank(other))


def in_utc(key: Any) -> Any:
    """Return the key with its instants in UTC.

    In Python a local time within a clock change is unequal to every time of another zone, so such times can only be
    compared as instants.
    """
    if type(key) is tuple:
        return tuple(map(in_utc, key))
    return key.astimezone(UTC) if isinstance(key, datetime) and key.tzinfo else key


@given(ANY)
@example(Side.SELL)
@example((Level.HIGH, ("x", None)))
@example(Decimal("1E+400"))
@example(Decimal("-Infinity"))
@example(math.inf)
@example((datetime(2024, 3, 31, 2, tzinfo=ZoneInfo("Europe/Paris")), 1))
def test_a_decoded_key_is_equal_and_of_the_same_type(key: Any) -> None:
    back = KEYS.decode(KEYS.encode(key))
    assert back == in_utc(key)
    assert rank(back) == rank(key)
    assert type(back) is type(key)


def test_equal_keys_of_one_type_have_one_encoding() -> None:
    """As documented: keys of the same type that are equal are decoded to one form."""
    paris = datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Paris"))
    alike: list[tuple[Any, Any, str]] = [
        (0.0, -0.0, "0.0"),
        (Decimal("1.50"), Decimal("1.5"), "Decimal('1.5')"),
        (Decimal(100), Decimal("1E+2"), "Decimal('100')"),
        (Decimal("-0"), Decimal("0.00"), "Decimal('0')"),
        (paris, paris.astimezone(UTC), "datetime.datetime(2026, 7, 1, 10, 0, tzinfo=datetime.timezone.utc)"),
    ]
    for one, other, message in alike:
        assert KEYS.encode(one) == KEYS.encode(other)
        assert repr(KEYS.decode(KEYS.encode(one))) == message
    different = [1, 1.0, True, Decimal(1), "1", b"1", Side.BUY, (1,), None, date(2026, 7, 1), datetime(2026, 7, 1)]  # noqa: DTZ001
    assert len({KEYS.encode(key) for key in different}) == len(different)


@given(st.one_of(*(st.lists(kind, max_size=9) for kind in KINDS)) | st.lists(ANY, max_size=9))
@example([2**63, 1])
@example(["ü", "", "a\0"])
def test_a_column_of_keys_is_encoded_as_each_of_them_alone(keys: list[Any]) -> None:
    column = KEYS.column(keys)
    assert column.type == pa.binary()
    assert column.to_pylist() == list(map(KEYS.encode, keys))


def test_keys_as_plain_bytes_are_those_of_versions_without_types() -> None:
    for keys, plain in (
        ([b"a", b"", b"\0"], [b"a", b"", b"\0"]),
        (["a", "ü"], [b"a", "ü".encode()]),
        ([7, "7", b"7", -1], [b"7", b"7", b"7", b"-1"]),
    ):
        assert KEYS.shown(KEYS.column(keys)).to_pylist() == plain
    raw = pa.array([b"x", b"", b"yy"], pa.binary()).slice(1)
    assert of_bytes(raw).to_pylist() == [KEYS.encode(b""), KEYS.encode(b"yy")]


@pytest.mark.parametrize(
    "key",
    [math.nan, Decimal("NaN"), (1, math.nan), [1], {"a": 1}, bytearray(b"x"), object(), Stranger.ONE, 1j, "\ud800"],
)
def test_an_invalid_key_is_refused(key: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        KEYS.encode(key)
    if isinstance(key, Stranger):
        assert "types=[Stranger]" in str(caught.value)


def test_a_stored_key_of_an_unlisted_enum_is_reported_in_one_sentence() -> None:
    with pytest.raises(PlanError, match="'Side', which the pipeline does not list") as caught:
        PLAIN_KEYS.decode(KEYS.encode(Side.BUY))
    assert "types=[Side]" in caught.value.next_step


# Through whole pipelines, with epochs and tasks.

MIXED: list[Any] = [
    7,
    "7",
    b"7",
    7.0,
    -3,
    10,
    2**70,
    None,
    True,
    "a",
    "a\0",
    "a\0\0",
    Decimal("1.5"),
    date(2026, 1, 2),
    datetime(2026, 1, 2, tzinfo=UTC),
    UUID(int=5),
    Side.SELL,
    Side.BUY,
    (Level.LOW, 3),
    (Level.LOW, 3, ""),
    "x" * 50 + "b",
    "x" * 50 + "a",
]


def key_of(value: bytes) -> Any:
    return MIXED[int(value.split()[0]) % len(MIXED)]


def count_of(value: bytes) -> int:
    return int(value.split()[1])


def whole(key: Any, state: Any) -> str:
    return f"gone {key!r} {state}"


def described(result: dict[str, Any]) -> str:
    return f"{result['key']!r} {type(result['key']).__name__} {result['count']} {result['value']}"


@given(
    payloads=st.lists(
        st.builds(lambda key, number: b"%d %d" % (key, number), st.integers(0, len(MIXED) - 1), st.integers(0, 60)),
        min_size=1,
        max_size=40,
    ),
    cuts=st.sets(st.integers(1, 40), max_size=6),
    slice_records=st.sampled_from([1, 7, 1000]),
    keys_max=st.sampled_from([1, 1000]),
)
@examples(40, deadline=None)
def test_i11_keys_of_all_types_are_distinguished_and_sorted_with_any_epochs_and_tasks(
    payloads: list[bytes], cuts: set[int], slice_records: int, keys_max: int
) -> None:
    pipeline = Pipeline("p", parallelism=3, types=[Side, Level])
    source = pipeline.source(ends=True)
    source.aggregate(aggregates.collect(), key=key_of).map(described).sink("totals", to="file:out")
    source.map_stateful(
        lambda count, value: (count + 1, b"%b %d" % (value, count + 1)),
        key=key_of,
        initial=0,
        ttl_s=8,
        time=count_of,
        on_evict=whole,
    ).sink("gone", to="file:out")
    source.map_stateful(lambda seen, value: (seen + 1, b"%b %d" % (value, seen)), key=key_of, initial=0).sink(
        "seen", to="file:out"
    )
    source.window(windows.tumbling(5), aggregates.count(), key=key_of, time=count_of).map(described).sink(
        "windows", to="file:out"
    )
    graph = pipeline.graph()
    ends = [(len(payloads), stream) for stream in range(STREAMS)]
    got = ran(graph, payloads, cuts, len(payloads), slice_records, keys_max, ends=ends)
    assert got == expected(graph, payloads, ends)
    # And the reference has the keys in Python's order.
    names = [line.rpartition(b" [")[0] for line in got["totals"].splitlines()]
    used = sorted({number % len(MIXED) for number in (int(value.split()[0]) for value in payloads)})
    in_order = sorted((MIXED[number] for number in used), key=rank)
    assert [name.rsplit(b" ", 2)[0].decode() for name in names] == [repr(key) for key in in_order]


def test_a_table_with_keys_of_another_type_than_the_records_is_reported() -> None:
    side = tables.of_rows([{"id": "7", "name": "seven"}], by="id")
    assert side.matches("7") == [{"id": "7", "name": "seven"}]
    assert side.matches("8") == []
    assert side.matches(None) == []
    for key in (7, b"7"):
        with pytest.raises(TypeError, match="the keys of the table are str: they never match"):
            side.matches(key)
    assert tables.of_rows([{"id": Stranger.ONE}], by="id").matches(Stranger.ONE) == [{"id": Stranger.ONE}]
