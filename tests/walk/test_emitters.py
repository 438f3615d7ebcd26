"""Emitters on real Spark write what the driver would write, also when they are killed."""

from __future__ import annotations

import json
import os
import signal
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from procession.deployment.local_pipeline import COMMAND, DRIVER, EMITTER, announced_in
from procession.deployment.settings import Settings
from procession.faults import FILE_VARIABLE
from procession.sdk import merged
from procession.storage.host_runs import DIRECTORY_VARIABLE
from procession.storage.secret import Secret, make_pipeline_private, make_secret, path_of
from procession.supervisor.part import Part
from tests.slow_cases import slow
from tests.walk.cluster import Cluster, committed, wait_for

APP = """
from procession import Pipeline

pipeline = Pipeline("sent", parallelism=2)
lines = pipeline.source("lines")
lines.sink("lanes", to="lanes:lanes", lanes=3)
lines.key_by(lambda line: line[-1:]).sink("keyed", to="file:out", order="key", connections=3)
"""
PATIENCE_S = 300.0
"""It ends a hang. A restart of Spark takes a minute on a busy machine."""
WHOLE = """
lines.sink("whole", to="file:whole")
"""
RECORDS = 600


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A pipeline whose emitter runs for itself, and fetches from a host service."""
    place = tmp_path_factory.mktemp("remote")
    host = Part("host", (*COMMAND, "host", "--dir", str(place / "host"), "--listen", "127.0.0.1:0"))
    settings = Settings(epoch_interval_s=0.02, epoch_records_max=200, host_services=True, flight="127.0.0.1:0")
    with Cluster(place, APP + WHOLE, settings, PATIENCE_S) as cluster:
        local = cluster.local
        make_pipeline_private(place)
        make_secret(place, Secret.CONTROL)
        argv = (*host.argv, "--control-cookie-file", str(path_of(place, Secret.CONTROL)))
        cluster.supervisor.start(replace(host, argv=argv, is_ready=announced_in(place / "host" / "host.json")))
        faulty = {FILE_VARIABLE: str(cluster.fault)}
        env = {**local.env, DRIVER: {**faulty, DIRECTORY_VARIABLE: str(place / "host")}, EMITTER: faulty}
        cluster.local = replace(local, env=env)
        cluster.local.start_emitter()
        assert cluster.supervisor.wait_ready("host", EMITTER), cluster.describe()
        at = settings.model_copy(update={"emitters_at": cluster.local.emitter_address})
        cluster.local = replace(cluster.local, settings=at)
        assert cluster.local.start(), cluster.describe()
        # The records are so long that their order keys hardly count.
        long = [line.replace(b"record", b"record " + 200 * b"-") for line in cluster.numbered(RECORDS)]
        cluster.until_done(cluster.send(long))
        yield cluster


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


def test_the_driver_fetches_nothing_of_what_an_emitter_sends(remote: Cluster) -> None:
    def fetched() -> int:
        try:
            found = json.loads((remote.directory / "driver-status.json").read_text())
        except (FileNotFoundError, ValueError):
            return 0
        return int(found["fetched_bytes"])

    sent = sum(len(path.read_bytes()) for path in remote.inputs)
    wait_for(lambda: fetched() >= sent, "the report of what the driver fetched for the sink with one connection")
    # A sink of three connections and one of three lanes would make it three times as much.
    assert fetched() < 2 * sent
    assert remote.committed("whole").splitlines() == b"".join(path.read_bytes() for path in remote.inputs).splitlines()
    check_outputs(remote)


@pytest.mark.parametrize("point", ["driver:before-phase1", "emitter:voted", "emitter:before-phase2"])
def test_an_emitter_at_an_address_that_dies_within_a_round_loses_and_duplicates_nothing(
    remote: Cluster, point: str
) -> None:
    deaths, restarts = remote.restarts(EMITTER), remote.restarts(DRIVER)
    remote.arm(point)
    source = remote.send(remote.numbered(RECORDS))
    remote.until(lambda: not remote.fault.exists(), f"the death at {point}")
    remote.until_done(source)
    died = remote.restarts(EMITTER) - deaths, remote.restarts(DRIVER) - restarts
    # The driver also sends, to the sink with one connection.
    assert died == (1, 0) or (point == "driver:before-phase1" and died == (0, 1))
    check_outputs(remote)


def test_an_emitter_and_a_driver_that_are_killed_together_lose_and_duplicate_nothing(remote: Cluster) -> None:
    source = remote.send(remote.numbered(RECORDS), rate=200)
    epoch = remote.log().committed
    remote.until(lambda: remote.log().committed > epoch + 1, "two epochs")
    for part in (EMITTER, DRIVER):
        pid = remote.supervisor.pid(part)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    remote.until_done(source)
    check_outputs(remote)
