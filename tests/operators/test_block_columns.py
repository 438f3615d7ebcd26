"""Sinks that take blocks: the columns that are written with each payload."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from procession.api.pipeline import Pipeline
from procession.errors import PlanError
from procession.operators.chain import Chain
from procession.operators.chain_rows import ChainRows
from procession.planner.rules import make_plan
from tests.connectors import tape


@pytest.fixture(autouse=True)
def _plugged_in() -> Iterator[None]:
    with tape.installed():
        yield


def records(*rows: tuple[bytes, bytes, int]) -> pa.RecordBatch:
    """Return ingress records: payload, key, event time."""
    payloads, keys, times = zip(*rows, strict=True)
    return pa.record_batch(
        {
            "kind": pa.array([0] * len(rows), pa.uint8()),
            "stream_id": pa.array([7] * len(rows), pa.uint64()),
            "message_id": pa.array(range(len(rows)), pa.uint64()),
            "event_time": pa.array(times, pa.int64()),
            "key": pa.array(keys, pa.binary()),
            "payload": pa.array(payloads, pa.binary()),
        }
    )


def outputs(pipeline: Pipeline, batch: pa.RecordBatch) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """Return the bucket and row of everything that each sink gets."""
    plan = make_plan(pipeline.graph())
    chain = Chain(plan, 0, find=lambda sequence: pytest.fail("the chain has the records"))
    found: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for output in chain.run(ChainRows.of_ingress(batch, np.arange(batch.num_rows))):
        rows = [(output.bucket, row) for row in output.rows.to_pylist()]
        found.setdefault(plan.node(output.to).name, []).extend(rows)
    return found


def test_a_record_has_the_key_and_the_time_of_its_source() -> None:
    pipeline = Pipeline("p")
    pipeline.source(codec="text").map(str.upper).sink("out", to="tape:a")
    found = outputs(pipeline, records((b"x", b"k", 5), (b"y", b"", 0)))["out"]
    assert [row for _, row in found] == [
        {"payload": b"X", "key": b"k", "event_time": 5},
        {"payload": b"Y", "key": None, "event_time": None},
    ]


def test_the_key_of_key_by_replaces_that_of_the_source_and_the_sinks_key_replaces_both() -> None:
    pipeline = Pipeline("p")
    orders = pipeline.source(codec="json").key_by(lambda order: order["who"])
    orders.sink("by_who", to="tape:a")
    orders.sink("by_id", to="tape:a", key=lambda order: order.get("id"))
    batch = records((b'{"who": "ann", "id": 7}', b"k", 5), (b'{"who": "bob"}', b"k", 6))
    found = outputs(pipeline, batch)
    assert [row["key"] for _, row in found["by_who"]] == [b"ann", b"bob"]
    assert [row["key"] for _, row in found["by_id"]] == [b"7", None]
    assert [json.loads(row["payload"])["who"] for _, row in found["by_id"]] == ["ann", "bob"]


def test_a_key_function_gets_the_decoded_value() -> None:
    pipeline = Pipeline("p")
    pipeline.source(codec="text").map(lambda text: text).sink("out", to="tape:a", key=lambda text: text + "!")
    assert [row["key"] for _, row in outputs(pipeline, records((b"x", b"", 0)))["out"]] == [b"x!"]


def test_a_record_on_which_the_key_function_raises_is_one_dead_letter_and_the_others_keep_their_keys() -> None:
    pipeline = Pipeline("p", dead_letter="tape:letters")
    numbers = pipeline.source(codec="json")
    numbers.sink("out", to="tape:a", key=lambda value: 10 // value)
    numbers.sink("other", to="tape:a", key=lambda value: value)
    found = outputs(pipeline, records((b"5", b"", 0), (b"0", b"", 0), (b"2", b"", 0)))
    assert [(row["payload"], row["key"]) for _, row in found["out"]] == [(b"5", b"2"), (b"2", b"5")]
    assert [row["key"] for _, row in found["other"]] == [b"5", b"0", b"2"]
    [(_, letter)] = found["dead-letter"]
    assert json.loads(letter["payload"])["stage"] == "out"
    assert not letter["payload"].endswith(b"\n")
    assert letter["key"] is None


def test_a_value_that_cannot_be_encoded_does_not_shift_the_keys_of_the_others() -> None:
    pipeline = Pipeline("p", dead_letter="tape:letters")
    values = pipeline.source(codec="json").map(lambda value: {1, 2} if value == 0 else value)
    values.sink("out", to="tape:a", codec="json", key=lambda value: value)
    values.sink("plain", to="file:out", codec="json")
    found = outputs(pipeline, records((b"5", b"", 0), (b"0", b"", 0), (b"2", b"", 0)))
    assert [(row["payload"], row["key"]) for _, row in found["out"]] == [(b"5", b"5"), (b"2", b"2")]
    assert len(found["dead-letter"]) == 1


def test_connections_are_shared_by_the_records_own_key_not_by_that_of_the_sink() -> None:
    pipeline = Pipeline("p", order="key")
    keyed = pipeline.source(codec="text").key_by(lambda text: text[0])
    keyed.sink("out", to="tape:a", connections=4, key=lambda text: text)
    batch = records(*((f"{who}{number}".encode(), b"", 0) for number in range(9) for who in "abcdef"))
    found = outputs(pipeline, batch)["out"]
    buckets = {}
    for bucket, row in found:
        assert buckets.setdefault(row["payload"][:1], bucket) == bucket
        assert row["key"] == row["payload"]
    assert len(set(buckets.values())) > 1


@pytest.mark.parametrize(("to", "is_carried"), [("tape:a", True), ("file:out", False)])
def test_keys_and_times_pass_exchanges_only_for_sinks_that_use_them(to: str, is_carried: bool) -> None:
    pipeline = Pipeline("p")
    pipeline.source(codec="text").rebalance(parallelism=3).map(str.upper).sink("out", to=to)
    plan = make_plan(pipeline.graph())
    assert plan.exchanges
    assert (plan.carrying == plan.exchanges) is is_carried


def test_other_sinks_get_no_more_columns_than_before() -> None:
    pipeline = Pipeline("p")
    pipeline.source(codec="text").sink("out", to="file:out")
    assert outputs(pipeline, records((b"x", b"k", 5)))["out"] == [(0, {"payload": b"x\n"})]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"to": "tape:a", "framing": "lines"}, "gets records, not bytes of many"),
        ({"to": "tape:a", "framing": "raw"}, "gets records, not bytes of many"),
        ({"to": "file:out", "key": len}, "writes no keys"),
        ({"to": "tape:a", "key": "id"}, "was given key='id'"),
        ({"to": "tape:a", "idempotent": True}, "takes part in the commit only"),
        ({"to": "tape:a?sped=1"}, "option 'sped'"),
    ],
)
def test_an_option_that_a_sink_does_not_support_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        Pipeline("p", deterministic=True).source().sink("s", **options)
