"""Codecs in a chain: the values that functions get, the payloads that sinks get, and whose error an invalid value
is."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from procession import Pipeline
from procession.errors import RecordError
from procession.operators.codecs import from_arrow, to_arrow
from procession.planner.graph import SinkFraming
from tests.operators.reference import batch_of
from tests.operators.test_chain import outputs


def through(given: Any, codec: Any, function: Any, out: Any = None, **options: Any) -> dict[str, bytes]:
    pipeline = Pipeline("p", **options)
    pipeline.source("in", codec=codec).map(function, name="mine").sink("out", to="file:out", codec=out or codec)
    return outputs(pipeline.graph(), batch_of(given))


def test_json_is_decoded_and_encoded() -> None:
    given = [b'{"a": 1}', b"[1, 2.5, null]", '"ü"'.encode()]
    got = through(given, "json", lambda value: [value])["out"]
    assert got == '[{"a":1}]\n[[1,2.5,null]]\n["ü"]\n'.encode()


def test_json_keeps_half_a_surrogate_pair_as_an_escape() -> None:
    for function in (lambda value: value, lambda value: {**value}):
        got = through([rb'{"a": "\ud83d", "b": "\u00fc"}', rb'{"a": "\u00fc"}'], "json", function)["out"]
        assert got == rb'{"a":"\ud83d","b":"\u00fc"}' + b"\n" + '{"a":"ü"}\n'.encode()


def test_msgpack_output_is_a_stream_of_objects_without_separators() -> None:
    given = [msgpack.packb(value) for value in ({"a": b"x"}, 7, "text")]
    got = through(given, "msgpack", lambda value: (value, 1))["out"]
    unpacker = msgpack.Unpacker()
    unpacker.feed(got)
    assert list(unpacker) == [[{"a": b"x"}, 1], [7, 1], ["text", 1]]


def test_arrow_is_decoded_and_encoded() -> None:
    given = [to_arrow(pa.table({"n": [number, number + 1]})) for number in (1, 5)]

    def doubled(table: pa.Table) -> pa.RecordBatch:
        return pa.record_batch({"n": [2 * number for number in table.column("n").to_pylist()]})

    got = through(given, "arrow", doubled)["out"]
    first = to_arrow(pa.table({"n": [2, 4]}))
    assert from_arrow(got[: len(first)]).column("n").to_pylist() == [2, 4]
    assert from_arrow(got[len(first) :]).column("n").to_pylist() == [10, 12]


def test_codecs_may_differ_between_source_and_sinks() -> None:
    got = through([b'{"a": 1}'], "json", lambda value: value, "msgpack")["out"]
    assert msgpack.unpackb(got) == {"a": 1}
    assert through([b"x"], "text", lambda value: {"got": value}, "json")["out"] == b'{"got":"x"}\n'


def test_binary_codecs_are_written_raw_and_others_as_lines() -> None:
    pipeline = Pipeline("p")
    source = pipeline.source()
    for codec in ("bytes", "text", "json", "msgpack", "arrow"):
        source.sink(codec, to="file:out", codec=codec)  # type: ignore[arg-type]
    raw = {sink.name for sink in pipeline.graph().sinks if sink.framing is SinkFraming.RAW}
    assert raw == {"msgpack", "arrow"}


@pytest.mark.parametrize(
    ("codec", "payload"),
    [("json", b"{"), ("json", b"\xff"), ("msgpack", b"\xc1"), ("msgpack", b"\x81"), ("arrow", b"no"), ("arrow", b"")],
)
def test_a_payload_that_cannot_be_decoded_is_the_sources_error(codec: str, payload: bytes) -> None:
    fine = {"json": b"1", "msgpack": b"\x01", "arrow": to_arrow(pa.table({"a": [1]}))}[codec]
    with pytest.raises(RecordError, match="'in' raised on message 10"):
        through([fine, payload], codec, lambda value: value)


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        ("json", {1, 2}),
        ("json", float("nan")),
        ("json", b"bytes"),
        ("msgpack", object()),
        ("arrow", "text"),
        ("bytes", {"a": 1}),
    ],
)
def test_a_value_that_cannot_be_encoded_is_the_error_of_the_stage_that_made_it(codec: str, value: Any) -> None:
    pipeline = Pipeline("p", dead_letter="file:dead")
    stage = pipeline.source().map(lambda payload: value if payload == b"odd" else payload, name="mine").peek(id)
    stage.filter(lambda value: value == value or True).sink("out", to="file:out", codec=codec)  # type: ignore[arg-type]
    letters = outputs(pipeline.graph(), batch_of([b"odd"]))["dead-letter"].splitlines()
    (letter,) = map(json.loads, letters)
    assert (letter["stage"], letter["message_id"]) == ("mine", 0)
