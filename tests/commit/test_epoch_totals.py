"""Counters continue over all drivers of a checkpoint, and count late records by stage."""

from __future__ import annotations

from procession.commit.epoch_totals import LATE_AT, counted
from procession.storage.run_store import Manifest, Run

STAGES = {1: ("minutes", "window of 60 s"), 2: ("pairs", "join")}


def test_counters_continue_from_epoch_to_epoch_and_count_late_records_by_stage() -> None:
    first = counted(
        {},
        [Manifest(0, 0, 0, 0, 5, records=5), Manifest(0, 1, 0, 0, 0, late=2)],
        {"out": [Run("out", 0, "f", 3, 9)]},
        STAGES,
    )
    assert first == {"records_in": 5, "records_out": 3, f"{LATE_AT}minutes": 2}
    manifests = [
        Manifest(1, 0, 0, 5, 6, records=1, late=1),
        Manifest(1, 1, 0, 0, 0, late=1),
        Manifest(1, 2, 0, 0, 0, late=4),
    ]
    assert counted(first, manifests, {}, STAGES) == {
        "records_in": 6,
        "records_out": 3,
        "late": 1,
        f"{LATE_AT}minutes": 3,
        f"{LATE_AT}pairs": 4,
    }


def test_without_late_records_no_counter_reports_them() -> None:
    assert counted({}, [Manifest(0, 0, 0, 0, 1, records=1)], {}, STAGES) == {"records_in": 1, "records_out": 0}
