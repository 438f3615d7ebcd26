"""Plots are complete SVG documents that show each curve once, within the axes and with its name."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from procession.bench import svg_plot

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("maximum", "step", "end"),
    [(0.9, 0.2, 1.0), (7.0, 2.0, 8.0), (1330.2, 500.0, 1500.0), (250_000.0, 50_000.0, 250_000)],
)
def test_ticks_are_round_and_reach_the_greatest_value(maximum: float, step: float, end: float) -> None:
    assert svg_plot.tick_step(maximum) == pytest.approx(step)
    assert svg_plot.rounded_up(maximum) == pytest.approx(end)


def test_an_empty_range_has_the_ticks_0_and_1() -> None:
    assert svg_plot.rounded_up(0.0) == 1.0


def test_curves_go_from_corner_to_corner_and_are_named() -> None:
    drawing = svg_plot.curves("a & b", "x", "y", {"up": [(0.0, 0.0), (10.0, 5.0)], "<down>": [(0.0, 5.0), (10.0, 0.0)]})
    root = ElementTree.fromstring(drawing)
    lines = [line.attrib["points"] for line in root.iter(f"{SVG}polyline")]
    left, right = svg_plot.LEFT, svg_plot.WIDTH - svg_plot.RIGHT
    low, high = svg_plot.HEIGHT - svg_plot.BOTTOM, svg_plot.TOP
    assert lines == [f"{left}.0,{low}.0 {right}.0,{high}.0", f"{left}.0,{high}.0 {right}.0,{low}.0"]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"up", "<down>", "x", "y"} <= set(texts)
    assert root.findtext(f"{SVG}title") == "a & b"


def test_a_distribution_ends_at_one() -> None:
    root = ElementTree.fromstring(svg_plot.cdf("t", "ms", {"latency": [1.0, 2.0, 10.0]}))
    (line,) = root.iter(f"{SVG}polyline")
    heights = [float(point.partition(",")[2]) for point in line.attrib["points"].split()]
    assert heights[0] == svg_plot.HEIGHT - svg_plot.BOTTOM
    assert heights[-1] == svg_plot.TOP


def test_bars_are_as_high_as_their_values() -> None:
    drawing = svg_plot.bars("t", "ms", {"mean": {"a": 10.0, "b": 20.0}, "p99": {"a": 40.0}})
    heights = [float(height) for height in re.findall(r'height="([0-9.]+)" fill="#[01]', drawing)]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.3)
    assert heights[2] == pytest.approx(4 * heights[0], abs=0.3)


def test_a_plot_without_data_draws_nothing() -> None:
    assert svg_plot.curves("t", "x", "y", {}) == svg_plot.bars("t", "y", {}) == ""
