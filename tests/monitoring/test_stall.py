"""A stall names a part of the pipeline only if a figure proves that it is the cause."""

from __future__ import annotations

from typing import Any

import pytest

from procession.monitoring.stall import bottleneck, slowest_stage

SINK = {"is_connected": True}
DRIVER = {"open": None, "sinks": {"out": SINK}, "is_ready": True, "fence": 2}


def snapshot(**changed: Any) -> dict[str, Any]:
    """Return the snapshot of a pipeline without problems."""
    return {
        "state": "running",
        "paused": [],
        "disks_low": [],
        "away": [],
        "lag": 10,
        "idle_s": 0.1,
        "committed_by": 2,
        "driver": DRIVER,
        "gateways": [{"name": "gateway", "is_over": False, "waiting_records": 0}],
        "phases": {"run": {"p50_s": 0.2, "share": 0.7}, "phase 1 out": {"p50_s": 0.1, "share": 0.3}},
        "stages": [{"name": "parsed", "busy_share": 0.1}, {"name": "totals", "busy_share": 0.6}],
        **changed,
    }


def opened(phase: str, seconds: float, **changed: Any) -> dict[str, Any]:
    found = {"epoch": 7, "phase": phase, "seconds": seconds, "sinks": ["out"], "attempts": 1, **changed}
    return {"driver": DRIVER | {"open": found}}


def test_no_part_is_named_without_a_stall() -> None:
    assert bottleneck(snapshot()) is None
    assert bottleneck(snapshot(**opened("phase 1", 1.0))) is None


@pytest.mark.parametrize("state", ["stopped", "drained"])
def test_a_pipeline_that_does_not_run_has_no_stall(state: str) -> None:
    assert bottleneck(snapshot(state=state, paused=["gateway"])) is None


@pytest.mark.parametrize(
    ("changed", "part", "why"),
    [
        ({"paused": ["gateway"]}, "gateway", "paused"),
        ({"disks_low": ["d/gateway-1"]}, "gateway-1", "disk"),
        ({"away": ["gateway-2"]}, "gateway-2", "reach"),
        ({"away": ["gateway-2"]}, "gateway-2", "procession restore"),
        ({"away": ["gateway-2"]}, "gateway-2", "procession gateways abandon gateway-2"),
        ({"driver": None}, "driver", "restarted"),
        (opened("phase 1", 9.0), "sink out", "has not voted for 9 s, in epoch 7"),
        (opened("phase 1", 9.0, attempts=3), "sink out", "(attempt 3)"),
        (opened("decision", 9.0), "Spark", "commit"),
        (opened("record", 9.0), "driver", "disk is slow"),
        (opened("run", 9.0), "stage totals", "tasks run for 9 s"),
        ({"driver": DRIVER | {"is_ready": False}}, "driver", "Spark is not ready"),
        ({"driver": DRIVER | {"fence": 3}}, "driver", "has not committed its first epoch"),
        ({"driver": DRIVER | {"sinks": {"out": {"is_connected": False}}}}, "sink out", "no connection"),
        (
            {"gateways": [{"name": "gateway", "is_over": False, "waiting_records": 4}], "idle_s": 9.0},
            "gateway",
            "event-time order",
        ),
    ],
)
def test_the_part_that_the_pipeline_waits_for_is_named(changed: dict[str, Any], part: str, why: str) -> None:
    found = bottleneck(snapshot(**changed))
    assert found is not None
    assert (found.part, found.is_stalled) == (part, True)
    assert why in found.why


def test_a_phase_that_always_takes_long_is_not_a_stall() -> None:
    slow = {"run": {"p50_s": 5.0, "share": 1.0}}
    assert bottleneck(snapshot(**opened("run", 30.0), phases=slow)) is None
    assert bottleneck(snapshot(**opened("run", 41.0), phases=slow)) is not None


def test_the_slowest_part_is_named_only_while_producers_wait() -> None:
    over = [{"name": "gateway", "is_over": True, "waiting_records": 0}]
    found = bottleneck(snapshot(gateways=over))
    assert found is not None
    assert (found.part, found.is_stalled) == ("stage totals", False)
    shares = {"run": {"p50_s": 0.1, "share": 0.2}, "phase 1 out": {"p50_s": 0.5, "share": 0.8}}
    slow_sink = bottleneck(snapshot(gateways=over, phases=shares))
    assert slow_sink is not None
    assert slow_sink.part == "sink out"
    without_figures = bottleneck(snapshot(gateways=over, stages=[]))
    assert without_figures is not None
    assert without_figures.part == "Spark"
    even = {"run": {"p50_s": 0.1, "share": 0.4}, "phase 1 out": {"p50_s": 0.1, "share": 0.3}}
    assert bottleneck(snapshot(gateways=over, phases=even)) is None


def test_without_figures_no_stage_is_the_slowest() -> None:
    assert slowest_stage([]) is None
    assert slowest_stage([{"name": "a", "busy_share": None}]) is None
