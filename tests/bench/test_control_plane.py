"""The control plane at sizes that no test machine has: what each step costs does not grow with their number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner

from procession.bench import control_plane
from procession.bench.control_plane import BEND, growth, measure, report_lines
from procession.bench.control_step import ControlSize, Step
from procession.cli.main import app

OF_SETUP = "leader: gateways join"
"""A gateway that joins for the first time rewrites the file of members, so this cost may grow. It occurs once."""


def least(steps: Callable[[ControlSize], Iterator[Step]], gateways: int) -> list[Step]:
    rounds = [list(steps(ControlSize(gateways))) for _ in range(3)]
    return [min(same, key=lambda step: step.cpu_s) for same in zip(*rounds, strict=True)]


@pytest.mark.parametrize(
    "steps", [control_plane._leader_steps, control_plane._offset_steps, control_plane._round_steps]
)
def test_no_repeated_step_gets_more_expensive_with_the_size(steps: Callable[[ControlSize], Iterator[Step]]) -> None:
    found = {gateways: least(steps, gateways) for gateways in (60, 600)}
    factors = growth(found)
    factors.pop(OF_SETUP, None)
    assert {name: factor for name, factor in factors.items() if factor > BEND} == {}


def test_a_step_whose_cost_grows_with_the_size_is_named() -> None:
    even = [Step("even", "gateway", 10, 0.01)], [Step("even", "gateway", 100, 0.1)]
    square = [Step("square", "gateway", 10, 0.01)], [Step("square", "gateway", 100, 1.0)]
    found = growth({10: even[0] + square[0], 100: even[1] + square[1]})
    assert found == pytest.approx({"even": 1.0, "square": 10.0})
    assert growth({10: even[0]}) == {}


def test_the_report_has_every_step_and_the_command_prints_its_figures() -> None:
    figures = measure([2, 20], 1)
    lines = "\n".join(report_lines(figures))
    assert all(name in lines for name in figures["sizes"]["20"])
    assert figures["epoch_cpu_s"]["20"] > 0
    done = CliRunner().invoke(app, ["bench", "control-plane", "--size", "3", "--rounds", "1", "--json"])
    assert json.loads(done.output)["command"] == ("procession bench control-plane --size 3 --rounds 1 --spark-tasks 0")
