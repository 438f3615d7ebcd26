"""Records with a schema: a valid one becomes a dict with the schema's fields, and an invalid one names the field and
the reason."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from procession import Pipeline, PlanError, json_of
from procession.errors import RecordError
from procession.operators.record_schema import json_with
from procession.testing import run
from tests.operators.test_typed_json import Call

SCHEMA = pa.schema(
    [
        pa.field("caller", pa.string(), nullable=False),
        ("seconds", pa.int32()),
        ("share", pa.float64()),
        ("price", pa.decimal128(8, 4)),
        ("at", pa.timestamp("ms", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("is_paid", pa.bool_()),
        ("parts", pa.list_(pa.struct([pa.field("n", pa.uint8(), nullable=False)]))),
    ]
)
CODEC = json_with(SCHEMA, "source 'calls'")
CALL = {
    "caller": "a",
    "seconds": -3,
    "share": 2,
    "price": "0.095",
    "at": "2026-03-01T10:00:00.250+01:00",
    "local": "2026-03-01T10:00:00",
    "day": "2026-03-01",
    "is_paid": True,
    "parts": [{"n": 255}, None],
}


def call(**changes: Any) -> bytes:
    return json.dumps({**CALL, **changes}).encode()


def test_a_record_becomes_a_dict_with_the_fields_of_the_schema_and_values_of_their_types() -> None:
    found = CODEC.decode(call(unknown=1))
    assert list(found) == SCHEMA.names
    assert found == {
        "caller": "a",
        "seconds": -3,
        "share": 2.0,
        "price": Decimal("0.0950"),
        "at": datetime(2026, 3, 1, 9, 0, 0, 250_000, tzinfo=UTC),
        "local": datetime.fromisoformat("2026-03-01T10:00:00"),
        "day": date(2026, 3, 1),
        "is_paid": True,
        "parts": [{"n": 255}, None],
    }


def test_the_values_of_a_record_equal_those_of_arrow_columns_of_the_schema() -> None:
    found = [CODEC.decode(payload) for payload in (call(), call(price="-0", share=-0.0), b'{"caller": "b"}')]
    columns = pa.Table.from_pylist(found, SCHEMA).to_pylist()
    for record in columns:
        record["at"] = record["at"] and record["at"].astimezone(UTC)  # Arrow has another object for UTC
    assert repr(columns) == repr(found)


def test_a_field_that_may_be_null_may_be_missing() -> None:
    assert CODEC.decode(b'{"caller": "a"}') == {name: "a" if name == "caller" else None for name in SCHEMA.names}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (call(caller=None), "caller is None, but should be a valid string"),
        (b'{"seconds": 1}', "caller is missing"),
        (call(seconds=2**31), "seconds is 2147483648, but should be less than or equal to 2147483647"),
        (call(seconds=1.0), "seconds is 1.0, but should be a valid integer"),
        (call(seconds="1"), "seconds is '1', but should be a valid integer"),
        (call(share=float("nan")), "share is nan, but should be a finite number"),
        (call(price="12345"), "price is '12345', but should have at most 4 digits before the point and 4 after it"),
        (call(price="0.00001"), "price is '0.00001', but should have at most 4 digits before the point and 4 after it"),
        (call(at="2026-03-01T10:00:00"), "at is '2026-03-01T10:00:00', but should have timezone info"),
        (call(at="2026-03-01T10:00:00.0001Z"), "at is '2026-03-01T10:00:00.0001Z', but should be exact to ms at most"),
        (call(local="2026-03-01T10:00:00Z"), "local is '2026-03-01T10:00:00Z', but should not have timezone info"),
        (call(is_paid=1), "is_paid is 1, but should be a valid boolean"),
        (call(parts=[{"n": 256}]), "parts.0.n is 256, but should be less than or equal to 255"),
        (call(parts=[{}]), "parts.0.n is missing"),
        (b"{}{}", "Invalid JSON: trailing characters at line 1 column 3"),
        (b"", "Invalid JSON: EOF while parsing a value at line 1 column 0"),
        (b"[]", "it is [], but should be an object"),
    ],
)
def test_the_error_of_an_invalid_record_names_the_field_and_the_reason(payload: bytes, reason: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the whole text is compared)
        CODEC.decode(payload)
    assert str(caught.value) == f"not a record of the schema: {reason}"


def pipeline_of(**options: Any) -> Pipeline:
    pipeline = Pipeline("calls", parallelism=3, **options)
    calls = pipeline.source("calls", codec="json", schema=SCHEMA)

    def total(state: Decimal, record: dict[str, Any]) -> tuple[Decimal, dict[str, Any]]:
        state += record["price"]
        return state, {"total": state, "at": record["at"]}

    keyed = calls.map_stateful(total, key=lambda record: (record["caller"], record["day"]), initial=Decimal(0))
    keyed.sink("totals", to="file:output")
    return pipeline


def test_a_bad_record_becomes_a_dead_letter_with_the_reason_and_the_others_come_out_in_order() -> None:
    given = [call(), call(price=[]), CALL, {"caller": "b", "price": 1}]
    expected = None
    for epochs, tasks in ((None, 1), (1, 2), (2, 4)):
        found = run(pipeline_of(dead_letter="file:output"), {"calls": given}, epochs=epochs, parallelism=tasks)
        assert [record["total"] for record in found["totals"]] == ["0.0950", "0.1900", "1.0000"]
        assert found["totals"][0]["at"] == "2026-03-01T09:00:00.250000+00:00"
        (letter,) = found["dead-letter"]
        assert (letter["stage"], letter["message_id"]) == ("calls", 2)
        assert letter["error"].startswith("ValueError: not a record of the schema: price is [], but Decimal input")
        expected = expected or found.bytes
        assert found.bytes == expected


def test_without_dead_letters_a_bad_record_stops_the_pipeline_and_names_the_field() -> None:
    with pytest.raises(RecordError, match=r"stage 'calls' raised on message 1 .* caller is 7"):
        run(pipeline_of(), {"calls": [call(caller=7)]})


def test_the_codec_can_be_pickled() -> None:
    assert cloudpickle.loads(cloudpickle.dumps(CODEC)).decode(call()) == CODEC.decode(call())


def test_explain_shows_the_fields() -> None:
    assert "dicts with these fields\n  calls: caller: string not null, seconds: int32," in pipeline_of().explain()


@pytest.mark.parametrize("kind", [pa.float32(), pa.timestamp("ns"), pa.timestamp("us", tz="Asia/Tokyo"), pa.binary()])
def test_a_type_that_json_records_cannot_have_is_refused_with_the_types_that_they_can(kind: pa.DataType) -> None:
    schema = pa.schema([("a", pa.list_(pa.struct([("b", kind)])))])
    with pytest.raises(PlanError, match=r"field 'a\[\]\.b' in the schema of source 's' has the type"):
        Pipeline("p").source("s", codec="json", schema=schema)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"schema": SCHEMA}, "source 'source' has a schema, but its codec is 'bytes'"),
        ({"schema": SCHEMA, "codec": json_of(Call)}, "source 'source' has a schema, but its codec is 'Call'"),
        ({"schema": {"a": int}, "codec": "json"}, "is not a pyarrow.Schema"),
        ({"schema": pa.schema([]), "codec": "json"}, "the schema of source 'source' has no fields"),
        ({"schema": pa.schema([("a", pa.int8())] * 2), "codec": "json"}, "has two fields 'a'"),
    ],
)
def test_other_schemas_are_refused_with_a_sentence(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(PlanError, match=problem):
        Pipeline("p").source(**arguments)
