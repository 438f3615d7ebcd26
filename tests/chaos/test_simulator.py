"""The simulator itself: a seed is a history, a plan can be written down and made smaller, old failures stay mended."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from procession.chaos.sim.disk import Directory, Disk, File
from procession.chaos.sim.plan import KINDS, Plan
from procession.chaos.sim.shrink import shrink
from procession.chaos.simulator import Tally, plan_of, run_plan, run_simulator, simulate

from .planted import what_was_seen_is_forgotten_on_reconnect

SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios").glob("*.json"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_what_once_failed_stays_mended(path: Path) -> None:
    breach = run_plan(Plan.from_json(path.read_text())).breach
    assert breach is None, json.loads(path.read_text())["why"]


def test_the_same_seed_is_the_same_history() -> None:
    for seed in range(5):
        assert run_plan(plan_of(seed), is_told=True) == run_plan(plan_of(seed), is_told=True)


def test_listening_to_the_story_changes_nothing() -> None:
    for seed in range(5):
        told, untold = run_plan(plan_of(seed), is_told=True), run_plan(plan_of(seed))
        assert told.story
        assert not untold.story
        assert (told.events, told.struck, told.epochs) == (untold.events, untold.struck, untold.epochs)


def test_a_plan_is_read_as_it_was_written() -> None:
    for seed in range(20):
        assert Plan.from_json(plan_of(seed).to_json()) == plan_of(seed)


def test_every_kind_of_fault_strikes() -> None:
    """In a hundred runs or so, but for the rarest."""
    tally = Tally()
    assert simulate((plan_of(seed) for seed in range(120)), tally) is None
    kinds = {kind for kinds in KINDS.values() for kind in kinds} | {"blackout"}
    assert len(set(tally.faults) & kinds) >= len(kinds) - 2
    assert tally.epochs > tally.runs


def test_a_failure_is_told_with_its_seed_and_shrunk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    what_was_seen_is_forgotten_on_reconnect(monkeypatch)
    said: list[str] = []
    assert not run_simulator(100, 21, say=said.append)
    seed, plan, smallest = int(said[0].split(":")[0].removeprefix("seed ")), said[1], said[-1].splitlines()[-1]
    assert Plan.from_json(plan.removeprefix("plan: ")) == plan_of(seed)
    assert len(Plan.from_json(smallest).faults) <= len(plan_of(seed).faults)
    again = tmp_path / "plan.json"
    again.write_text(smallest)
    assert not run_simulator(1, 0, plan_file=again, say=said.append)
    monkeypatch.undo()
    assert run_simulator(1, 0, plan_file=again, say=said.append)


def test_a_shrunk_plan_fails_too_and_has_nothing_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    what_was_seen_is_forgotten_on_reconnect(monkeypatch)
    plan = next(plan_of(seed) for seed in range(21, 200) if run_plan(plan_of(seed)).breach)
    smallest = shrink(plan, lambda candidate: run_plan(candidate).breach)
    assert run_plan(smallest).breach is not None
    assert sum(stream.records for stream in smallest.streams) <= sum(stream.records for stream in plan.streams)
    assert len(smallest.faults) <= 2


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


def test_a_power_cut_leaves_a_file_that_was_cut_as_it_was_or_as_it_is() -> None:
    file = File(b"syn")
    file.durable = b"synced"
    assert power_cuts(file) == {b"synced", b"syn"}


def test_of_the_names_in_a_directory_a_power_cut_keeps_the_first_few_changes_and_a_rename_is_whole() -> None:
    found = set()
    for seed in range(200):
        disk = Disk()
        disk.root.change({"draft": File(b"x")})
        disk.root.change({"draft": None, "name": disk.root.names["draft"]})
        disk.root.change({"other": Directory()})
        disk.cut_power(random.Random(seed))
        found.add(tuple(sorted(disk.root.names)))
    assert found == {(), ("draft",), ("name",), ("name", "other")}
