"""Emitter processes on real Spark write what the driver would write, also when they are killed."""

from __future__ import annotations

import os
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.deployment.local_pipeline import DRIVER
from procession.deployment.settings import Settings
from procession.sdk import merged
from tests.slow_cases import slow
from tests.walk.cluster import Cluster, committed

APP = """
from procession import Pipeline

pipeline = Pipeline("sent", parallelism=2)
lines = pipeline.source("lines")
lines.sink("lanes", to="lanes:lanes", lanes=3)
lines.key_by(lambda line: line[-1:]).sink("keyed", to="file:out", order="key", connections=3)
"""
RECORDS = 600


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = Settings(epoch_interval_s=0.02, epoch_records_max=200, emitters=2)
    with Cluster(tmp_path_factory.mktemp("sent"), APP, settings) as cluster:
        assert cluster.local.start()
        cluster.until_done(cluster.send(cluster.numbered(RECORDS)))
        yield cluster


def emitters(cluster: Cluster) -> list[int]:
    driver = cluster.supervisor.pid(DRIVER)
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            is_emitter = b"emitter_process" in (path / "cmdline").read_bytes()
        except OSError:
            continue
        if is_emitter and parent == driver:
            found.append(int(path.name))
    return found


def check_outputs(cluster: Cluster) -> None:
    sent = b"".join(path.read_bytes() for path in cluster.inputs).splitlines()
    for number in range(3):
        share = [line for line in sent if zlib.crc32(line[-1:]) % 4096 % 3 == number]
        assert committed(cluster.directory / "out" / f"sent-keyed-{number}").splitlines() == share
    assert [record.payload for record in merged(f"lanes:{cluster.directory / 'lanes'}", verify=True)] == sent


def test_two_processes_send_what_one_driver_would(cluster: Cluster) -> None:
    assert len(emitters(cluster)) == 2
    check_outputs(cluster)


@pytest.mark.parametrize("point", ["driver:before-phase1", slow("driver:before-phase2"), slow("sink:before-commit")])
def test_a_process_that_dies_within_a_round_is_replaced_and_nothing_is_lost_or_doubled(
    cluster: Cluster, point: str
) -> None:
    before = emitters(cluster), cluster.restarts(DRIVER)
    cluster.arm(point)
    cluster.until_done(cluster.send(cluster.numbered(RECORDS)))
    assert not cluster.fault.exists()
    cluster.until(lambda: len(emitters(cluster)) == 2, "both emitter processes")
    if point == "driver:before-phase1":  # only a sender reaches this point
        assert emitters(cluster) != before[0]
        assert cluster.restarts(DRIVER) == before[1]
    check_outputs(cluster)


def test_all_of_them_are_killed_while_records_come(cluster: Cluster) -> None:
    source = cluster.send(cluster.numbered(RECORDS), rate=100)
    epoch = cluster.log().committed
    for _ in range(3):
        cluster.until(lambda after=epoch + 1: cluster.log().committed > after, "an epoch")
        epoch = cluster.log().committed
        for pid in emitters(cluster):
            os.kill(pid, signal.SIGKILL)
    cluster.until_done(source)
    check_outputs(cluster)
