"""Random pipelines in this process: the same bytes for any epochs and tasks, and the same as on real Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from procession import Pipeline
from procession.planner import plan as planned
from procession.planner.rules import make_plan
from procession.testing import Record, Schedule, run
from procession.testing.arrivals import Arrivals, cuts_of
from procession.testing.hypothesis_schedules import schedules
from tests.operators import random_pipelines
from tests.operators.random_pipelines import FIRST_STREAM, PAYLOADS, STREAMS, pipelines
from tests.spark.cluster import written
from tests.spark.spark import Session, failures, patient, run_on_spark, session

SECOND = FIRST_STREAM + 1
"""The stream id of the second source, if there is one."""


def inputs_of(pipeline: Pipeline, payloads: list[bytes]) -> list[tuple[str, Record]]:
    """Return records of several streams in turn, each for the source that takes the stream."""
    sources = {source.streams: source.name for source in pipeline.graph().sources}
    second = sources.get(frozenset({SECOND}), "first")
    streams = [FIRST_STREAM + number % STREAMS for number in range(len(payloads))]
    return [
        (second if stream == SECOND else "first", Record(payload, key=b"k", stream=stream))
        for stream, payload in zip(streams, payloads, strict=True)
    ]


@settings(max_examples=60, deadline=None)
@given(pipeline=pipelines(), payloads=PAYLOADS, schedule=schedules(parallelism_max=5))
def test_the_output_does_not_depend_on_epochs_tasks_or_crashes(
    pipeline: Pipeline, payloads: list[bytes], schedule: Schedule
) -> None:
    inputs = inputs_of(pipeline, payloads)
    assert schedule.run(pipeline, inputs).bytes == run(pipeline, inputs).bytes


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pipeline=pipelines(), payloads=PAYLOADS, tasks=st.integers(2, 5))
def test_the_output_does_not_depend_on_wide_exchanges(
    monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline, payloads: list[bytes], tasks: int
) -> None:
    inputs = inputs_of(pipeline, payloads)
    monkeypatch.setattr(planned, "WIDE_PAIRS_MIN", 1)
    wide = run(pipeline, inputs, epochs=7, parallelism=tasks).bytes
    monkeypatch.undo()
    assert wide == run(pipeline, inputs).bytes


@pytest.fixture(scope="module")
def spark() -> Iterator[Session]:
    with session("local[2,4]") as found:
        yield found


def by_chance(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


SOME = PAYLOADS.filter(lambda payloads: len(payloads) > 5)


@patient
@by_chance(3)
@given(pipeline=pipelines(), payloads=SOME)
def test_the_output_is_that_of_spark_byte_for_byte(spark: Session, pipeline: Pipeline, payloads: list[bytes]) -> None:
    _compare_with_spark(spark, pipeline, payloads)


@pytest.mark.slow
@patient
@by_chance(60)
@given(pipeline=pipelines(), payloads=SOME)
def test_the_output_of_many_pipelines_is_that_of_spark(
    spark: Session, pipeline: Pipeline, payloads: list[bytes]
) -> None:
    _compare_with_spark(spark, pipeline, payloads)


def _compare_with_spark(spark: Session, pipeline: Pipeline, payloads: list[bytes]) -> None:
    inputs = inputs_of(pipeline, payloads)
    graph = pipeline.graph()
    arrivals = Arrivals.of(graph, inputs)
    rows = arrivals.rows(is_ended=True)
    plan = make_plan(graph.with_inputs(arrivals.streams))
    half = len(payloads) // 2
    cuts = cuts_of((rows.column("kind").to_numpy() == 0).tolist(), [half])
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        outputs = run_on_spark(spark, plan, rows, cuts, work, random_pipelines.__name__)
        assert failures(outputs) == []
        assert written(plan, work / "runs", outputs) == run(pipeline, inputs, epochs=[half]).bytes
