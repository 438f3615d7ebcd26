"""The violations that the monitor finds, on a fake cluster."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import cast

import pytest

from procession.chaos.chaos_records import records, tag
from procession.chaos.cluster_view import Cluster, Death
from procession.chaos.fault_injector import AllowedExit, FaultInjector
from procession.chaos.history import History
from procession.chaos.monitor import Failed, Monitor
from procession.chaos.output_monitor import MonitoredOutputs, MonitoredStream
from procession.connectors.file_source import stream_id_of
from procession.verify.verdict import Outcome
from tests.chaos.fake_cluster import FakeCluster

COUNT = 40


class World:
    def __init__(self, directory: Path) -> None:
        self.fake = FakeCluster(directory)
        self.path = directory / f"{tag(0)}.txt"
        self.path.write_bytes(b"".join(line + b"\n" for line in records(tag(0), COUNT)))
        self.id = stream_id_of(self.path)
        cluster = cast(Cluster, self.fake)
        self.history = History(0)
        self.outputs = MonitoredOutputs(self.fake.instances(), self.fake.decisions)
        self.outputs.expect(MonitoredStream(tag(0), self.path, COUNT))
        self.injector = FaultInjector(cluster, self.history)
        self.monitor = Monitor(cluster, self.history, self.injector, self.outputs, 0.2, lambda _: None)
        self.monitor.is_awaiting = False


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_decided_output_may_be_visible_and_acknowledged(world: World) -> None:
    world.fake.commit(world.path)
    world.fake.acknowledge(world.path, 51)
    world.monitor.poll()
    assert {verdict.outcome for verdict in world.outputs.compare_all().values()} == {Outcome.CLEAN}


@pytest.mark.parametrize("decided", [None, 51])
def test_an_acknowledgement_beyond_what_is_decided_is_a_violation(world: World, decided: int | None) -> None:
    world.fake.heard = {world.id: 102}
    world.fake.positions = {} if decided is None else {world.id: decided}
    with pytest.raises(
        Failed, match="the producer of stream s0000 was told that it is committed up to 102, but"
    ) as info:
        world.monitor.poll()
    assert info.value.kind == "violation"


def test_a_gateway_that_reports_more_than_is_decided_is_a_violation(world: World) -> None:
    world.fake.gateway_says = [{"id": world.id, "name": "s0000.txt", "committed": 102, "seen": 102}]
    world.fake.positions = {world.id: 51}
    with pytest.raises(Failed, match=r"s0000\.txt is acknowledged up to 102, but committed up to 51"):
        world.monitor.poll()


def test_acknowledgements_are_not_checked_while_a_driver_takes_over(world: World) -> None:
    world.fake.heard = {world.id: 102}
    world.fake.positions = None
    world.monitor.poll()
    world.fake.positions = {world.id: 51}
    with pytest.raises(Failed, match="was told"):
        world.monitor.check()


def test_visible_output_without_a_decision_is_a_violation(world: World) -> None:
    world.fake.commit(world.path)
    world.fake.committed = -1
    with pytest.raises(Failed, match="is visible, but no round decided to commit it"):
        world.monitor.poll()


def test_acknowledged_records_that_are_missing_are_counted(world: World) -> None:
    world.fake.commit(world.path, COUNT - 2)
    world.fake.acknowledge(world.path, 51 * (COUNT - 2))
    world.monitor.poll()
    for verdict in world.outputs.compare_all().values():
        assert (verdict.outcome, verdict.lost, verdict.acknowledged_lost) == (Outcome.VIOLATED, 2, 1)


@pytest.mark.parametrize(
    ("heard", "is_named", "why"),
    [(False, True, "No producer logged its acknowledgements"), (True, False, "No round record named")],
)
def test_output_that_was_never_compared_with_a_decision_is_not_clean(
    world: World, heard: bool, is_named: bool, why: str
) -> None:
    world.fake.commit(world.path)
    if heard:
        world.fake.acknowledge(world.path, 51)
    if not is_named:
        world.fake.rounds.clear()
    world.monitor.poll()
    for verdict in world.outputs.compare_all().values():
        assert verdict.outcome is Outcome.UNKNOWN
        assert why in verdict.why


@pytest.mark.parametrize("status", [0, 1, -signal.SIGKILL])
def test_an_unexpected_death_is_a_failure_whatever_its_status(world: World, status: int) -> None:
    world.fake.supervisor.deaths.append(Death("sink-left", status, time.monotonic(), False, "bye"))
    with pytest.raises(Failed, match="and no injected fault explains this") as info:
        world.monitor.poll()
    assert info.value.kind == "death"


def test_a_spare_that_dies_is_a_failure_unless_its_part_is_excused(world: World) -> None:
    spare = Death("driver", -signal.SIGKILL, time.monotonic(), False, "", is_spare=True)
    world.injector.allowed_exits["driver"] = AllowedExit((-signal.SIGKILL,))
    world.fake.supervisor.deaths.append(spare)
    world.monitor.poll()
    assert not world.history.recoveries.events, "the driver itself lives"
    world.injector.allowed_exits.clear()
    world.fake.supervisor.deaths.append(spare)
    with pytest.raises(Failed, match="the spare of driver ended with signal 9"):
        world.monitor.poll()


def test_a_part_that_was_not_ready_in_time_is_reported_in_a_note(world: World) -> None:
    world.fake.supervisor.deaths.append(Death("driver", -9, time.monotonic(), True, "was not ready", is_late=True))
    world.monitor.poll()
    assert world.history.notes == ["driver was not ready, and was started again"]
