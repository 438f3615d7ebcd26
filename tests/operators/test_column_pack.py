"""Records in columns are packed as stored values that decode to the same records as if packed alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from procession.operators.column_pack import packed_records
from procession.operators.column_values import as_objects
from procession.operators.value_codec import VALUE, ValueCodec

KIND = pa.struct(
    [
        *(("n", pa.int64()), ("small", pa.int8()), ("big", pa.uint64()), ("x", pa.float64()), ("b", pa.bool_())),
        *(("text", pa.string()), ("long" * 50, pa.string()), *((f"more{number}", pa.int16()) for number in range(12))),
    ]
)
records = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "small": st.none() | st.integers(-128, 127),
        "big": st.none() | st.integers(0, 2**64 - 1),
        "x": st.none() | st.floats(),
        "b": st.none() | st.booleans(),
        "text": st.none() | st.text(),
        "long" * 50: st.none() | st.sampled_from(["", "é" * 1000]),
        "more7": st.none() | st.integers(-(2**15), 2**15 - 1),
    }
)


@given(st.lists(records, max_size=10), st.integers(0, 3))
@example([{"x": -0.0, "n": -1, "text": "\x00"}, {}], 0)
def test_a_record_is_decoded_as_if_it_had_been_stored_alone(given_records: list[dict[str, Any]], start: int) -> None:
    column = pa.array(
        [{field.name: given_record.get(field.name) for field in KIND} for given_record in given_records], KIND
    )[start:]
    codec = ValueCodec()
    payload, forms = codec.pack(column)
    assert (forms == VALUE).all()
    assert repr(codec.unpack(payload, forms)) == repr(as_objects(column)) or not len(column)
    alone, _ = codec.pack(as_objects(column))
    assert repr(codec.unpack(alone, np.full(len(column), VALUE, np.uint8))) == repr(
        codec.unpack(payload, forms)
    ) or not len(column)


def test_records_of_other_types_are_stored_one_by_one() -> None:
    column = pa.array([{"day": None}, {"day": 3}], pa.struct([("day", pa.date32())]))
    assert packed_records(column) is None
    codec = ValueCodec()
    assert codec.unpack(*codec.pack(column)) == as_objects(column)
