"""Records as rows of a table: which field goes where, which records delete, and which are refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from procession.connectors.postgres_rows import (
    EVENT_TIME,
    INSTANCE,
    KEY,
    PAYLOAD,
    POSITION,
    DeleteRule,
    FieldMapping,
    RecordEncoder,
    RecordRefused,
    TableRecords,
    mapped,
)
from procession.connectors.postgres_types import Column
from procession.errors import UsageError
from procession.operators.codecs import to_arrow

INET = Column("note", "inet", "inet")
"""A type without a binary encoding here: rows are lines of text, which a test can read."""


def column(name: str, base: str = "text", **more: Any) -> Column:
    return Column(name, base, base, **more)


def records(*payloads: Any, position: int = 100, **more: Any) -> TableRecords:
    encoded = [payload if isinstance(payload, bytes) else json.dumps(payload).encode() for payload in payloads]
    return TableRecords(pa.array(encoded, pa.binary()), np.arange(position, position + len(encoded)), **more)


def lines(found: TableRecords, *mappings: FieldMapping, ordinal: int = 0, **more: Any) -> list[str]:
    """The rows in text format, with a last column that is always null."""
    encoder = RecordEncoder([*mappings, FieldMapping(INET, "none")], "out", **more)
    assert not encoder.is_binary
    texts = [row.decode() for row in encoder.rows(found, ordinal).to_pylist()]
    assert all(text.endswith("\t\\N\n") for text in texts)
    return [text.removesuffix("\t\\N\n") for text in texts]


def refusal(found: TableRecords, *mappings: FieldMapping, **more: Any) -> str:
    with pytest.raises(RecordRefused) as caught:
        RecordEncoder(mappings, "out", **more).rows(found)
    return str(caught.value)


def test_fields_of_a_record_go_into_their_columns_also_from_inside_of_others() -> None:
    found = records({"id": 1, "after": {"price": 2.5}, "other": []}, {"id": None}, {"after": {"price": 3}})
    mappings = FieldMapping(column("id", "int8"), "id"), FieldMapping(column("p", "float8"), "after.price")
    assert lines(found, *mappings) == ["1\t2.5", "\\N\t\\N", "\\N\t3"]


def test_a_column_can_take_the_key_time_and_position_of_a_record() -> None:
    found = records(
        {"a": 1},
        {"a": 2},
        keys=pa.array([b"k", None], pa.binary()),
        event_times=pa.array([1_000_000_999, None], pa.int64()),
    )
    mappings = (
        FieldMapping(column("payload"), PAYLOAD),
        FieldMapping(column("key"), KEY),
        FieldMapping(column("at", "int8"), EVENT_TIME),
        FieldMapping(column("position", "int8"), POSITION),
        FieldMapping(column("instance"), INSTANCE),
    )
    assert lines(found, *mappings) == [
        '{"a": 1}\tk\t1000000999\t100\tout',
        '{"a": 2}\t\\N\t\\N\t101\tout',
    ]
    assert lines(records({}), *mappings[1:3]) == ["\\N\t\\N"], "without keys and times"


def test_an_event_time_is_a_moment_in_microseconds() -> None:
    found = records({}, event_times=pa.array([1_000_000_999], pa.int64()))
    (line,) = lines(found, FieldMapping(column("at", "timestamptz"), EVENT_TIME))
    assert line == "1970-01-01 00:00:01.000000Z"


def test_a_json_column_keeps_a_part_of_the_record_as_it_is() -> None:
    found = records({"a": {"b": [1, "ü"]}}, {"a": 7}, {"a": {"b": None}})
    assert lines(found, FieldMapping(column("b", "jsonb"), "a.b")) == ['[1,"ü"]', "\\N", "\\N"]


def test_staged_rows_have_a_number_and_say_whether_they_delete() -> None:
    found = records({"op": "delete", "id": 1}, {"op": "insert", "id": 2}, {"id": 3})
    rule = DeleteRule.parse("op=delete")
    assert lines(found, FieldMapping(column("id", "int8"), "id"), is_staged=True, delete=rule, ordinal=7) == [
        "7\ttrue\t1",
        "8\tfalse\t2",
        "9\tfalse\t3",
    ]
    assert lines(found, FieldMapping(column("id", "int8"), "id"), is_staged=True) == [
        "0\tfalse\t1",
        "1\tfalse\t2",
        "2\tfalse\t3",
    ]
    encoder = RecordEncoder([FieldMapping(column("id", "int8"), "id")], "out", is_staged=True)
    assert encoder.columns == ["procession_ordinal", "procession_is_delete", "id"]


def test_a_payload_of_arrow_has_a_row_for_each_of_its_rows() -> None:
    tables = [pa.table({"id": [1, 2], "p": [{"q": "a"}, {"q": "b"}]}), pa.table({"id": [3]}), pa.table({"id": []})]
    payloads = [to_arrow(table) for table in tables]
    found = TableRecords(pa.array(payloads, pa.binary()), np.array([100, 102, 103]), keys=pa.array([b"x", b"y", b"z"]))
    mappings = (
        FieldMapping(column("id", "int8"), "id"),
        FieldMapping(column("q"), "p.q"),
        FieldMapping(column("key"), KEY),
        FieldMapping(column("position", "int8"), POSITION),
    )
    with pytest.raises(RecordRefused):
        lines(found, *mappings, is_arrow=True)
    assert lines(found, mappings[0], *mappings[2:], is_arrow=True) == ["1\tx\t100", "2\tx\t101", "3\ty\t102"]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"[]", "not a JSON object"),
        (b"7", "not a JSON object"),
        (b"", "not a JSON object"),
        (b'{"id":1}{"id":2}', "more than one JSON object"),
        (b'{"id":"one"}', "field 'id' is of type string, not number"),
        (b'{"id":1', "not a JSON object"),
        (b'{"id" 1}', ""),
        (b'{"id":"\xff"}', ""),
    ],
)
def test_a_record_that_is_not_a_row_is_refused_with_a_reason(payload: bytes, reason: str) -> None:
    found = refusal(records({"id": 1}, payload), FieldMapping(column("id", "int8"), "id"))
    assert reason in found
    assert found
    assert "\n" not in found


def test_a_value_is_refused_and_not_rounded() -> None:
    cents = Column("price", "numeric(10,2)", "numeric", type_modifier=(10 << 16 | 2) + 4)
    assert refusal(records({"price": 1.234}), FieldMapping(cents, "price"))
    assert refusal(records({"id": 2**40}), FieldMapping(column("id", "int4"), "id")).startswith(f"{2**40} is out of")


def test_white_space_around_an_object_does_not_matter() -> None:
    assert lines(records(b' {"id": 1}\n'), FieldMapping(column("id", "int8"), "id")) == ["1"]


def test_a_table_without_rows_has_no_rows() -> None:
    found = TableRecords(pa.array([to_arrow(pa.table({"id": []}))], pa.binary()), np.array([100]))
    assert lines(found, FieldMapping(column("id", "int8"), "id"), is_arrow=True) == []


def test_rows_are_binary_if_every_column_has_such_an_encoding() -> None:
    number, data = column("id", "int8"), column("data", "bytea")
    assert RecordEncoder([FieldMapping(number, "id")], "out").is_binary
    assert RecordEncoder([FieldMapping(data, PAYLOAD)], "out").is_binary
    assert not RecordEncoder([FieldMapping(data, "data")], "out").is_binary, "the server parses it from the text"
    assert not RecordEncoder([FieldMapping(number, "id"), FieldMapping(INET, "at")], "out").is_binary


def test_records_are_cut_with_all_that_belongs_to_them() -> None:
    keys, times = pa.array([b"a", b"b", b"c"]), pa.array([1, 2, 3])
    part = records({}, {}, {}, keys=keys, event_times=times).slice(1, 2)
    assert len(part) == 2
    assert part.positions.tolist() == [101, 102]
    assert part.keys is not None
    assert part.keys.to_pylist() == [b"b", b"c"]
    assert part.event_times is not None
    assert part.event_times.to_pylist() == [2, 3]
    bare = records({}, {}).slice(1, 1)
    assert (bare.keys, bare.event_times) == (None, None)


@pytest.mark.parametrize("text", ["", "op", "op=", "=delete"])
def test_a_rule_for_deletes_names_a_field_and_a_text(text: str) -> None:
    with pytest.raises(UsageError, match="does not say which records delete"):
        DeleteRule.parse(text)


def test_a_field_cannot_have_two_types() -> None:
    with pytest.raises(UsageError, match="columns of different types"):
        RecordEncoder([FieldMapping(column("a", "int8"), "x"), FieldMapping(column("b"), "x")], "out")
    for base in ("int8", "jsonb"):
        with pytest.raises(UsageError, match="marks deletions, goes into a column that is not text"):
            RecordEncoder([FieldMapping(column("a", base), "op")], "out", delete=DeleteRule("op", "d"))
    with pytest.raises(UsageError, match="inside"):
        RecordEncoder([FieldMapping(column("a"), "x"), FieldMapping(column("b"), "x.y")], "out").rows(records({}))


TABLE = {
    "id": column("id", "int8", is_required=True),
    "made": column("made", "timestamptz", is_own=True),
    "name": column("name"),
    "sum": column("sum", "int8", is_own=True, is_generated=True),
}


def fields(found: list[FieldMapping]) -> dict[str, str]:
    return {mapping.column.name: mapping.field for mapping in found}


def test_by_default_each_column_that_the_database_does_not_fill_gets_the_field_of_its_name() -> None:
    assert fields(mapped(TABLE, [], "t")) == {"id": "id", "name": "name"}
    assert fields(mapped(TABLE, ["made", "name=$payload"], "t")) == {"id": "id", "name": "$payload", "made": "made"}
    assert "made" in fields(mapped(TABLE, [], "t", key=["made"])), "a key is always written"


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["colour"], "has no column 'colour'"),
        (["sum"], "is generated by the database"),
        (["name=$topic"], "Records have no '$topic'"),
        (["name=$position"], "cannot hold $position"),
        (["id=$event_time", "name=$event_time"], "cannot hold $event_time"),
    ],
)
def test_a_mapping_that_cannot_work_is_refused(names: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        mapped(TABLE, names, "t")
    assert sentence in caught.value.sentence
    assert caught.value.next_step


def test_a_required_column_gets_something_and_so_does_some_column() -> None:
    required = {"id": column("id", "int8", is_own=True, is_required=True)}
    with pytest.raises(UsageError, match="no default"):
        mapped(required, [], "t")
    with pytest.raises(UsageError, match="column of t"):
        mapped({"made": TABLE["made"]}, [], "t")
