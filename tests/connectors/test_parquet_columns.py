"""Converts records to columns: each fits exactly, or is named with column and type. A schema is inferred if all records
agree."""

from __future__ import annotations

import datetime
import json
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from procession.connectors.parquet_columns import ColumnNames, RecordFormat, RowConverter
from procession.connectors.parquet_schema import inferred_schema, load_schema
from procession.errors import ConfigError, RecordError
from procession.sdk.record_blocks import block_batch


def rows(schema: pa.Schema, *payloads: bytes) -> list[dict[str, Any]]:
    converter = RowConverter(RecordFormat.JSON, ColumnNames())
    converter.use(schema)
    positions = np.cumsum([0, *map(len, payloads)])[:-1]
    return converter.table(block_batch(list(payloads)), positions).to_pylist()


def test_json_values_become_typed_columns() -> None:
    schema = pa.schema(
        {
            "id": pa.int32(),
            "at": pa.timestamp("us", "UTC"),
            "day": pa.date32(),
            "price": pa.decimal128(10, 2),
            "tags": pa.list_(pa.string()),
            "buyer": pa.struct({"name": pa.string()}),
        }
    )
    record = {"id": 1, "at": "2026-11-17T10:00:00.25+01:00", "day": "2026-11-17", "price": 1.25, "tags": ["a"]}
    assert rows(schema, json.dumps(record | {"buyer": {"name": "ann"}}, indent=1).encode(), b"{}") == [
        {
            "id": 1,
            "at": datetime.datetime(2026, 11, 17, 9, 0, 0, 250_000, datetime.UTC),
            "day": datetime.date(2026, 11, 17),
            "price": Decimal("1.25"),
            "tags": ["a"],
            "buyer": {"name": "ann"},
        },
        dict.fromkeys(schema.names),
    ]


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (b'{"id": 1.5}', "has 1.5 in the column id, whose type is int64"),
        (b'{"id": "1"}', 'has "1" in the column id, whose type is int64'),
        (b'{"id": 1, "other": 2}', "has the field other, and the table has no such column"),
        (b'{"name": "x"}', "has no value for the column id, which must not be null"),
        (b'{"id": 1, "name": "\xff"}', "is not one JSON object"),
        (b"[1]", "is not a JSON object"),
        (b'{"id": 1} {"id": 2}', "is not one JSON object"),
        (b"", "is not one JSON object"),
    ],
)
def test_the_first_record_that_does_not_fit_is_named(bad: bytes, text: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    good = [b'{"id": %d}' % number for number in range(100)]
    payloads = [*good[:37], bad, *good[37:], b"{"]
    with pytest.raises(RecordError) as caught:
        rows(schema, *payloads)
    assert text in caught.value.sentence
    assert caught.value.fields["position"] == len(b"".join(payloads[:37]))


def test_records_of_any_length_are_parsed_whole() -> None:
    schema = pa.schema({"id": pa.int64(), "text": pa.string()})
    texts = ["x" * length for length in (1, 300_000, 5, 1_000_000, 0)] * 3
    payloads = [json.dumps({"id": number, "text": text}).encode() for number, text in enumerate(texts)]
    assert [row["text"] for row in rows(schema, *payloads)] == texts


def test_a_column_type_that_json_has_no_value_for_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="JSON records cannot fill the column m of type map"):
        rows(pa.schema({"m": pa.map_(pa.string(), pa.int64())}), b"{}")


def test_a_schema_is_inferred_where_all_records_agree() -> None:
    records = [{"a": 1, "b": 1, "c": None, "l": []}, {"a": 2, "b": 1.5, "c": "2026-01-01", "l": [{"x": True}]}]
    assert inferred_schema(json.dumps(record).encode() for record in records) == pa.schema(
        {
            "a": pa.int64(),
            "b": pa.float64(),
            "c": pa.string(),
            "l": pa.list_(pa.struct({"x": pa.bool_()})),
        }
    )


@pytest.mark.parametrize(
    ("records", "text"),
    [
        ([{"a": None}], "The field a is empty in all records"),
        ([{"a": {"b": []}}], r"The field a.b\[\] is empty in all records"),
        ([{"a": 1}, {"a": "x"}], "The field a has values of different types"),
        ([{"a": [1]}, {"a": {"b": 1}}], "The field a has values of different types"),
        ([[1]], "is not a JSON object"),
    ],
)
def test_a_type_that_the_records_do_not_show_is_not_inferred(records: list[Any], text: str) -> None:
    with pytest.raises(RecordError, match=text) as caught:
        inferred_schema(json.dumps(record).encode() for record in records)
    assert "--schema" in caught.value.next_step


def test_a_schema_file_names_columns_and_types(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"id": "int64 not null", "p": "decimal(10,2)", "l": ["date"], "s": {"x": "bool"}}')
    assert load_schema(path) == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("p", pa.decimal128(10, 2)),
            ("l", pa.list_(pa.date32())),
            ("s", pa.struct({"x": pa.bool_()})),
        ]
    )
    for text in ("", "[]", "{}", '{"a": "int65"}', '{"a": []}', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(ConfigError, match="Cannot read the schema"):
            load_schema(path)
    with pytest.raises(ConfigError, match="No such file"):
        load_schema(tmp_path / "none.json")


@pytest.mark.parametrize("texts", [["plain", "text"], ["grün", "weiß"]])
def test_an_arrow_record_with_invalid_utf_8_is_refused(texts: list[str]) -> None:
    schema = pa.schema([("text", pa.string())])
    converter = RowConverter(RecordFormat.ARROW, ColumnNames())
    converter.use(schema)
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, schema) as writer:
        writer.write_table(pa.table({"text": texts}, schema=schema))
    record = stream.getvalue().to_pybytes()
    assert converter.table(block_batch([record]), np.zeros(1, np.int64)).column("text").to_pylist() == texts
    start = record.index(texts[0].encode())
    for changed in (record[:start] + b"\xff" + record[start + 1 :], _with_offset(record, texts, 2**20)):
        with pytest.raises(RecordError, match="not an Arrow IPC stream"):
            converter.table(block_batch([changed]), np.zeros(1, np.int64))


def _with_offset(record: bytes, texts: list[str], offset: int) -> bytes:
    """Return the record with its text offsets changed."""
    lengths = [len(text.encode()) for text in texts]
    right = struct.pack("<iii", 0, lengths[0], sum(lengths))
    assert record.count(right) == 1
    return record.replace(right, struct.pack("<iii", 0, offset, sum(lengths)))
