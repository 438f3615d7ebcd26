"""Guarantees as data: one table, the same in the code, in the docs and in the graph."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from procession import Pipeline, PlanError
from procession.planner.guarantee import (
    MAY,
    POLICIES,
    ROWS,
    Acknowledges,
    Emits,
    Guarantee,
    Policy,
    Shows,
    Waits,
    table,
)

DOCS = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "guarantees.md"


def pipeline(**options: object) -> Pipeline:
    return Pipeline("app", **options)  # type: ignore[arg-type]


def test_the_default_is_effectively_once_with_every_protection() -> None:
    made = pipeline()
    made.source().sink("out", to="file:out")
    assert made.graph().guarantee is Guarantee.EFFECTIVELY_ONCE
    assert made.graph().policy.is_strict
    assert [level for level in Guarantee if POLICIES[level].is_strict] == [Guarantee.EFFECTIVELY_ONCE]


def test_the_table_has_every_level_and_every_field_and_the_docs_show_it() -> None:
    assert set(POLICIES) == set(MAY) == set(Guarantee)
    assert list(ROWS) == [field.name for field in fields(Policy)]
    page = DOCS.read_text()
    for row in table():
        assert f"| {' | '.join(row)} |" in page


def test_the_possible_faults_of_each_level_follow_from_its_policy() -> None:
    for level, policy in POLICIES.items():
        # Output is visible before the decision and sent before the commit, so a repeated epoch is emitted again.
        may_double = policy.shows is Shows.VOTED and policy.emits is Emits.BEFORE_COMMIT
        # Committed without waiting for the sinks, so output in flight is lost with the process that has it.
        may_lose = policy.waits is Waits.NOTHING
        assert (may_double, may_lose) == {
            Guarantee.EFFECTIVELY_ONCE: (False, False),
            Guarantee.AT_LEAST_ONCE: (True, False),
            Guarantee.AT_MOST_ONCE: (False, True),
            Guarantee.NONE: (True, True),
        }[level]
        assert policy.is_sent_again == (policy.waits is Waits.VOTES)
        assert (policy.acknowledges is Acknowledges.BEGUN) == (level is Guarantee.NONE)


def test_an_unknown_level_names_the_known_ones() -> None:
    with pytest.raises(PlanError, match="exactly-once") as error:
        pipeline(guarantee="exactly-once")
    assert "effectively-once" in error.value.next_step


def test_a_level_belongs_to_the_checkpoint_and_the_default_changes_no_fingerprint() -> None:
    prints = set()
    for level in Guarantee:
        made = pipeline(guarantee=level.value)
        made.source().sink("out", to="file:out")
        prints.add(made.graph().fingerprint())
    assert len(prints) == len(Guarantee)
    made = pipeline(deterministic=True)
    made.source().sink("out", to="file:out", idempotent=True)
    assert made.graph().fingerprint() not in prints
    assert made.graph().idempotent == ("out",)


def test_an_idempotent_sink_of_a_pipeline_not_declared_deterministic_is_refused_with_two_ways_out() -> None:
    stage = pipeline().source()
    with pytest.raises(PlanError, match="'store'") as error:
        stage.sink("store", to="file:out", idempotent=True)
    assert "deterministic=True" in error.value.next_step
    assert "remove idempotent=True" in error.value.next_step


@pytest.mark.parametrize("level", ["at-most-once", "none"])
def test_an_idempotent_sink_is_refused_at_a_level_that_never_repeats_output(level: str) -> None:
    stage = pipeline(guarantee=level, deterministic=True).source()
    with pytest.raises(PlanError, match="no record is sent again"):
        stage.sink("store", to="file:out", idempotent=True)
