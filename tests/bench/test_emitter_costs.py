"""The benchmark of emitters counts what each part has used between two commits."""

from __future__ import annotations

import pytest

from procession.bench.emitter_costs import costs_between, measure, report_lines
from procession.errors import ProcessionError


def test_the_report_has_a_line_for_each_form() -> None:
    costs = {"0": {"driver (Python)": 0.1}, "2": {"driver (Python)": 0.02, "emitters": 0.1}}
    costs["2 at addresses"] = {"emitters": 0.2}
    figures = {"records": 6_000, "connections": 4, "cpu_us_per_record": costs}
    assert list(report_lines(figures)) == [
        "6,000 records a run, 4 connections; epoch 1 of 6 does not count",
        "0 emitters: processor time, µs a record: driver (Python) 0.100",
        "2 emitters: processor time, µs a record: driver (Python) 0.020, emitters 0.100",
        "2 emitters at addresses: processor time, µs a record: emitters 0.200",
    ]


def test_a_cost_is_what_was_used_between_two_commits() -> None:
    first, last = {"sink": 1.0}, {"sink": 3.0, "emitters": 0.5}
    assert costs_between((first, 1_000_000), (last, 2_000_000)) == {"sink": 2.0, "emitters": 0.5}
    with pytest.raises(ProcessionError, match="more --records"):
        costs_between((first, 1_000_000), (last, 1_000_000))


@pytest.mark.slow
def test_emitters_are_counted_as_a_separate_part() -> None:
    costs = measure(20_000, 2, 1)["cpu_us_per_record"]
    assert "emitters" not in costs["0"]
    for form in ("2", "2 at addresses"):
        assert {"driver (Python)", "emitters", "gateway", "sink", "source"} <= costs[form].keys()
    assert "host service" in costs["2 at addresses"]
