"""The simulator itself: a seed determines a run, plans can be stored and reduced, and old failures stay fixed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest

from procession.errors import ConfigError
from procession.sim.disk import Directory, Disk, File
from procession.sim.environment import Machine
from procession.sim.fault_plan import KINDS, FaultPlan, PlannedFault, SinkPlan, StreamPlan
from procession.sim.run_totals import RunTotals
from procession.sim.runner import BlockResult, plan_of, run_again, run_block, run_plan, run_seeds
from procession.sim.seed_blocks import BLOCK_RUNS
from procession.sim.shrink import shrink
from procession.sim.simulated_files import SimulatedFileSystem
from procession.sim.simulated_process import SimulatedProcess
from procession.sim.world import World
from tests.sim.planted import what_was_seen_is_forgotten_on_reconnect
from tests.walk.cluster import session_of, wait_for

SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios").glob("*.json"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_plan_that_once_failed_passes(path: Path) -> None:
    breach = run_plan(FaultPlan.from_json(path.read_text())).breach
    assert breach is None, json.loads(path.read_text())["why"]


def test_the_same_seed_gives_the_same_history() -> None:
    for seed in range(5):
        assert run_plan(plan_of(seed), is_recorded=True) == run_plan(plan_of(seed), is_recorded=True)


def test_recording_the_events_changes_nothing() -> None:
    for seed in range(5):
        recorded, untold = run_plan(plan_of(seed), is_recorded=True), run_plan(plan_of(seed))
        assert recorded.event_log
        assert not untold.event_log
        assert (recorded.events, recorded.injected, recorded.epochs) == (untold.events, untold.injected, untold.epochs)


def test_a_plan_is_read_as_it_was_written() -> None:
    for seed in range(20):
        assert FaultPlan.from_json(plan_of(seed).to_json()) == plan_of(seed)


FEW = '"seed": 1, "streams": [{"records": 1, "is_dense": true}], "sinks": [{}]'


@pytest.mark.parametrize(
    "text",
    [
        "# Procession",
        "{}",
        "[]",
        '{"plan": 3}',
        f'{{{FEW}, "faults": [], "colour": "red"}}',
        f'{{{FEW}, "faults": [], "tasks": []}}',
        '{"seed": 1, "streams": [], "sinks": [], "faults": []}',
        f'{{{FEW}, "faults": [], "gateways": 0}}',
        f'{{{FEW}, "faults": [], "credits_max": "many"}}',
        f'{{{FEW}, "faults": [{{"part": "driver", "step": 1, "kind": "earthquake", "seconds": 1}}]}}',
        f'{{{FEW}, "faults": [{{"part": "sink-1", "step": 1, "kind": "kill", "seconds": 1}}]}}',
    ],
)
def test_an_invalid_plan_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match="not a plan of a simulation"):
        FaultPlan.from_json(text)


@pytest.mark.parametrize("streams", [(), (StreamPlan(0, True),)], ids=("no streams", "no records"))
def test_a_plan_without_output_is_not_clean(streams: tuple[StreamPlan, ...]) -> None:
    report = run_again(FaultPlan(1, streams, (SinkPlan(),)))
    assert report.verdict == "unknown"
    assert next(report.lines()).startswith("unknown: ")


def test_every_kind_of_fault_happens() -> None:
    """Each occurs within about a hundred runs, except the rarest."""
    done = run_block(range(120))
    assert done.failing is None
    tally = done.tally
    kinds = {kind for kinds in KINDS.values() for kind in kinds} | {"blackout"}
    assert len(set(tally.faults) & kinds) >= len(kinds) - 2
    assert tally.epochs > tally.runs


def test_with_several_gateways_streams_move_leaders_restart_and_gateways_leave_and_return() -> None:
    plans = [plan for seed in range(400) if (plan := plan_of(seed)).gateways > 1]
    assert len(plans) > 60
    logs = [run_plan(plan, is_recorded=True).event_log for plan in plans[:60]]
    parts = [[(line.split()[1], line) for line in log] for log in logs]
    granted = [[(part, line) for part, line in log if "StreamGranted(" in line] for log in parts]
    opened = [{part for part, _ in log if part != "gateway"} for log in granted]
    anew = [sum(part == "gateway" and "= recovered" in line for part, line in log) for log in parts]
    moved = [sum("committed=None" not in line for part, line in log if part != "gateway") for log in granted]
    left = [sum("= has left" in line for _, line in log) for log in parts]
    assert sum(map(bool, opened)) > 15, "the leader grants streams to others"
    assert sum(moved) > 5, "a stream continues at another gateway"
    assert sum(count > 1 for count in anew) > 5
    assert sum(left) > 0


def test_a_failure_is_reported_with_its_seed_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    what_was_seen_is_forgotten_on_reconnect(monkeypatch)
    report = run_seeds(0, 100)
    assert report.verdict == "violated"
    first, plan, *_, smallest = report.lines()
    seed = int(first.split(":")[0].removeprefix("seed "))
    assert seed == report.next_seed - 1
    assert FaultPlan.from_json(plan.removeprefix("plan: ")) == plan_of(seed)
    assert len(FaultPlan.from_json(smallest).faults) <= len(plan_of(seed).faults)
    document = json.loads(json.dumps(report.as_dict()))["failure"]
    assert document["seed"] == seed
    assert FaultPlan.from_json(json.dumps(document["smallest"])) == FaultPlan.from_json(smallest)
    assert document["events"]
    assert run_again(FaultPlan.from_json(smallest)).verdict == "violated"
    monkeypatch.undo()
    assert run_again(FaultPlan.from_json(smallest)).verdict == "clean"


def test_several_processes_give_the_same_result_as_one() -> None:
    runs = BLOCK_RUNS + 50
    alone, together = run_seeds(0, runs).as_dict(), run_seeds(0, runs, jobs=2).as_dict()
    times = {"cpu_s", "seconds"}
    assert {name: alone[name] for name in alone.keys() - times} == {
        name: together[name] for name in together.keys() - times
    }


def test_the_processes_of_a_command_that_is_killed_end_with_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "procession", "simulate", "--runs", "1000000", "--jobs", "2"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            wait_for(lambda: len(session_of(process.pid)) >= 3, "the workers")
            process.kill()
            process.wait()
            wait_for(lambda: not session_of(process.pid), "the end of the workers")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_of_several_seeds_that_fail_the_lowest_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    what_was_seen_is_forgotten_on_reconnect(monkeypatch)
    lowest = next(seed for seed in range(85) if run_plan(plan_of(seed)).breach)
    report = run_seeds(0, 85)
    assert report.failure is not None
    assert report.failure.plan.seed == lowest


def test_an_interrupted_search_has_no_verdict_and_says_where_to_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seeds: range) -> BlockResult:
        if seeds[0] == 2 * BLOCK_RUNS:
            raise KeyboardInterrupt
        return BlockResult(RunTotals(runs=len(seeds)))

    monkeypatch.setattr("procession.sim.runner.run_block", interrupted)
    report = run_seeds(0, 5 * BLOCK_RUNS)
    assert report.verdict == "stopped"
    assert report.as_dict()["next_seed"] == 2 * BLOCK_RUNS
    assert f"the next seed is {2 * BLOCK_RUNS}" in list(report.lines())


def test_a_reduced_plan_still_fails_and_has_no_unnecessary_step(monkeypatch: pytest.MonkeyPatch) -> None:
    what_was_seen_is_forgotten_on_reconnect(monkeypatch)
    plan = next(plan_of(seed) for seed in range(200) if run_plan(plan_of(seed)).breach)
    smallest = shrink(plan, lambda candidate: run_plan(candidate).breach)
    assert run_plan(smallest).breach is not None
    assert sum(stream.records for stream in smallest.streams) <= sum(stream.records for stream in plan.streams)
    assert len(smallest.faults) <= 2


def test_i11_the_output_does_not_depend_on_tasks_or_epochs() -> None:
    outputs = set()
    for tasks, epoch_records_max in product(((1,), (2,), (3,), (3, 1, 2)), (1, 2, 1000)):
        kill = PlannedFault("driver", 60, "kill", 0.05)
        plan = FaultPlan(0, (StreamPlan(9, True),), (SinkPlan(),), (kill,), 16, epoch_records_max, tasks=tasks)
        world = World(plan, random.Random(0))
        assert world.run().breach is None
        outputs.add(
            b"".join(line.partition(b"#")[0] + b" " for line in world.site.oracle.outputs["sink-0"].splitlines())
        )
    assert outputs == {b"1:0@1 1:1@2 1:2@1 1:3@2 1:4@1 1:5@2 1:6@3 1:7@4 1:8@3 "}


def power_cuts(file: File) -> set[bytes]:
    found = set()
    for seed in range(200):
        copy = File(file.data)
        copy.durable = file.durable
        copy.cut_power(random.Random(seed))
        found.add(copy.data)
    return found


def test_a_power_cut_keeps_a_prefix_of_what_was_appended_and_all_that_was_synced() -> None:
    file = File(b"synced+new")
    file.durable = b"synced"
    assert power_cuts(file) == {b"synced", b"synced+", b"synced+n", b"synced+ne", b"synced+new"}


def test_a_power_cut_leaves_a_truncated_file_as_before_or_after() -> None:
    file = File(b"syn")
    file.durable = b"synced"
    assert power_cuts(file) == {b"synced", b"syn"}


def test_after_a_failed_sync_of_a_directory_its_names_exist_and_are_not_durable() -> None:
    world = World(plan_of(0), random.Random(0))
    machine = Machine("m")
    files = SimulatedFileSystem(SimulatedProcess(world.site, "p", machine), machine.disk)
    files.make_directory(Path("d"))
    machine.disk.fsync_failures = 1
    with pytest.raises(OSError, match="Input/output error"):
        files.sync_directory(Path())
    assert files.exists(Path("d"))
    assert machine.disk.durable_directory("d") is None
    files.sync_directory(Path())
    assert machine.disk.durable_directory("d") is not None


def test_a_power_cut_keeps_the_first_changes_of_a_directory_and_a_rename_is_atomic() -> None:
    found = set()
    for seed in range(200):
        disk = Disk()
        disk.root.change({"draft": File(b"x")})
        disk.root.change({"draft": None, "name": disk.root.names["draft"]})
        disk.root.change({"other": Directory()})
        disk.cut_power(random.Random(seed))
        found.add(tuple(sorted(disk.root.names)))
    assert found == {(), ("draft",), ("name",), ("name", "other")}
