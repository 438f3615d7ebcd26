"""The overhead of order is computed round by round; in both figures more is better."""

from __future__ import annotations

import pytest

from procession.bench.order_overhead import overhead, quartile, report_lines


def rounds(*figures: tuple[float, float]) -> list[dict[str, float]]:
    return [{"records_per_second": rate, "cpu_us_per_record": cpu_us} for rate, cpu_us in figures]


def test_the_median_is_taken_over_the_ratios_within_each_round() -> None:
    found = {
        "ordered": rounds((90, 1.0), (50, 1.0), (200, 1.1)),
        "unordered": rounds((100, 1.0), (50, 0.9), (250, 1.0)),
    }
    result = overhead(found)
    assert result["throughput"] == pytest.approx(0.9), "ratios 0.9, 1.0 and 0.8"
    assert result["cpu"] == pytest.approx(1 / 1.1), "ratios 1.0, 0.9 and 0.909"
    assert result["throughput_low"] < result["throughput"] < result["throughput_high"]


def test_with_one_round_all_quartiles_are_its_ratio() -> None:
    assert quartile([0.5], 1) == quartile([0.5], 3) == 0.5


def test_lines_name_the_median_and_the_quartiles() -> None:
    found = {"ordered": rounds((97, 1.0)), "unordered": rounds((100, 1.0))}
    figures = {name: results[0] for name, results in found.items()} | {"rounds": found, "overhead": overhead(found)}
    assert "median of 1 rounds and quartiles: throughput 0.970 (0.970 to 0.970)" in "\n".join(report_lines(figures))
