"""The figures of `procession bench conflux`: latencies between stamps, throughput of a window, medians of rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.bench.conflux_figures import (
    CURVE_POINTS,
    LATENCIES,
    WINDOW_S,
    contestant_figures,
    paper_ratios,
    ratios_to,
    run_figures,
    sliding_throughput,
)

MS = 1_000_000


def stamps(count: int, wait_ms: int) -> dict[str, Any]:
    """Return the stamps of records that are created every 10 ms and emitted `wait_ms` later."""
    created_ns = np.arange(count, dtype=np.int64) * 10 * MS
    steps = {"processed_ns": 0.25, "sunk_ns": 0.5, "consumed_ns": 0.75, "emitted_ns": 1.0}
    waits = {name: created_ns + int(share * wait_ms * MS) for name, share in steps.items()}
    return {"number": np.arange(count), "created_ns": created_ns, **waits}


def test_latencies_are_between_the_stamps() -> None:
    found = run_figures(stamps(1000, 40), 1000)
    means = {name: round(latency["mean_ms"]) for name, latency in found["latency"].items()}
    assert means == {
        "end_to_end": 40,
        "source_to_process": 10,
        "source_to_sink": 20,
        "source_to_merger": 30,
        "sink_to_merger": 10,
        "merger": 10,
    }
    assert found["completion_s"] == pytest.approx(9.99 + 0.04)
    assert found["latency"]["end_to_end"]["cdf_ms"] == [40.0] * CURVE_POINTS


def test_throughput_is_counted_over_a_window_of_three_seconds() -> None:
    emitted_ns = np.concatenate([np.arange(100) * 10 * MS, np.array([9_000 * MS])])  # 100 in a second, then a pause
    curve = dict(sliding_throughput(emitted_ns, 0, 9_000 * MS))
    assert curve[1.0] == pytest.approx(100, abs=1), "a window before which the run begins is shorter"
    assert curve[3.0] == pytest.approx(100 / 3, abs=1)
    assert curve[5.0] == 0
    assert curve[9.0] == pytest.approx(1 / 3, abs=0.1)


def test_the_published_ratios_are_those_of_the_issue() -> None:
    found = paper_ratios()
    assert 1.67 <= found["throughput"] <= 1.79
    assert found["mean_latency"] == pytest.approx(0.63, abs=0.005)
    assert found["p99_latency"] == pytest.approx(0.71, abs=0.005)


def rounds(*waits_ms: int) -> dict[str, Any]:
    runs = [run_figures(stamps(500, wait_ms), 500) for wait_ms in waits_ms]
    return contestant_figures(
        [{**run, "cpu_us_per_record": float(wait_ms)} for run, wait_ms in zip(runs, waits_ms, strict=True)]
    )


def test_medians_are_over_rounds_and_curves_are_those_of_the_round_in_the_middle() -> None:
    found = rounds(41, 40, 90)
    assert set(found["latency"]) == set(LATENCIES)
    end_to_end = found["latency"]["end_to_end"]
    assert [end_to_end[name] for name in ("mean_ms", "p50_ms", "p99_ms")] == pytest.approx([41] * 3)
    assert end_to_end["cdf_ms"] == [41.0] * CURVE_POINTS
    assert found["cpu_us_per_record"] == 41
    assert found["completion_s"] == pytest.approx(4.99 + 0.041)
    assert found["records_per_second"] == pytest.approx(500 / 5.031)
    assert [run["mean_ms"] for run in found["rounds"]] == pytest.approx([41, 40, 90])
    assert found["throughput"] == run_figures(stamps(500, 41), 500)["throughput"]


def test_of_two_rounds_the_curves_are_those_of_the_better_one() -> None:
    assert rounds(60, 40)["latency"]["merger"]["cdf_ms"] == [10.0] * CURVE_POINTS


def test_a_ratio_is_the_median_of_the_ratios_within_rounds() -> None:
    found = ratios_to({"ours": rounds(10, 30, 50), "theirs": rounds(100, 100, 200)}, "theirs")
    assert set(found) == {"ours"}, "none against itself"
    assert found["ours"]["mean_latency"] == found["ours"]["p99_latency"] == pytest.approx(0.25)
    assert found["ours"]["completion"] == pytest.approx((4.99 + 0.01) / (4.99 + 0.1))
    assert found["ours"]["throughput"] == pytest.approx(1 / found["ours"]["completion"])


@given(st.lists(st.integers(0, 9_000), min_size=1, max_size=30))
def test_a_window_counts_the_records_that_it_contains(emitted_ms: list[int]) -> None:
    end_ms = max(*emitted_ms, 300)
    for end_s, rate in sliding_throughput(np.array(emitted_ms) * MS, 0, end_ms * MS):
        start_s = max(0.0, end_s - WINDOW_S)
        counted = sum(start_s < at_ms / 1000 <= end_s for at_ms in emitted_ms)
        assert rate == pytest.approx(counted / (end_s - start_s), abs=0.06)
