"""The inputs of a test become rows of the log: values as the codec decodes them, streams, ends and epochs."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from procession import Pipeline
from procession.errors import UsageError
from procession.planner.graph import Kind, Node, PayloadCodec
from procession.record import stream_id
from procession.storage.segment import KIND_EOS, KIND_RECORD
from procession.testing.arrivals import Arrivals, Record, cuts_of, payload_of


def rows_of(pipeline: Pipeline, inputs: Any, *, is_ended: bool = True) -> list[tuple[int, int, int, bytes]]:
    """Return the kind, stream, message id and payload of each row."""
    rows = Arrivals.of(pipeline.graph(), inputs).rows(is_ended=is_ended)
    return [(row["kind"], row["stream_id"], row["message_id"], row["payload"]) for row in rows.to_pylist()]


def two_sources() -> Pipeline:
    pipeline = Pipeline("two")
    pipeline.source("a", streams=[1]).merge(pipeline.source("b", streams=[2])).sink("out", to="file:out")
    return pipeline


def of_streams(*streams: int | str | Path) -> Pipeline:
    pipeline = Pipeline("several")
    pipeline.source("a", streams=streams).sink("out", to="file:out")
    return pipeline


def test_inputs_come_one_after_the_other_and_each_stream_ends_behind_its_last_record() -> None:
    assert rows_of(two_sources(), {"b": [b"x", b"y"], "a": [b"z"]}) == [
        (KIND_RECORD, 2, 1, b"x"),
        (KIND_RECORD, 2, 2, b"y"),
        (KIND_EOS, 2, 2, b""),
        (KIND_RECORD, 1, 1, b"z"),
        (KIND_EOS, 1, 1, b""),
    ]


def test_pairs_arrive_in_the_order_in_which_they_are_written() -> None:
    assert [row[:2] for row in rows_of(two_sources(), [("a", b"x"), ("b", b"y"), ("a", b"z")])] == [
        (KIND_RECORD, 1),
        (KIND_RECORD, 2),
        (KIND_EOS, 2),
        (KIND_RECORD, 1),
        (KIND_EOS, 1),
    ]


def test_streams_without_records_end_at_last_whether_the_test_names_them_or_not() -> None:
    kinds = [row[:2] for row in rows_of(two_sources(), {"a": [], "b": [b"y"]})]
    assert kinds == [(KIND_RECORD, 2), (KIND_EOS, 2), (KIND_EOS, 1)]
    assert [row[:2] for row in rows_of(two_sources(), {"b": [b"y"]})] == kinds
    assert [row[:2] for row in rows_of(of_streams(4, 5), {})] == [(KIND_EOS, 4), (KIND_EOS, 5)]


def test_without_ends_there_are_only_records() -> None:
    assert [row[0] for row in rows_of(two_sources(), {"a": [b"x"]}, is_ended=False)] == [KIND_RECORD]


def test_streams_of_a_source_are_named_as_in_the_source() -> None:
    inputs = {"a": {"north": [b"n"], 7: [b"s"], Path("file.log"): [b"f"]}}
    found = [row[1] for row in rows_of(of_streams("north", 7, Path("file.log")), inputs) if row[0] == KIND_RECORD]
    assert found == [stream_id(b"north"), 7, stream_id(bytes(Path("file.log").absolute()))]


def test_a_source_without_streams_takes_a_stream_of_its_own_or_those_that_the_test_names() -> None:
    pipeline = Pipeline("free")
    pipeline.source("a").sink("out", to="file:out")
    assert len({row[1] for row in rows_of(pipeline, {"a": [b"x"]})}) == 1
    assert {row[1] for row in rows_of(pipeline, {"a": {3: [b"x"], 4: []}})} == {3, 4}


def test_a_record_has_its_key_and_time() -> None:
    one = Record(b"x", key="k", event_time=dt.datetime(1970, 1, 1, 0, 0, 2, tzinfo=dt.UTC))
    other = Record(b"y", key=b"l", event_time=0.25)
    rows = Arrivals.of(two_sources().graph(), {"a": [one, other]}).rows(is_ended=False).to_pylist()
    assert [(row["key"], row["event_time"]) for row in rows] == [(b"k", 2 * 10**9), (b"l", 250_000_000)]


@pytest.mark.parametrize(
    ("pipeline", "inputs", "sentence"),
    [
        (two_sources(), {"c": [b"x"]}, "no source 'c'"),
        (two_sources(), {"a": "text"}, "are a str"),
        (two_sources(), {"a": 3}, "are a int"),
        (two_sources(), {"a": {1: {2: b""}}}, "are a dict"),
        (two_sources(), [b"x"], "not a pair"),
        (two_sources(), [("c", b"x")], "no source 'c'"),
        (two_sources(), {"a": {2: [b"x"]}}, "does not take stream 2"),
        (two_sources(), [("a", Record(b"x", stream="north"))], "does not take stream 'north'"),
        (of_streams(1, 2), {"a": [b"x"]}, "takes 2 streams"),
    ],
)
def test_inputs_that_no_producer_could_send_are_refused(pipeline: Pipeline, inputs: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Arrivals.of(pipeline.graph(), inputs)


TABLE = pa.table({"a": [1, 2]})


@pytest.mark.parametrize(
    ("codec", "value", "payload"),
    [
        (PayloadCodec.BYTES, b"x", b"x"),
        (PayloadCodec.TEXT, "é", "é".encode()),
        (PayloadCodec.TEXT, b"\xff", b"\xff"),
        (PayloadCodec.JSON, {"a": [1, None, 2.5]}, b'{"a":[1,null,2.5]}'),
        (PayloadCodec.JSON, b"{", b"{"),
        (PayloadCodec.MSGPACK, {1: "a"}, b"\x81\x01\xa1a"),
        (PayloadCodec.MSGPACK, float("nan"), b"\xcb\x7f\xf8" + bytes(6)),
    ],
)
def test_a_value_is_sent_as_the_bytes_that_its_codec_decodes(codec: PayloadCodec, value: Any, payload: bytes) -> None:
    assert payload_of(Node(Kind.SOURCE, "a", codec=codec), value) == payload


def test_a_table_can_be_given_as_such_or_as_a_batch() -> None:
    source = Node(Kind.SOURCE, "a", codec=PayloadCodec.ARROW)
    assert payload_of(source, TABLE) == payload_of(source, TABLE.to_batches()[0])


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (PayloadCodec.BYTES, "text"),
        (PayloadCodec.BYTES, 3),
        (PayloadCodec.TEXT, 3),
        (PayloadCodec.JSON, (1, 2)),
        (PayloadCodec.JSON, {1: "a"}),
        (PayloadCodec.JSON, {"at": dt.date(2026, 1, 1)}),
        (PayloadCodec.JSON, {"a": {1, 2}}),
        (PayloadCodec.MSGPACK, (1, 2)),
        (PayloadCodec.ARROW, [1]),
    ],
)
def test_a_value_that_the_functions_would_get_as_another_is_refused(codec: PayloadCodec, value: Any) -> None:
    with pytest.raises(UsageError, match="source 'a'"):
        payload_of(Node(Kind.SOURCE, "a", codec=codec), value)


ROWS = [True, True, False, True, False]
"""Three records, and the ends of two streams."""


@pytest.mark.parametrize(
    ("epochs", "cuts"),
    [
        (None, [5]),
        (1, [1, 2, 4, 5]),
        (2, [2, 4, 5]),
        (3, [4, 5]),
        (9, [4, 5]),
        ([], [5]),
        ([3], [4, 5]),
        ([1, 1], [1, 2, 5]),
        ([0, 2, 0], [0, 2, 2, 5]),
        ([9, 9], [4, 4, 5]),
    ],
)
def test_an_epoch_ends_right_behind_its_last_record_and_the_rest_is_one_more(epochs: Any, cuts: list[int]) -> None:
    assert cuts_of(ROWS, epochs) == cuts


def test_without_rows_there_is_one_empty_epoch() -> None:
    assert cuts_of([], None) == cuts_of([], 3) == cuts_of([], []) == [0]


@pytest.mark.parametrize("epochs", [0, -1, 1.5, [1, -1], ["a"], True])
def test_epochs_that_are_not_numbers_of_records_are_refused(epochs: Any) -> None:
    with pytest.raises(UsageError, match="epochs"):
        cuts_of(ROWS, epochs)
