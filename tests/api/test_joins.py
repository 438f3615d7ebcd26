"""Joins of several stages: each combination once, at the position of its last record, in a defined order."""

from __future__ import annotations

import random
from typing import Any

import pytest

from procession import Pipeline, PlanError
from procession.testing import run

WITHIN = 6


def joined_pipeline(**options: Any) -> Pipeline:
    pipeline = Pipeline("three")
    records = pipeline.source("records", codec="json")
    orders, payments, parcels = records.split(lambda record: record["kind"], "a", "b", "c")
    both = orders.join_all(
        payments,
        parcels,
        within_s=WITHIN,
        join=lambda order, payment, parcel: [order["id"], payment["id"], parcel["id"]],
        key=lambda record: record["key"],
        time=lambda record: record["at"],
        **options,
    )
    both.sink("joined", to="file:output")
    return pipeline


def combinations(records: list[dict[str, Any]]) -> list[list[int]]:
    """Return each combination of three matching records, in the order of their last records and then in that of the
    joins."""
    found = []
    for a in (record for record in records if record["kind"] == "a"):
        near = [record for record in records if record["key"] == a["key"] and abs(record["at"] - a["at"]) <= WITHIN]
        for b in (record for record in near if record["kind"] == "b"):
            for c in (record for record in near if record["kind"] == "c"):
                first, second, third = a["id"], b["id"], c["id"]
                last = max(first, second, third)
                pair = (max(first, second), min(first, second))
                order = pair if last == third else (first, third) if last == second else (second, third)
                found.append(((last, *order), [first, second, third]))
    return [ids for _, ids in sorted(found)]


@pytest.mark.parametrize("seed", range(6))
def test_each_combination_is_emitted_once_at_the_position_of_its_last_record(seed: int) -> None:
    chance = random.Random(seed)
    now, records = 0, []
    for number in range(120):
        now += chance.choice([0, 0, 1, 1, 5])
        kind = chance.choice("abc")
        records.append({"id": number, "kind": kind, "key": chance.randrange(2), "at": now - chance.randrange(3)})
    expected = combinations(records)
    assert len(expected) > 20
    for epochs, tasks in ((None, 1), (7, 3), (40, 2)):
        found = run(joined_pipeline(lateness_s=2), {"records": records}, epochs=epochs, parallelism=tasks)
        assert found["joined"] == expected


def test_explain_names_the_consecutive_joins() -> None:
    explained = joined_pipeline(name="triples").explain()
    assert "triples-1" in explained
    assert "triples-2" in explained


def test_an_invalid_join_is_refused() -> None:
    pipeline = Pipeline("p")
    stage = pipeline.source()
    options: Any = {"within_s": 5, "key": len, "time": len}
    with pytest.raises(PlanError, match="has no other stage"):
        stage.join_all(join=lambda one: one, **options)
    with pytest.raises(PlanError, match=r"cannot be called with \(record, record\)"):
        stage.join_all(stage.map(bytes), join=lambda one: one, **options)
    with pytest.raises(PlanError, match="which is not a stage of pipeline 'p'"):
        stage.join_all(Pipeline("q").source(), join=lambda one, two: one, **options)


def test_an_argument_that_is_not_a_stream_is_refused_with_what_the_stage_takes() -> None:
    source = Pipeline("p").source(codec="json")
    with pytest.raises(PlanError) as caught:
        source.as_of(5, join=max, key=len, time=len, valid_from=len)  # type: ignore[call-overload]
    assert "or a table of procession.tables" in caught.value.next_step
    with pytest.raises(PlanError) as caught:
        source.process(max, on_timer=max, key=len, clock=5)  # type: ignore[arg-type]
    assert caught.value.next_step == "pass pipeline.clock()"
    with pytest.raises(PlanError) as caught:
        source.with_broadcast(5, apply=max)  # type: ignore[arg-type]
    assert "hash_join" in caught.value.next_step
