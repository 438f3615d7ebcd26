"""`procession simulate --machines` runs both simulations in which machines are lost, and reports the result."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from procession.sim.lost_machine_runs import WORLDS, run_losses
from procession.sos.file_journal import FileJournal


def test_each_seed_is_run_in_both_simulations_and_counted() -> None:
    report = run_losses(3, 4)
    assert report.verdict == "clean"
    assert (report.totals.runs, report.next_seed) == (4 * len(WORLDS), 7)
    assert report.totals.acknowledged > 0
    assert report.totals.writers >= report.totals.runs
    assert report.totals.faults


def test_the_first_seed_that_fails_is_reported_with_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileJournal, "wait", lambda self, barrier: None)
    report = run_losses(0, 200)
    assert report.verdict == "violated"
    assert report.failure is not None
    assert report.failure.world == "directory"
    assert report.failure.event_log
    assert report.next_seed == report.failure.seed
    assert json.loads(json.dumps(report.as_dict()))["failure"]["seed"] == report.failure.seed


def test_the_command_prints_a_verdict_for_people_and_for_scripts() -> None:
    command = (sys.executable, "-m", "procession", "simulate", "--machines", "--runs", "2", "--jobs", "1")
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1].startswith("clean: 4 runs, ")
    figures = json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True).stdout)
    assert figures["verdict"] == "clean"
    assert figures["runs"] == 4
