"""A race of two sinks for one output ends with exactly one of them, on a fake cluster."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from procession.chaos import sink_race
from procession.chaos.cluster_view import Cluster
from procession.chaos.fault_injector import FaultInjector
from procession.chaos.history import History
from procession.chaos.monitor import Failed, Monitor
from procession.chaos.scenario import SAME_DIRECTORY, SECOND_SINK
from procession.chaos.sink_race import STOPPED, SinkRace

SINK = "sink-topic"
POINT = "sink:kafka-sent"


class FakeSupervisor:
    def __init__(self) -> None:
        self.held: set[str] = set()
        self.running = {SINK}
        self.released: list[str] = []

    def pid(self, name: str) -> int | None:
        return 1 if name in self.running else None

    def kill(self, name: str) -> None:
        self.running.discard(name)

    def release(self, name: str) -> None:
        self.held.discard(name)
        self.released.append(name)


class FakeCluster:
    """A cluster on which a second sink can start. If `is_refused`, it ends at once; if `is_fenced`, the first one ends
    when it continues."""

    def __init__(self, directory: Path, *, is_refused: bool, is_fenced: bool) -> None:
        self.directory = directory
        self.supervisor = FakeSupervisor()
        self.is_refused, self.is_fenced = is_refused, is_fenced
        self.ended: list[bool] = []
        self.signals: list[int] = []
        self.is_stopped = False

    def arm(self, name: str, point: str) -> None:
        assert (name, point) == (SINK, f"pause:{POINT}")
        self.is_stopped = True

    def disarm(self, name: str) -> bool:
        return True

    def state(self, name: str) -> str:
        return STOPPED if self.is_stopped else "S"

    def start_second_sink(self, sink: str, *, is_copy: bool) -> None:
        if not self.is_refused:
            self.supervisor.running.add(SECOND_SINK)

    def end_second_sink(self, sink: str, *, is_promoted: bool) -> None:
        self.supervisor.running.discard(SECOND_SINK)
        self.ended.append(is_promoted)

    def signal_all(self, name: str, number: int) -> None:
        self.signals.append(number)
        if self.is_fenced:
            self.supervisor.running.discard(name)


class FakeMonitor:
    """A monitor that commits an epoch at every look."""

    epoch = 0
    renewed: tuple[str, ...] = ()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        while not holds():
            self.epoch += 1

    def renew(self, part: str) -> None:
        self.renewed = (*self.renewed, part)


def race(cluster: FakeCluster, detail: str) -> FakeMonitor:
    monitor = FakeMonitor()
    injector = FaultInjector(cast(Cluster, cluster), History(0))
    SinkRace(cast(Cluster, cluster), injector, cast(Monitor, cast(Any, monitor)), monitor.until).run(SINK, detail)
    return monitor


def test_a_second_sink_on_the_same_directory_that_is_not_refused_is_a_violation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_race, "REFUSAL_S", 0.0)
    with pytest.raises(Failed, match="two sinks run on the same directory"):
        race(FakeCluster(tmp_path, is_refused=False, is_fenced=False), SAME_DIRECTORY)


def test_a_second_sink_on_the_same_directory_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path, is_refused=True, is_fenced=False)
    race(cluster, SAME_DIRECTORY)
    assert cluster.ended == [False]
    assert not cluster.signals
    assert SINK not in cluster.supervisor.held


def test_when_the_second_sink_is_refused_the_first_continues(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path, is_refused=True, is_fenced=False)
    race(cluster, POINT)
    assert cluster.signals == [signal.SIGCONT]
    assert cluster.ended == [False]
    assert cluster.supervisor.running == {SINK}


@pytest.mark.parametrize("is_fenced", [False, True])
def test_a_second_sink_that_takes_over_replaces_the_first(tmp_path: Path, is_fenced: bool) -> None:
    cluster = FakeCluster(tmp_path, is_refused=False, is_fenced=is_fenced)
    monitor = race(cluster, POINT)
    assert cluster.ended == [True]
    assert cluster.supervisor.released == [SINK], "the sink is restarted on the directory of the winner"
    assert not cluster.supervisor.running
    assert monitor.renewed == (SINK,), "the progress of the other sink does not count as its recovery"
