"""Pieces: a function from stage to stage, whose stages `explain` shows as a group."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from procession import Pipeline, PlanError, Stage
from procession.planner.explain import as_json
from procession.planner.rules import make_plan
from procession.testing import run


def at_least(stage: Stage, least: int) -> Stage:
    return stage.filter(lambda value: value >= least, name="least")


def counted(stage: Stage) -> Stage:
    large = stage.apply(at_least, 2)
    return large.map_stateful(lambda count, value: (count + 1, [value, count + 1]), key=lambda value: value, initial=0)


def pieced() -> Pipeline:
    pipeline = Pipeline("pieced", parallelism=2)
    numbers = pipeline.source("numbers", codec="json")
    numbers.apply(at_least, 1, name="small").apply(counted).sink("counts", to="file:output")
    return pipeline


def test_a_piece_computes_what_its_stages_compute() -> None:
    found = run(pieced(), {"numbers": [0, 1, 2, 3, 2]}, epochs=2)
    assert found["counts"] == [[2, 1], [3, 1], [2, 2]]


def test_stage_names_begin_with_the_name_of_the_piece_and_explain_shows_groups() -> None:
    explained = pieced().explain()
    assert "pieces (each is a group of stages)\n  small: small-least\n" in explained
    assert "  counted/at_least: at_least-least\n  counted: counted-map-stateful-3\n" in explained
    stages = json.loads(as_json(make_plan(pieced().graph())))["stages"]
    assert [stage.get("piece") for stage in stages] == [None, "small", "counted/at_least", "counted", None]


def test_a_piece_that_is_used_twice_needs_two_names() -> None:
    stage = Pipeline("p").source(codec="json").apply(at_least, 1)
    with pytest.raises(PlanError, match="two stages named 'at_least-least'"):
        stage.apply(at_least, 2)


@pytest.mark.parametrize("piece", [lambda stage: stage, partial(at_least, least=3)])
def test_a_piece_without_a_name_is_refused_until_one_is_given(piece: Any) -> None:
    stage = Pipeline("p").source(codec="json")
    with pytest.raises(PlanError, match="which has no name"):
        stage.apply(piece)
    assert stage.apply(piece, name="mine") is not None


def test_a_piece_that_returns_nothing_is_refused() -> None:
    stage = Pipeline("p").source(codec="json")
    with pytest.raises(PlanError, match="the piece 'nothing' returned nothing"):
        stage.apply(lambda stage: None, name="nothing")
    assert "'map-1'" in repr(stage.map(str))
