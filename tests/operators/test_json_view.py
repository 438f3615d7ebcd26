"""JSON views: every key is found by its view, and stored values of any type have a view without the app's classes."""

from __future__ import annotations

import json
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.errors import UsageError
from procession.operators.json_view import KEYS, VALUES, as_json, key_from, keys_from
from procession.operators.named_types import NamedTypes
from procession.operators.value_codec import ValueCodec
from procession.planner.keys import KeyCodec


class Side(Enum):
    BUY = "buy"
    SELL = 2


@dataclass
class Order:
    side: Side
    price: Decimal


Point = namedtuple("Point", "x y")

CODEC = KeyCodec(NamedTypes.of([Side]))

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.decimals(allow_nan=False),
    st.dates(),
    st.datetimes(timezones=st.sampled_from([None, UTC])),
    st.uuids(),
    st.sampled_from(Side),
)
keys = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)


@given(keys)
def test_the_view_of_a_key_names_this_key(key: Any) -> None:
    encoded = CODEC.encode(key)
    view = json.loads(json.dumps(as_json(KEYS.decode(encoded)), allow_nan=False))
    assert key_from(view) == encoded


@given(keys)
def test_a_view_as_text_names_the_key_among_others(key: Any) -> None:
    encoded = CODEC.encode(key)
    assert encoded in keys_from(json.dumps(as_json(KEYS.decode(encoded))))


@pytest.mark.parametrize("key", ["c1", b"c1", "7", 7, "true", "{", b"[1"])
def test_plain_text_names_a_key_of_text_or_bytes(key: Any) -> None:
    text = key.decode() if isinstance(key, bytes) else str(key)
    assert CODEC.encode(key) in keys_from(text)


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2}', '{"$day": "x"}', '{"$date": "x"}', '{"$enum": 3}', "NaN"])
def test_an_invalid_key_is_reported_in_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="is not a key"):
        keys_from(text)


def test_stored_values_have_a_view_without_the_classes_of_the_app() -> None:
    stored = ValueCodec(NamedTypes.of([Side, Order, Point])).packed(
        {
            "order": Order(Side.BUY, Decimal("1.50")),
            "points": [Point(1, 2), (3, 4.5)],
            "seen": {b"b", b"a"},
            "times": OrderedDict(at=datetime(2026, 1, 2, tzinfo=UTC), day=date(2026, 1, 2), of=time(3, 4)),
            "rest": {1: timedelta(seconds=1.5), 2: UUID(int=5), 3: b"\xff", 4: float("nan"), 5: bytearray(b"z")},
        }
    )
    assert as_json(VALUES.decoded_value(stored)) == {
        "order": {"$class": "Order", "side": {"$enum": ["Side", "BUY"]}, "price": {"$decimal": "1.50"}},
        "points": [{"$class": "Point", "x": 1, "y": 2}, [3, 4.5]],
        "seen": {"$set": [{"$bytes": "a"}, {"$bytes": "b"}]},
        "times": {
            "at": {"$datetime": "2026-01-02T00:00:00+00:00"},
            "day": {"$date": "2026-01-02"},
            "of": {"$time": "03:04:00"},
        },
        "rest": {
            "$dict": [
                [1, {"$seconds": "1.500000"}],
                [2, {"$uuid": "00000000-0000-0000-0000-000000000005"}],
                [3, {"$hex": "ff"}],
                [4, {"$float": "nan"}],
                [5, {"$bytes": "z"}],
            ]
        },
    }
