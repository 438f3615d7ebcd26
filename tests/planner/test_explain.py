"""The output of `explain`, compared with golden files. `python -m tests.planner.test_explain` rewrites them, for a
review of the diff."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from procession.planner.drawing import as_svg
from procession.planner.explain import as_dot, as_json, explain
from procession.planner.plan import Plan
from procession.planner.rules import make_plan
from tests.planner.pipelines import PIPELINES

GOLDEN = Path(__file__).with_name("golden")
# Every plan as text; a few plans in the other forms.
FORMS: dict[str, Callable[[Plan], str]] = {
    **{f"{name}.txt": explain for name in PIPELINES},
    "diamond.json": as_json,
    "diamond.dot": as_dot,
    "diamond.svg": as_svg,
    "cells.json": as_json,
    "several_outputs.json": as_json,
    "several_outputs.dot": as_dot,
    "several_outputs.svg": as_svg,
    "same_names.json": as_json,
    "same_names.dot": as_dot,
}


def shown(file: str) -> str:
    return FORMS[file](make_plan(PIPELINES[file.partition(".")[0]]().graph()))


@pytest.mark.parametrize("file", FORMS)
def test_a_plan_is_shown_as_in_its_golden_file(file: str) -> None:
    assert shown(file) == (GOLDEN / file).read_text(), "if the change is intended: python -m tests.planner.test_explain"


def test_every_golden_file_is_compared() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == set(FORMS)


@pytest.mark.parametrize("name", PIPELINES)
def test_every_stage_every_edge_and_every_reason_is_in_every_form(name: str) -> None:
    pipeline = PIPELINES[name]()
    plan = make_plan(pipeline.graph())
    assert pipeline.explain() == explain(plan)
    parsed = json.loads(as_json(plan))
    picture = ElementTree.fromstring(as_svg(plan))
    titles = " ".join(element.text or "" for element in picture.iter("{http://www.w3.org/2000/svg}title"))
    for node in plan.graph.nodes:
        assert node.name in explain(plan)
        assert f'"{plan.graph.shown_name(node)}"' in as_dot(plan)
        assert node.name in titles
    assert [stage["id"] for stage in parsed["stages"]] == [node.name for node in plan.graph.nodes]
    for edge in plan.edges:
        assert edge.why in explain(plan)
        assert edge.why in titles
        assert edge.why in as_dot(plan)
    assert [(edge["strategy"], edge["why"]) for edge in parsed["edges"]] == [
        (edge.strategy.value, edge.why) for edge in plan.edges
    ]


def test_the_dead_letters_have_an_arrow_from_every_chain_for_graphviz_too() -> None:
    for name in ("diamond", "same_names"):
        plan = make_plan(PIPELINES[name]().graph())
        assert plan.graph.dead_letter is not None
        shown = plan.graph.shown_name(plan.graph.dead_letter)
        arrows = [line for line in as_dot(plan).splitlines() if f'-> "{shown}"' in line]
        assert all(f"ltail=cluster_{chain.number} " in line for chain, line in zip(plan.chains, arrows, strict=True))
        assert "compound=true" in as_dot(plan), "otherwise Graphviz draws them from one stage of the chain"


def test_a_stage_and_a_sink_of_one_name_are_two_in_every_form() -> None:
    plan = make_plan(PIPELINES["same_names"]().graph())
    shown = [plan.graph.shown_name(node) for node in plan.graph.nodes]
    assert len(set(shown)) == len(shown)
    assert "out (rebalance)" in explain(plan)
    assert "out (sink)" in explain(plan)
    assert as_dot(plan).count('"out (sink)" [shape=cylinder]') == 1
    stages = [(stage["id"], stage["kind"] == "sink") for stage in json.loads(as_json(plan))["stages"]]
    assert len(set(stages)) == len(stages)
    edges = json.loads(as_json(plan))["edges"]
    assert {("alerts", "out", "rebalance"), ("alerts", "out", "sink")} <= {
        (edge["before"], edge["after"], edge["after_kind"]) for edge in edges
    }


if __name__ == "__main__":
    for file in FORMS:
        (GOLDEN / file).write_text(shown(file))
