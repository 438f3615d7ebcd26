"""Keyed stages on real Spark: every kind that keeps states, compared byte for byte with the sequential run.

Four tasks overtake one another, workers are killed, and epochs have one, few and many records. Invariant: all stages
are in one query, each with its own sink, so that Spark starts once for each kind of master.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from procession.planner.rules import check_runnable, make_plan
from procession.planner.strategies import TABLE
from procession.record import stream_id
from procession.spark.session import Session
from procession.storage.run_store import Manifest
from procession.storage.segment import INGRESS_SCHEMA
from tests.operators.reference import Sequential, batch_of
from tests.slow_cases import slow
from tests.spark import kinds
from tests.spark.cluster import written
from tests.spark.kinds import every_kind, order_to_kill
from tests.spark.spark import failures, patient, run_on_spark, session

pytestmark = patient

RECORDS = [b"%05d" % number for number in range(4_000)]
# The stream ends twice, returns, and ends again.
ENDS = [(2_500, 0), (2_500, 0), (4_000, 0)]
COUNTERS = "counters of the app"
CUTS = {"one, few, many": [1, 3, 1_500], "even": list(range(500, 4_000, 500)), "whole": []}


@pytest.fixture(scope="module", params=["local[4,2]", pytest.param("local-cluster[2,2,1024]", marks=pytest.mark.slow)])
def spark(request: pytest.FixtureRequest) -> Iterator[Session]:
    with session(request.param) as spark:
        yield spark


def whole_input() -> pa.RecordBatch:
    """Return the records of all sources, those of the typed ones between the others."""
    rows: list[dict[str, Any]] = []
    for row in batch_of(RECORDS, ends=ENDS).to_pylist():
        rows.append(row)
        if row["kind"] == 0 and row["message_id"] % 70 == 0:
            for name in kinds.TYPED:
                payload = kinds.order_payload(int(row["payload"]))
                rows.append({**row, "stream_id": stream_id(f"{name}-{len(rows) % 3}".encode()), "payload": payload})
    return pa.RecordBatch.from_pylist(rows, INGRESS_SCHEMA)


@pytest.fixture(scope="module", params=[slow(name) if name == "even" else name for name in CUTS])
def outputs(
    request: pytest.FixtureRequest, spark: Session, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    cuts = CUTS[request.param]
    work = tmp_path_factory.mktemp("keyed")
    orders = [order_to_kill(work, "before", 1_234), order_to_kill(work, "behind", 2_345)]
    for order in orders:
        order.touch()
    plan = make_plan(every_kind(work).graph())
    check_runnable(plan)
    epochs = run_on_spark(spark, plan, whole_input(), cuts, work, kinds.__name__)
    assert failures(epochs) == []
    assert len(epochs) >= len(cuts) + 1
    assert not any(order.exists() for order in orders), "nobody was killed"
    return written(plan, work / "runs", epochs) | {COUNTERS: counters(epochs)}


def counters(epochs: list[list[Manifest]]) -> bytes:
    """Return what the functions counted in all epochs."""
    return shown(sum((Counter(manifest.counts) for epoch in epochs for manifest in epoch), Counter[str]()))


def shown(counts: Counter[str]) -> bytes:
    return repr(sorted(counts.items())).encode()


@pytest.fixture(scope="module")
def sequential() -> dict[str, bytes]:
    reference = Sequential(every_kind().graph())
    return reference.run(whole_input()) | {COUNTERS: shown(reference.counts)}


WINDOWS = ["minutes", "hops", "visits", "threes", "alone", "nested", "local-days", "corrected"]
SINKS = [
    *WINDOWS,
    "lasting",
    "often",
    "sorted",
    "total",
    "totals",
    "joined",
    "paired",
    "paired-inner",
    "mapped",
    "filtered",
    "many",
    "picky",
    "reduced",
    "rolling",
    "distinct",
    "merged",
    "split",
    "overdue",
    "rising",
    "lonely",
    "ruled",
    "latest",
    "versions",
    "table-versions",
    "joined-all",
    "clocked",
    "sales",
    "taken-back",
    "typed-tops",
    "fields-tops",
    "pieces",
    "dead-letter",
    COUNTERS,
]


@pytest.mark.parametrize("sink", SINKS)
def test_i11_a_keyed_stage_writes_what_the_sequential_run_would_have_written(
    outputs: dict[str, bytes], sequential: dict[str, bytes], sink: str
) -> None:
    assert sequential[sink], "a row that writes nothing shows nothing"
    assert outputs[sink] == sequential[sink]


def test_every_kind_that_keeps_states_and_can_be_run_is_in_the_query() -> None:
    kinds = {node.kind for node in every_kind().graph().nodes if node.operator is not None}
    assert kinds == {kind for kind, row in TABLE.items() if row.has_state and not row.comes_with}
