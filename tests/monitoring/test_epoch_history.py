"""The history of epochs: percentiles of recent epochs, and pages of older ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from procession.driver.epoch_log import older
from procession.monitoring.epoch_history import PAGE_MAX, RECENT_MAX, RecentEpochs, page, phases_of, read_all, stages_of


def line_of(epoch: int, **changed: Any) -> dict[str, Any]:
    """Return the line of epoch `epoch`, committed at second `epoch`."""
    return {
        "epoch": epoch,
        "fence": 1,
        "committed_ns": epoch * 10**9,
        "records": 10,
        "phases": {"wait_s": 0.5, "run_s": 1.0, "phase1_s": {"out": 0.25}, "record_s": 0.1, "decision_s": 0.2},
        "aborts": 0,
        "phase2_before_s": {"out": 0.05},
        "chains": {"0": {"tasks": 2, "read_s": 1.0, "run_s": 3.0, "out": {"out": 50}}},
        **changed,
    }


def test_phase_2_belongs_to_the_epoch_before_the_line_that_has_it() -> None:
    recent = RecentEpochs()
    recent.add(line_of(0))
    recent.add(line_of(1, phase2_before_s={"out": 0.75}))
    assert [phases_of(line).get("phase 2 out") for line in recent.lines] == [0.75, None]


def test_percentiles_and_shares_of_the_phases() -> None:
    recent = RecentEpochs()
    for epoch in range(100):
        recent.add(line_of(epoch, phases={"wait_s": 5.0, "run_s": epoch / 100, "phase1_s": {"out": 0.0}}))
    phases = recent.phases()
    assert phases["run"]["p50_s"] == pytest.approx(0.495)
    assert phases["run"]["p99_s"] == pytest.approx(0.9801)
    assert phases["wait"]["share"] == 0.0
    assert sum(phase["share"] for phase in phases.values()) == pytest.approx(1.0, abs=0.01)


def test_only_the_latest_epochs_are_held() -> None:
    recent = RecentEpochs()
    for epoch in range(RECENT_MAX + 5):
        recent.add(line_of(epoch))
    assert (len(recent.lines), recent.lines[0]["epoch"]) == (RECENT_MAX, 5)


def test_idle_time_is_since_the_last_commit_whose_time_is_known() -> None:
    recent = RecentEpochs()
    assert recent.idle_s(100.0) is None
    recent.add(line_of(90))
    recent.add(line_of(91, committed_ns=0, is_filled=True))
    assert recent.idle_s(100.0) == 10.0


def test_a_chain_is_as_busy_as_its_tasks_were_on_average() -> None:
    plan = {"chains": [{"number": 0, "behind": None, "stages": ["in", "parsed"], "tasks": 2}]}
    (stage,) = stages_of(plan, [line_of(1), line_of(2)])
    assert (stage["name"], stage["busy_share"]) == ("in", 0.4)  # 8 of 2 x 10 seconds
    assert stage["out_per_s"] == {"out": 10.0}
    assert stages_of(plan, [])[0]["busy_share"] is None


def test_a_page_is_bounded_and_shows_the_slowest_epoch_of_each_group() -> None:
    lines = [line_of(epoch) for epoch in range(2 * PAGE_MAX)]
    lines[7]["phases"] = {"run_s": 99.0}
    found = page(lines, 0, 1e12)
    assert (len(found["points"]), found["epochs_per_point"], found["epochs"]) == (PAGE_MAX, 2, 2 * PAGE_MAX)
    assert (found["points"][3]["epoch"], found["points"][3]["epochs"], found["points"][3]["records"]) == (7, [6, 7], 20)


def test_merged_points_keep_the_sums_of_epochs_records_aborts_and_drivers() -> None:
    epochs = 3 * PAGE_MAX + 5
    lines = [line_of(epoch, fence=epoch // 100, aborts=epoch % 2) for epoch in range(epochs)]
    lines[epochs // 2]["phases"] = {"run_s": 99.0}
    found = page(iter(lines), 0, 1e12)
    points = found["points"]
    assert (found["epochs"], found["epochs_per_point"], len(points)) == (epochs, 4, -(-epochs // 4))
    assert [number for point in points for number in range(point["epochs"][0], point["epochs"][1] + 1)] == [
        *range(epochs)
    ]
    assert sum(point["records"] for point in points) == sum(line["records"] for line in lines)
    assert (sum(point["aborts"] for point in points), sum(point["drivers"] for point in points)) == (
        epochs // 2,
        (epochs - 1) // 100,
    )
    assert max(points, key=lambda point: point["seconds"])["epoch"] == epochs // 2


def test_a_page_has_only_epochs_of_its_time_range() -> None:
    assert [point["epoch"] for point in page((line_of(epoch) for epoch in range(100)), 20, 22)["points"]] == [
        20,
        21,
        22,
    ]


def test_a_new_driver_and_aborts_are_in_the_page() -> None:
    lines = [line_of(0), line_of(1, fence=2, aborts=3), line_of(2, fence=2)]
    assert [(point["drivers"], point["aborts"]) for point in page(lines, 0, 1e12)["points"]] == [(0, 0), (1, 3), (0, 0)]


def test_the_rotated_file_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "epochs.jsonl"
    older(path).write_text(json.dumps(line_of(0)) + "\n")
    path.write_text(json.dumps(line_of(1, phase2_before_s={"out": 9.0})) + "\n")
    assert [(line["epoch"], line.get("phase2_s")) for line in read_all(path)] == [(0, {"out": 9.0}), (1, None)]
