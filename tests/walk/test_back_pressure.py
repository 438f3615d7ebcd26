"""Back-pressure from end to end with real Spark: a slow sink slows the epochs, the waiting records reduce the credits,
and the producer waits.

Nothing is lost, and neither memory nor log grow. The same holds while Spark is suspended.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from procession.bench.producers import resident_bytes
from procession.deployment.local_pipeline import DRIVER
from procession.deployment.settings import Settings
from tests.walk.cluster import Cluster, session_of, stopped

APP = """
from procession import Pipeline

pipeline = Pipeline("pressed", parallelism=2)
pipeline.source("lines").sink("out", to="file:out")
"""
MIB = 1024 * 1024
RECORDS, SIZE = 60_000, 200
EPOCH_RECORDS = 4_000
CREDITS_MIN = 64
LAG_BYTES_MAX = MIB
OVERRUN_BYTES_MAX = MIB
LOG_BYTES_MAX = LAG_BYTES_MAX + OVERRUN_BYTES_MAX + 2 * MIB
"""The sum of the limits, plus one read and one step of the count."""
GROWTH_BYTES_MAX = 48 * MIB
"""The memory that a process may grow by. The records that producers send are more than that."""
ASLEEP_S, AWAKE_S = 0.5, 0.03
"""Pauses of a slow sink, which is suspended for most of the time."""


@dataclass
class Seen:
    """The extreme value of each figure over all polls."""

    lag_bytes: int = 0
    window_min: int = 1 << 62
    held: int = 0
    """The number of polls at which no producer was allowed a credit."""
    memory: dict[str, int] = field(default_factory=dict)

    def poll(self, cluster: Cluster, pids: dict[str, int]) -> dict[str, Any]:
        status = cluster.status()
        self.lag_bytes = max(self.lag_bytes, status["lag_bytes"])
        self.window_min = min(self.window_min, status["window"])
        self.held += status["buffered"] >= status["window"] or status["lag_bytes"] > LAG_BYTES_MAX
        for name, pid in pids.items():
            self.memory[name] = max(self.memory.get(name, 0), resident_bytes(pid))
        return status


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = Settings(
        epoch_interval_s=0.02,
        epoch_records_max=EPOCH_RECORDS,
        credits="adaptive",
        latency_target_s=0.5,
        credits_min=CREDITS_MIN,
        lag_bytes_max=LAG_BYTES_MAX,
        overrun_bytes_max=OVERRUN_BYTES_MAX,
    )
    with Cluster(tmp_path_factory.mktemp("pressed"), APP, settings) as cluster:
        assert cluster.local.start()
        cluster.until_done(cluster.send(lines(cluster, 5_000)))
        yield cluster


def lines(cluster: Cluster, count: int) -> list[bytes]:
    return [line.ljust(SIZE, b".") for line in cluster.numbered(count)]


def epochs_s(cluster: Cluster) -> list[float]:
    lines = (cluster.directory / "epochs.jsonl").read_text().splitlines()
    return [json.loads(line)["seconds"] for line in lines]


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """Suspend the process for most of the time during the block."""
    is_over = threading.Event()

    def slow() -> None:
        while not is_over.is_set():
            os.kill(pid, signal.SIGSTOP)
            is_over.wait(ASLEEP_S)
            os.kill(pid, signal.SIGCONT)
            is_over.wait(AWAKE_S)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        os.kill(pid, signal.SIGCONT)


def pids_of(cluster: Cluster, source: str) -> dict[str, int]:
    found = {name: cluster.supervisor.pid(name) for name in ("gateway", source, DRIVER)}
    return {name: pid for name, pid in found.items() if pid is not None}


def check_bounded(seen: Seen, before: dict[str, int]) -> None:
    assert seen.lag_bytes <= LOG_BYTES_MAX
    for name, bytes_then in before.items():
        assert seen.memory[name] - bytes_then < GROWTH_BYTES_MAX, name


def all_is_there(cluster: Cluster) -> bool:
    return cluster.committed("out") == b"".join(path.read_bytes() for path in cluster.inputs)


def test_a_slow_sink_slows_spark_and_that_shrinks_the_credits_until_the_producer_waits(cluster: Cluster) -> None:
    quick, window = len(epochs_s(cluster)), cluster.status()["window"]
    sink = cluster.supervisor.pid("sink-0")
    assert sink is not None
    seen = Seen()
    with slowed(sink):
        source = cluster.send(lines(cluster, RECORDS))
        pids = pids_of(cluster, source)
        cluster.until(lambda: seen.poll(cluster, pids)["buffered"] > 0, "the first records")
        before = dict(seen.memory)
        slow_from = time.monotonic()
        cluster.until(lambda: bool(seen.poll(cluster, pids)) and len(epochs_s(cluster)) >= quick + 6, "slow epochs")
        took_s = time.monotonic() - slow_from
        status = seen.poll(cluster, pids)
        assert seen.held, "no producer ever had to wait"
        assert seen.window_min < window or window == CREDITS_MIN, "waiting records did not shrink the window"
        assert status["records_in"] < RECORDS + 5_000, "the producer was not slowed down"
        assert not cluster.supervisor.is_done(source)
    slow = epochs_s(cluster)[quick:]
    assert took_s > 3 * ASLEEP_S, "epochs do not wait for the sink"
    assert sorted(slow)[len(slow) // 2] > 0.2
    cluster.until(lambda: bool(seen.poll(cluster, {})) and cluster.supervisor.is_done(source), "all of it")
    check_bounded(seen, before)
    assert all_is_there(cluster)


@pytest.mark.parametrize("stopped_s", [2.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_a_pipeline_that_stands_still_while_a_producer_pushes_loses_nothing_and_grows_nothing(
    cluster: Cluster, stopped_s: float
) -> None:
    driver = cluster.supervisor.pid(DRIVER)
    assert driver is not None
    seen = Seen()
    with stopped(*session_of(driver)):
        source = cluster.send(lines(cluster, RECORDS))
        pids = pids_of(cluster, source)
        cluster.until(lambda: bool(seen.poll(cluster, pids)) and seen.held > 2, "the producer to be held")
        before, held_at = dict(seen.memory), cluster.status()["next_sequence"]
        over_at = time.monotonic() + stopped_s
        cluster.until(lambda: bool(seen.poll(cluster, pids)) and time.monotonic() > over_at, "the time to pass")
        assert cluster.status()["next_sequence"] - held_at < EPOCH_RECORDS, "the gateway keeps admitting records"
    cluster.until_done(source)
    check_bounded(seen, before)
    assert all_is_there(cluster)
