"""The reports of a driver are written concurrently with the commit, and the next driver completes them."""

from __future__ import annotations

import json
from pathlib import Path

from procession import Pipeline
from procession.commit.checkpoint import Checkpoint
from procession.commit.performer import CommittedEpoch
from procession.commit.recovery import RecoveredRounds
from procession.commit.round_record import RoundRecord, SinkShare
from procession.driver.driver_reports import EPOCHS, PLAN, QUEUE_MAX, STATUS, DriverReports
from procession.driver.epoch_log import EpochLog, EpochTail, older
from procession.planner.plan import Plan
from procession.planner.rules import make_plan
from procession.storage.run_store import Manifest, Run

NOW_NS = 1_700_000_000 * 10**9


def record_of(epoch: int) -> RoundRecord:
    share = SinkShare(f"t{epoch}", 10 * epoch, 10 * epoch + 10)
    counters = {"records_in": 5 * epoch + 5}
    return RoundRecord(epoch, 1, "f", 5 * epoch, 5 * epoch + 5, {"out": share}, {7: epoch}, counters)


def outcome_of(epoch: int) -> CommittedEpoch:
    runs = (Run("node-1", 0, "f", 4, 40),)
    manifest = Manifest(epoch, 0, 0, 5 * epoch, 5 * epoch + 5, records=5, runs=runs, spent_s=(0.25, 0.5))
    return CommittedEpoch(record_of(epoch), [manifest, manifest], 0.1, NOW_NS)


def a_plan() -> Plan:
    pipeline = Pipeline("reported")
    pipeline.source("in", codec="text").map(str.upper).sink("out", to="file:out")
    return make_plan(pipeline.graph())


def reports_in(directory: Path) -> DriverReports:
    checkpoint = Checkpoint.claim(directory / "checkpoint", name="reported", fingerprint="f", endpoints={})
    return DriverReports(directory, a_plan(), checkpoint, 1024 * 1024)


def nothing() -> RecoveredRounds:
    return RecoveredRounds(-1, None, {}, 0)


def test_a_line_has_the_results_of_the_round_and_of_its_tasks(tmp_path: Path) -> None:
    EpochLog(tmp_path / EPOCHS, checkpoint="c", names={"node-1": "out"}).add(outcome_of(3))
    (line,) = EpochTail(tmp_path / EPOCHS).new()
    assert (line["id"], line["epoch"], line["first"], line["last"], line["records"]) == ("c", 3, 15, 20, 10)
    assert (line["sinks"], line["positions"]) == ({"out": [30, 40]}, {"7": 3})
    assert line["chains"] == {"0": {"tasks": 2, "read_s": 0.5, "run_s": 1.0, "out": {"out": 8}}}


def test_epochs_are_written_before_the_driver_closes(tmp_path: Path) -> None:
    reports = reports_in(tmp_path)
    reports.start(nothing())
    for epoch in range(20):
        reports.committed(outcome_of(epoch))
    reports.close()
    assert [line["epoch"] for line in EpochTail(tmp_path / EPOCHS).new()] == list(range(20))
    assert json.loads((tmp_path / PLAN).read_text())["pipeline"] == "reported"
    assert not (tmp_path / STATUS).exists()


def test_a_commit_never_waits_for_the_reports(tmp_path: Path) -> None:
    reports = reports_in(tmp_path)
    for epoch in range(QUEUE_MAX + 3):  # nobody writes them
        reports.committed(outcome_of(epoch))
    assert reports.status()["epochs_left_out"] == 3


def test_the_next_driver_adds_committed_epochs_that_were_not_logged(tmp_path: Path) -> None:
    log = EpochLog(tmp_path / EPOCHS, checkpoint="c")
    log.add(outcome_of(0))
    EpochLog(tmp_path / EPOCHS, checkpoint="c").fill([record_of(2), record_of(0), record_of(1)])
    lines = list(EpochTail(tmp_path / EPOCHS).new())
    assert [(line["epoch"], line["records"], line.get("is_filled", False)) for line in lines] == [
        (0, 10, False),
        (1, 5, True),
        (2, 5, True),
    ]


def test_a_driver_that_starts_completes_the_history(tmp_path: Path) -> None:
    reports = reports_in(tmp_path)
    reports.start(RecoveredRounds(1, None, {0: record_of(0), 1: record_of(1)}, 0))
    reports.close()
    assert [line["epoch"] for line in EpochTail(tmp_path / EPOCHS).new()] == [0, 1]


def test_a_truncated_line_affects_no_other_line(tmp_path: Path) -> None:
    path = tmp_path / EPOCHS
    log = EpochLog(path)
    log.add(outcome_of(0))
    path.write_bytes(path.read_bytes() + b'{"epoch": 1, "rec')
    EpochLog(path).add(outcome_of(2))
    assert [line["epoch"] for line in EpochTail(path).new()] == [0, 2]


def test_the_history_is_bounded(tmp_path: Path) -> None:
    path, bytes_max = tmp_path / EPOCHS, 8192
    log = EpochLog(path, bytes_max)
    for epoch in range(100):
        log.add(outcome_of(epoch))
    assert path.stat().st_size + older(path).stat().st_size <= bytes_max + 2048
    assert [line["epoch"] for line in EpochTail(path).new()][-1] == 99


def test_phase_2_is_in_the_line_after_its_epoch(tmp_path: Path) -> None:
    from procession.driver.round_times import EpochTimes

    log, first = EpochLog(tmp_path / EPOCHS), EpochTimes(0)
    log.add(outcome_of(0), first)
    first.phase2_s["out"] = 0.5
    log.add(outcome_of(1), EpochTimes(1))
    assert [line.get("phase2_before_s") for line in EpochTail(tmp_path / EPOCHS).new()] == [None, {"out": 0.5}]
