"""`procession simulate` as a command: what it prints, for people and for scripts, and how it is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from procession.sim.runner import plan_of, run_seeds

SIMULATE = (sys.executable, "-m", "procession", "simulate")


def test_the_result_is_one_json_object_for_scripts_and_a_sentence_for_people() -> None:
    result = subprocess.run([*SIMULATE, "--runs", "5", "--seed", "7", "--json"], capture_output=True, check=True)
    figures = json.loads(result.stdout)
    assert figures["verdict"] == "clean"
    assert figures["next_seed"] == 12
    assert figures["events"] == run_seeds(7, 5).tally.events
    shown = subprocess.run([*SIMULATE, "--runs", "5", "--seed", "7"], capture_output=True, check=True, text=True)
    assert shown.stdout.splitlines()[-1].startswith(f"clean: 5 runs, {figures['records']} records")


def test_a_plan_in_a_file_is_run_and_its_events_printed(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(plan_of(3).to_json())
    result = subprocess.run([*SIMULATE, "--plan", str(plan), "--events", "--json"], capture_output=True, check=True)
    assert json.loads(result.stdout)["runs"] == 1
    assert json.loads(result.stdout)["events"]


def test_an_invalid_plan_is_reported_in_one_sentence_with_a_next_step(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"# no plan \xff")
    result = subprocess.run([*SIMULATE, "--plan", str(text)], capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert "This is not a plan of a simulation" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_interrupt_stops_all_processes_and_leaves_a_summary() -> None:
    arguments = [*SIMULATE, "--runs", "100000", "--jobs", "2", "--json"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0) as simulator:
        assert simulator.stderr is not None
        assert b"by 2 processes" in simulator.stderr.readline()
        os.killpg(simulator.pid, signal.SIGINT)  # as a terminal does: to all processes of the group
        stdout, stderr = simulator.communicate()
    assert simulator.returncode == 130
    assert json.loads(stdout)["verdict"] == "stopped"
    assert b"Traceback" not in stderr
