"""The chain compared with a program that processes one record at a time: every kind of stage, and every way a function
can fail."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.api.pipeline import Pipeline
from procession.api.stage import Stage
from procession.errors import ProcessionError, RecordError
from procession.operators import chain as chain_module
from procession.operators.chain import Chain
from procession.operators.chain_rows import ChainRows
from procession.planner.graph import Graph
from procession.planner.rules import make_plan
from procession.testing import run
from tests.operators.reference import Sequential, batch_of

# Few, short and colliding values, so that functions that raise for some of them raise often.
PAYLOADS = st.lists(
    st.one_of(st.binary(max_size=4), st.sampled_from([b"", b"a", b"b c", b"\xff", b"bad", "ü".encode()])), max_size=40
)


def outputs(graph: Graph, batch: pa.RecordBatch) -> dict[str, bytes]:
    """Return the output of each sink, all slices of a batch together."""
    got = {sink.name: b"" for sink in graph.sinks}
    chain = Chain(make_plan(graph), 0, find=lambda sequence: pytest.fail("the chain has the records"))
    for output in chain.run(ChainRows.of_ingress(batch, np.arange(batch.num_rows))):
        payload = output.rows.column("payload")
        assert payload.type == pa.binary()
        assert payload.null_count == 0
        got[graph.nodes[output.to].name] += b"".join(payload.to_pylist())
    return got


def picky(value: Any) -> Any:
    """Double the value; raises for values that begin with "b" (as text or bytes)."""
    if value[:1] in ("b", b"b"):
        raise ValueError(f"cannot take {value!r}")
    return value + value


def pieces(value: Any) -> Any:
    """Yield pieces; raises after the first for a value with a blank."""
    for piece in (value, value[:1]):
        yield piece
        if value[1:2] in (" ", b" "):
            raise KeyError(value)


def mirrored(batch: pa.RecordBatch) -> pa.Array:
    """Reverse each payload; raises for a batch with an empty payload, without naming the row."""
    if 0 in pc.binary_length(batch.column("payload")).to_pylist():
        raise ZeroDivisionError("empty")
    return pa.array([payload[::-1] for payload in batch.column("payload").to_pylist()], pa.binary())


def mirrored_row(payload: bytes) -> bytes:
    if not payload:
        raise ZeroDivisionError("empty")
    return payload[::-1]


STAGES: dict[str, Callable[[Stage], Stage]] = {
    "map": lambda stage: stage.map(picky),
    "filter": lambda stage: stage.filter(lambda value: picky(value) != value),
    "flat_map": lambda stage: stage.flat_map(pieces),
    "map_batches": lambda stage: stage.map_batches(mirrored),
}


@given(
    payloads=PAYLOADS,
    first=st.sampled_from([*STAGES, None]),
    second=st.sampled_from([*STAGES, None]),
    branch=st.sampled_from([*STAGES, None]),
    codec=st.sampled_from(["bytes", "text"]),
    framing=st.sampled_from(["lines", "raw"]),
    slice_records=st.sampled_from([1, 3, 1000]),
    fusion=st.booleans(),
)
def test_a_chain_writes_what_a_sequential_program_would_have_written(
    payloads: list[bytes],
    first: str | None,
    second: str | None,
    branch: str | None,
    codec: Any,
    framing: Any,
    slice_records: int,
    fusion: bool,
) -> None:
    pipeline = Pipeline("p", dead_letter="file:dead", fusion=fusion)
    stage = pipeline.source(codec=codec)
    for name in filter(None, (first, second)):
        stage = STAGES[name](stage)
    stage.sink("main", to="file:out", framing=framing)
    (STAGES[branch](stage) if branch else stage).sink("branch", to="file:out")
    graph = pipeline.graph()
    by_row = {node.name: mirrored_row for node in graph.nodes if node.function is mirrored}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain_module, "CHAIN_RECORDS_MAX", slice_records)
        assert outputs(graph, batch_of(payloads)) == Sequential(graph, by_row).run(batch_of(payloads))


@pytest.mark.parametrize("kind", STAGES)
def test_without_a_dead_letter_sink_the_error_names_stage_stream_and_message_and_carries_the_trace(kind: str) -> None:
    pipeline = Pipeline("p")
    STAGES[kind](pipeline.source()).sink("out", to="file:out")
    bad = {"map_batches": b"", "flat_map": b"x y"}.get(kind, b"bad")
    with pytest.raises(RecordError) as caught:
        outputs(pipeline.graph(), batch_of([b"a", b"ab", bad, b"c"], stream_id=99))
    error = caught.value
    assert (error.stream_id, error.message_id) == (99, 20)
    assert "message 20 of stream 99" in error.sentence
    assert f"{kind.replace('_', '-')}-1" in error.sentence
    assert "dead_letter" in error.next_step
    assert "test_chain.py" in error.trace
    again = ProcessionError.from_dict(json.loads(json.dumps(error.as_dict())))
    assert isinstance(again, RecordError)
    assert again.explain() == error.explain() == pickle.loads(pickle.dumps(error)).explain()


@pytest.mark.parametrize("value", [None, 7, 1.5, ["a"], True, "\ud800"])
@pytest.mark.parametrize("kind", ["map", "flat_map"])
def test_a_result_that_is_neither_text_nor_bytes_is_an_error_of_its_record(kind: str, value: Any) -> None:
    pipeline = Pipeline("p")
    source = pipeline.source()
    if kind == "map":
        stage = source.map(lambda payload: value if payload == b"odd" else payload, name="mine")
    else:
        stage = source.flat_map(lambda payload: [value] if payload == b"odd" else [payload], name="mine")
    stage.sink("out", to="file:out")
    with pytest.raises(RecordError, match="'mine' raised on message 10 of stream 7"):
        outputs(pipeline.graph(), batch_of([b"even", b"odd"]))


def test_a_record_whose_value_no_sink_can_take_is_one_dead_letter_however_many_sinks_there_are() -> None:
    pipeline = Pipeline("p", dead_letter="file:dead")
    stage = pipeline.source().map(lambda payload: 1 if payload == b"odd" else payload)  # type: ignore[arg-type, return-value]
    stage.sink("one", to="file:out")
    stage.sink("two", to="file:out")
    got = outputs(pipeline.graph(), batch_of([b"x", b"odd", b"y"]))
    assert got["one"] == got["two"] == b"x\ny\n"
    assert got["dead-letter"].count(b"\n") == 1


def test_a_function_that_raises_stop_iteration_fails_its_record_and_ends_nothing() -> None:
    pipeline = Pipeline("p", dead_letter="file:dead")
    stage = pipeline.source().map(lambda payload: next(iter([payload] if payload != b"odd" else [])))
    stage.sink("out", to="file:out")
    got = outputs(pipeline.graph(), batch_of([b"a", b"odd", b"odd", b"b"]))
    assert got["out"] == b"a\nb\n"
    letters = [json.loads(line) for line in got["dead-letter"].splitlines()]
    assert [(letter["message_id"], letter["error"][:13]) for letter in letters] == [
        (10, "StopIteration"),
        (20, "StopIteration"),
    ]


def test_a_function_is_called_once_for_each_record_also_if_it_raises_for_some() -> None:
    called: list[bytes] = []

    def observe(payload: bytes) -> bytes:
        called.append(payload)
        return picky(payload)  # type: ignore[no-any-return]

    payloads = [b"a", b"bad", b"c", b"b", b"b2", b"d"]
    pipeline = Pipeline("p", dead_letter="file:dead")
    pipeline.source().map(observe).filter(observe).sink("out", to="file:out")
    outputs(pipeline.graph(), batch_of(payloads))
    # Depth first, as a run without parallelism would.
    assert called == [b"a", b"aa", b"bad", b"c", b"cc", b"b", b"b2", b"d", b"dd"]


def test_text_and_bytes_may_be_mixed() -> None:
    pipeline = Pipeline("p")
    pipeline.source().map(lambda p: p.decode() if p == b"t" else p).sink("out", to="file:out")
    assert outputs(pipeline.graph(), batch_of([b"t", b"\xff", b"t"]))["out"] == b"t\n\xff\nt\n"


def test_a_line_that_is_not_text_is_the_sources_error() -> None:
    pipeline = Pipeline("p")
    pipeline.source("lines", codec="text").sink("out", to="file:out")
    with pytest.raises(RecordError, match="'lines' raised on message 10 of stream 7: UnicodeDecodeError"):
        outputs(pipeline.graph(), batch_of([b"fine", b"\xff"]))


def test_a_dead_letter_has_everything_that_is_needed_to_send_the_record_again() -> None:
    pipeline = Pipeline("p", dead_letter="file:dead")
    pipeline.source().map(picky, name="strict").sink("out", to="file:out")
    letter = json.loads(outputs(pipeline.graph(), batch_of([b"x", b"bad\xff"]))["dead-letter"])
    assert base64.b64decode(letter.pop("payload")) == b"bad\xff"
    assert base64.b64decode(letter.pop("key")) == b"k"
    assert letter == {
        "stream_id": 7,
        "message_id": 10,
        "event_time": 1,
        "stage": "strict",
        "error": "ValueError: cannot take b'bad\\xff'",
    }


def test_map_batches_gets_every_column_of_the_remaining_rows() -> None:
    seen: list[dict[str, Any]] = []

    def observe(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.extend(batch.to_pylist())
        return batch

    pipeline = Pipeline("p")
    pipeline.source().filter(lambda payload: payload != b"x").map_batches(observe).sink("out", to="file:out")
    assert outputs(pipeline.graph(), batch_of([b"x", b"y", b"x", b"z"]))["out"] == b"y\nz\n"
    assert [(row["payload"], row["message_id"], row["stream_id"], row["key"]) for row in seen] == [
        (b"y", 10, 7, b"k"),
        (b"z", 30, 7, b"k"),
    ]


@pytest.mark.parametrize(
    "answer",
    [
        pa.array(["a", "b"]),
        pa.array([b"a", b"b"], pa.large_binary()),
        pa.chunked_array([[b"a"], [b"b"]]),
        pa.record_batch({"payload": [b"a", b"b"]}),
        pa.table({"other": [1, 2], "payload": [b"a", b"b"]}),
    ],
)
def test_map_batches_may_return_any_arrow_data_with_payloads(answer: Any) -> None:
    pipeline = Pipeline("p")
    pipeline.source().map_batches(lambda _: answer).sink("out", to="file:out")
    assert outputs(pipeline.graph(), batch_of([b"1", b"2"]))["out"] == b"a\nb\n"


@pytest.mark.parametrize("answer", [None, [b"a"], pa.array([b"a", None]), pa.array([1, 2]), pa.table({"other": [1]})])
def test_any_other_result_of_map_batches_is_an_error_of_the_record(answer: Any) -> None:
    pipeline = Pipeline("p")
    pipeline.source().map_batches(lambda _: answer, name="mine").sink("out", to="file:out")
    with pytest.raises(RecordError, match="'mine' raised on message 0"):
        outputs(pipeline.graph(), batch_of([b"1", b"2"]))


def test_map_batches_may_drop_and_add_rows() -> None:
    pipeline = Pipeline("p")
    stage = pipeline.source().map_batches(lambda batch: batch.filter(pc.not_equal(batch.column("payload"), b"x")))
    stage.map(lambda payload: payload + b"!").sink("out", to="file:out")
    assert outputs(pipeline.graph(), batch_of([b"x", b"y", b"x", b"z"]))["out"] == b"y!\nz!\n"


def test_an_empty_batch_gives_an_empty_output() -> None:
    pipeline = Pipeline("p", dead_letter="file:dead")
    pipeline.source().map(picky).flat_map(pieces).map_batches(mirrored).sink("out", to="file:out")
    assert outputs(pipeline.graph(), batch_of([])) == {"out": b"", "dead-letter": b""}
    assert outputs(pipeline.graph(), batch_of([b"bad"]))["out"] == b""


@pytest.mark.parametrize(("fusion", "calls"), [(True, ["a", "b", "a", "b"]), (False, ["a", "a", "b", "b"])])
def test_without_fusion_each_stage_is_called_by_itself(fusion: bool, calls: list[str]) -> None:
    called: list[str] = []

    def calling(name: str) -> Callable[[bytes], bytes]:
        def call(value: bytes) -> bytes:
            called.append(name)
            return value

        return call

    pipeline = Pipeline("p", fusion=fusion)
    pipeline.source().map(calling("a")).map(calling("b")).sink("out", to="file:out")
    assert outputs(pipeline.graph(), batch_of([b"x", b"y"])) == {"out": b"x\ny\n"}
    assert called == calls


@pytest.mark.parametrize("fusion", [True, False])
def test_a_peek_passes_on_every_record_whatever_its_function_returns(fusion: bool) -> None:
    seen: list[str] = []
    pipeline = Pipeline("p", fusion=fusion)
    pipeline.source("words", codec="text").peek(seen.append).sink("out", to="file:out")
    assert run(pipeline, {"words": ["a", "b"]})["out"] == seen == ["a", "b"]
