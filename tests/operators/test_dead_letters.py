"""Dead letters of late records: for any rule, the other records are processed as if the late ones had never arrived,
and every late one is counted."""

from __future__ import annotations

import base64
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.api.pipeline import Pipeline
from procession.errors import ProcessionError, RecordError
from procession.operators import chain as chain_module
from procession.operators.chain import Chain
from procession.operators.chain_rows import ChainRows
from procession.planner.graph import Graph
from procession.planner.rules import make_plan
from tests.operators.reference import batch_of

STREAMS = (7, 8)


def merged(late: Any, *, has_letters: bool = False) -> Graph:
    """Return a pipeline with two sources of one stream each, one of text. An error of a function on the other's records
    is a dead letter, too."""
    pipeline = Pipeline("p", order_by="event_time", late=late, dead_letter="file:dead" if has_letters else None)
    words = pipeline.source("words", streams=[STREAMS[0]], codec="text").map(lambda word: word.upper())
    raw = pipeline.source("raw", streams=[STREAMS[1]]).filter(lambda payload: payload != b"d" or 1 / 0)
    words.merge(raw).sink("out", to="file:out")
    return pipeline.graph()


def run(graph: Graph, payloads: list[bytes], late: list[bool]) -> tuple[list[bytes], list[dict[str, Any]]]:
    """Return the output and the dead letters. Records alternate between the streams, and the marked ones come late."""
    chain = Chain(make_plan(graph), 0, find=lambda sequence: pytest.fail("the chain has the records"))
    rows = ChainRows.of_ingress(batch_of(payloads, STREAMS[0], len(STREAMS)), np.arange(len(payloads)), np.array(late))
    got: dict[str, bytes] = {"out": b"", "dead-letter": b""}
    for output in chain.run(rows):
        got[graph.nodes[output.to].name] += b"".join(output.rows.column("payload").to_pylist())
    return got["out"].splitlines(), [json.loads(line) for line in got["dead-letter"].splitlines()]


def on_time(payloads: list[bytes], late: list[bool]) -> list[bytes]:
    """Compute the output record by record: text of the first stream in capitals, that of the second unchanged."""
    return [
        payload if number % 2 else payload.upper()
        for number, (payload, is_late) in enumerate(zip(payloads, late, strict=True))
        if not is_late
    ]


RECORDS = st.lists(st.tuples(st.sampled_from([b"a", b"bb", b"c"]), st.booleans()), min_size=1, max_size=30)


@given(RECORDS, st.integers(1, 5))
def test_dropped_records_leave_no_trace_in_the_output_and_no_letter(
    records: list[tuple[bytes, bool]], slice_records: int
) -> None:
    payloads, late = [record for record, _ in records], [is_late for _, is_late in records]
    for has_letters in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chain_module, "CHAIN_RECORDS_MAX", slice_records)
            output, letters = run(merged("drop", has_letters=has_letters), payloads, late)
        assert output == on_time(payloads, late)
        assert letters == []


@given(RECORDS)
def test_late_records_become_dead_letters_in_order_and_the_output_is_the_same(
    records: list[tuple[bytes, bool]],
) -> None:
    payloads, late = [record for record, _ in records], [is_late for _, is_late in records]
    output, letters = run(merged("dead-letter", has_letters=True), payloads, late)
    assert output == on_time(payloads, late)
    results = [(one["stream_id"], one["message_id"], base64.b64decode(one["payload"])) for one in letters]
    assert results == [(STREAMS[n % 2], 10 * n, payloads[n]) for n in range(len(payloads)) if late[n]]
    assert {letter["error"] for letter in letters} <= {"LateRecord: its event time 1 is behind its stream's watermark"}


def test_no_function_and_no_codec_gets_a_dropped_record_and_other_dead_letters_stay() -> None:
    payloads, late = [b"\xff", b"d", b"a", b"d"], [True, True, False, False]
    output, letters = run(merged("drop", has_letters=True), payloads, late)
    assert output == [b"A"]
    assert [(letter["message_id"], letter["stage"]) for letter in letters] == [(30, "filter-3")], (
        "late records are no dead letters"
    )


@pytest.mark.parametrize("has_letters", [False, True])
@pytest.mark.parametrize("rule", ["fail", None])
def test_the_rule_fail_names_a_late_record_and_a_next_step_with_or_without_dead_letters(
    rule: str | None, *, has_letters: bool
) -> None:
    with pytest.raises(RecordError) as caught:
        run(merged(rule, has_letters=has_letters), [b"a", b"b", b"c", b"\xff", b"e"], [False, False, True, False, True])
    error = caught.value
    assert error.sentence == "message 20 of stream 7 is late: its event time 1 is behind its stream's watermark"
    assert (error.stage, error.stream_id, error.message_id) == ("words", 7, 20)
    for word in ("lateness_s", "new directory", 'late="drop"', 'late="dead-letter"', "nothing of this epoch is"):
        assert word in error.next_step
    assert "trace" not in error.fields, "it is no error of the app's code"
    again = ProcessionError.from_dict(json.loads(json.dumps(error.as_dict())))
    assert again.explain() == error.explain() == pickle.loads(pickle.dumps(error)).explain()


def test_the_rule_fail_accepts_an_epoch_without_a_late_record() -> None:
    assert run(merged("fail"), [b"a", b"b"], [False, False]) == ([b"A", b"b"], [])
