"""The column parser gives, for any payloads, exactly the records and errors of the codec that reads one payload."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from procession.operators import column_parser
from procession.operators.column_parser import parsed, why_not
from procession.operators.column_values import as_objects
from procession.operators.record_schema import SchemaJson, json_with

CODEC = json_with(
    pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            ("n", pa.int64()),
            ("small", pa.int8()),
            ("big", pa.uint64()),
            ("x", pa.float64()),
            ("is_on", pa.bool_()),
            ("price", pa.decimal128(6, 2)),
            ("at", pa.timestamp("ms", tz="UTC")),
            ("local", pa.timestamp("us")),
            ("day", pa.date32()),
        ]
    ),
    "source 's'",
)

NUMBERS = ["0", "-0", "-0.0", "0.0", "1", "-1", "1.0", "1e3", "1E-2", "127", "128", "-129", "9007199254740993"]
NUMBERS += ["9223372036854775807", "9223372036854775808", "-9223372036854775809", "18446744073709551615"]
NUMBERS += ["18446744073709551616", "0.1", "1.7976931348623159e308", "1e400", "-1e400", "1e-400", "4.9e-324", "2e-324"]
NUMBERS += [
    "12345678901234567890123",
    "0.30000000000000004",
    "1" * 5000,
    f"0.{'1' * 5000}",
    "NaN",
    "Infinity",
    "01",
    "+1",
]
NUMBERS += [".5", "5.", "1_0", "0x1", "--1"]
TEXTS = [
    "a",
    "",
    "é",
    "\U0001f600",
    "\\u0000",
    "\\ud800",
    "\\ud83d\\ude00",
    "\\n",
    "\\",
    "}\\n{",
    "},{",
    "//",
    "\t",
    "\x7f",
]
TIMES = ["2026-03-01T10:00:00Z", "2026-03-01T10:00:00+01:00", "2026-03-01T10:00:00.250-12:00", "2026-03-01T10:00:00"]
TIMES += ["2026-03-01T10:00:00.000001Z", "2026-03-01T10:00:00.0000001Z", "2026-03-01t10:00:00z", "2026-03-01 10:00:00Z"]
TIMES += ["2026-02-29T10:00:00Z", "2026-03-01T24:00:00Z", "2026-03-01T23:59:60Z", "0001-01-01T00:00:00+12:00"]
TIMES += [
    "9999-12-31T23:59:59-12:00",
    "2026-03-01T10:00Z",
    "2026-03-01",
    "2026-02-30",
    "1000-01-01",
    "20260301",
    "10:00",
]
TIMES += [
    "2026-03-01T10:00:00+24:00",
    "2026-03-01T10:00:00-00:00",
    "2026-03-01T10:00:00+0100",
    "2999-12-31T23:59:59.999",
]
AMOUNTS = [
    "1",
    "1.5",
    "-0",
    "-0.00",
    "0.001",
    "9999.99",
    "10000",
    "1e2",
    "1E+3",
    " 1 ",
    "1_0",
    "NaN",
    "+1",
    ".5",
    "5.",
    "٣",
]

scalars = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from([f'"{text}"' for text in TEXTS + TIMES + AMOUNTS]),
    st.sampled_from(["null", "true", "false", "nul", "{}", "[]", '{"a":{}}', "[[1],{}]", "[" * 300 + "]" * 300]),
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.text().map(json.dumps),
    st.decimals(allow_nan=False, allow_infinity=False, places=2).map(lambda amount: f'"{amount}"'),
    st.datetimes().map(lambda time: f'"{time.isoformat()}"'),
)
names = st.sampled_from([*CODEC.schema.names, "other", "i\\u0064", ""])
objects = st.lists(st.tuples(names, scalars), max_size=8).map(
    lambda fields: "{" + ",".join(f'"{name}":{value}' for name, value in fields) + "}"
)
whole = st.builds(lambda fields: json.dumps({"id": "a", **fields}), st.dictionaries(names, st.integers(-200, 200)))
BROKEN = [
    "",
    " ",
    "\n",
    "{}{}",
    '{"id":"a"}{"id":"b"}',
    '{"id":"a"}\n{"id":"b"}',
    '{"id":"a',
    '"}',
    '{"id":["a"',
    "]}",
    "null",
    '{"id":"a"},',
    ',{"id":"a"}',
    '[{"id":"a"}]',
    '{"id":"a"} ',
    '\r\n{"id":"a"}\r\n',
    '\x0c{"id":"a"}',
    "{",
    "}",
    "\x00",
    '{"id":"a"}//',
    '{"id":"a"/*}',
    "{*/}",
    '{"other":{}',
    '{"other":[{}',
    '{"id":"x}',
    '{y"}',
    '\ufeff{"id":"a"}',
]
broken = st.sampled_from(BROKEN)
payloads = st.one_of(
    whole.map(str.encode),
    objects.map(lambda text: text.encode(errors="surrogatepass")),
    broken.map(str.encode),
    st.binary(max_size=8),
    st.sampled_from(
        [b'{"id":"\xff"}', b'{"id":"a","other":"\xff"}', b'{"\xff":1,"id":"a"}', b'{"id":"a","other":"\xed\xa0\x80"}']
    ),
)


def by_record(codec: SchemaJson, given_payloads: list[bytes]) -> tuple[list[Any], list[tuple[int, str]]]:
    records, errors = [], []
    for row, payload in enumerate(given_payloads):
        try:
            records.append((row, codec.decode(payload)))
        except ValueError as error:
            errors.append((row, str(error)))
    return records, errors


def by_columns(codec: SchemaJson, given_payloads: list[bytes]) -> tuple[list[Any], list[tuple[int, str]]]:
    found = parsed(codec, pa.array(given_payloads, pa.binary()))
    rows = list(range(len(given_payloads))) if found.rows is None else found.rows
    return list(zip(rows, as_objects(found.values), strict=True)), [(row, str(error)) for row, error in found.errors]


@given(st.lists(payloads, max_size=20))
@example([b'{"id":"a"}{"id":"b"}', b"", b'{"id":"c"}'])
@example([b'{"id":"a","x":-0}', b'{"id":"a","x":-0.0}', b'{"id":"a","other":"\xff"}'])
@example([b'{"id":"a","other":%s}' % (b"[" * 300 + b"]" * 300)] * 2)
def test_the_records_and_errors_are_those_of_the_codec_for_any_payloads(given_payloads: list[bytes]) -> None:
    assert repr(by_columns(CODEC, given_payloads)) == repr(by_record(CODEC, given_payloads))


@pytest.mark.parametrize("field", CODEC.schema.names)
def test_a_hostile_value_in_each_field_is_read_as_the_codec_reads_it(field: str) -> None:
    values = [*NUMBERS, *(f'"{text}"' for text in TEXTS + TIMES + AMOUNTS), "null", "true", "{}", "[]"]
    given_payloads = [f'{{"id":"a","{field}":{value}}}'.encode() for value in values]
    expected = by_record(CODEC, given_payloads)
    assert repr(by_columns(CODEC, given_payloads)) == repr(expected)
    # Each alone, among others that are plain.
    plain = [b'{"id":"b"}'] * 3
    for payload in given_payloads:
        assert repr(by_columns(CODEC, [*plain, payload])) == repr(by_record(CODEC, [*plain, payload]))


def test_deeply_nested_values_are_parsed_by_python_and_not_by_arrow() -> None:
    deep = b'{"id":"a","other":' + b"[" * 1_000_000
    assert by_columns(CODEC, [deep, b'{"id":"b"}'])[0] == [(1, CODEC.decode(b'{"id":"b"}'))]


def test_a_batch_with_a_bad_record_is_divided_and_few_other_records_are_parsed_by_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[bytes] = []
    decode = SchemaJson.decode
    monkeypatch.setattr(SchemaJson, "decode", lambda codec, payload: decoded.append(payload) or decode(codec, payload))
    given_payloads = [b'{"id":"a","n":%d}' % number for number in range(20_000)]
    given_payloads[12_345] = b'{"id":"a","n":"x"}'
    found = parsed(CODEC, pa.array(given_payloads, pa.binary()))
    assert [row for row, _ in found.errors] == [12_345]
    assert len(found.values) == 19_999
    assert 0 < len(decoded) <= column_parser.PIECE_RECORDS_MIN
    decoded.clear()
    parsed(CODEC, pa.array(given_payloads[:12_345], pa.binary()))
    assert decoded == []


def test_a_slice_of_a_column_is_read_from_its_own_start() -> None:
    column = pa.array([b"x", b'{"id":"a"}', b'{"id":"b"}', b"y"], pa.binary()).slice(1, 2)
    assert [record["id"] for record in as_objects(parsed(CODEC, column).values)] == ["a", "b"]


def test_no_payloads_are_no_records() -> None:
    assert len(parsed(CODEC, pa.array([], pa.binary())).values) == 0


def test_records_with_nested_fields_are_not_parsed_as_columns() -> None:
    assert why_not(CODEC) == ""
    nested = json_with(pa.schema([("a", pa.int8()), ("parts", pa.list_(pa.int8()))]), "source 's'")
    assert why_not(nested) == "its field 'parts' is nested"
