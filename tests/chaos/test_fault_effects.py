"""The harness reports faults with and without effect. The cluster is a fake that counts epochs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from procession.chaos import harness as harness_module
from procession.chaos.chaos_workload import FileWorkload
from procession.chaos.cluster_view import Cluster
from procession.chaos.fault_injector import FAULT_EPOCHS_MAX
from procession.chaos.harness import Harness
from procession.chaos.monitor import Failed
from procession.chaos.output_monitor import MonitoredOutputs
from procession.chaos.scenario import LEFT, WORKER, FaultAction, FaultStep
from procession.verify.decided import Decisions


class FakeSupervisor:
    held: frozenset[str] = frozenset()

    def has(self, name: str) -> bool:
        return False


class FakeCluster:
    """A cluster whose parts all run well, regardless of the fault file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.behaviour = directory / "behaviour"
        self.supervisor = FakeSupervisor()
        self.armed: list[str] = []

    def arm(self, name: str, point: str) -> None:
        self.armed.append(point)

    def disarm(self, name: str) -> bool:
        return True

    def workers(self) -> list[int]:
        return []


class FakeMonitor:
    """A monitor that commits an epoch at every look and calls `dies` at the third."""

    is_settled = True

    def __init__(self, dies: Callable[[], None] = lambda: None) -> None:
        self.epoch = 0
        self._dies = dies

    def until(self, holds: Callable[[], bool], what: str) -> None:
        while not holds():
            self.epoch += 1
            if self.epoch == 3:
                self._dies()
            assert self.epoch < 10 * FAULT_EPOCHS_MAX, f"timed out waiting for {what}"


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    monkeypatch.setattr(harness_module, "FAULT_TIMEOUT_S", 0.0)
    monkeypatch.setattr(FileWorkload, "feed", lambda self: None)
    outputs = MonitoredOutputs({}, lambda visible: cast(Decisions, None))
    harness = Harness(cast(Cluster, FakeCluster(tmp_path)), outputs=outputs)
    harness._monitor = cast(Any, FakeMonitor())
    return harness


@pytest.mark.parametrize("do", [FaultAction.FULL, FaultAction.BAD_SYNC])
def test_a_part_that_continues_with_a_bad_disk_has_failed(harness: Harness, do: FaultAction) -> None:
    harness._injector.do(FaultStep(do, LEFT, detail="3" if do is FaultAction.BAD_SYNC else ""))
    with pytest.raises(Failed, match=f"on {LEFT}.*it had no effect during"):
        harness._until_happened(FaultStep(do, LEFT))


@pytest.mark.parametrize("do", [FaultAction.FULL, FaultAction.BAD_SYNC])
def test_a_part_that_ends_because_of_its_bad_disk_has_passed(harness: Harness, do: FaultAction) -> None:
    history = harness.history
    harness._monitor = cast(Any, FakeMonitor(lambda: history.event(1.0, LEFT, f"{LEFT} ended with status 3")))
    harness._until_happened(FaultStep(do, LEFT))
    assert not history.notes


def test_a_fault_point_that_is_never_reached_is_reported_in_a_note(harness: Harness) -> None:
    harness._until_happened(FaultStep(FaultAction.ARM, LEFT, detail="sink:before-vote"))
    assert harness.history.notes == ["arm sink:before-vote on sink-left did not happen within 0 s"]


@pytest.mark.parametrize(
    ("step", "note"),
    [
        (FaultStep(FaultAction.KILL, LEFT), "kill on sink-left found it gone"),
        (FaultStep(FaultAction.WORKER, WORKER, detail="3"), "worker 3 on worker found none"),
    ],
)
def test_a_fault_without_effect_is_reported_in_a_note(harness: Harness, step: FaultStep, note: str) -> None:
    harness._take(step)
    assert harness.history.notes == [note]
