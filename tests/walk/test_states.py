"""States and crashes: what is remembered and what is written are committed together or not at all, though every run of
an epoch would write something else; and a program that has changed is told what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.ops.config import Settings
from procession.ops.local import DRIVER
from procession.ops.supervise import PartFailed

from .cluster import Cluster

APP = '''
import os
from procession import Pipeline

def salted(state, payload):
    """Each record of a key tells the salt of the one before, and its own: made anew whenever an epoch is run again."""
    salt = os.urandom(4).hex()
    return {"salt": salt, "count": state["count"] + 1}, f"{payload} {state['count']} {state['salt']} {salt}"

pipeline = Pipeline("walk", parallelism=2)
lines = pipeline.source("lines", codec="text")
salty = lines.map_stateful(salted, key=lambda line: line[-1], initial={"salt": "-", "count": 0}, name="salted")
salty.sink("one", to="file:one")
salty.sink("two", to="file:two")
'''
SETTINGS = Settings(epoch_interval_s=0.02, epoch_records_max=100)
RECORDS = 300


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("states"), APP, SETTINGS) as cluster:
        assert cluster.local.start()
        cluster.until_done(cluster.send(cluster.numbered(RECORDS)))
        yield cluster


def everything_is_there_once_and_remembered(cluster: Cluster) -> None:
    expected = b"".join(path.read_bytes() for path in cluster.inputs).decode().splitlines()
    one = cluster.committed("one")
    assert one == cluster.committed("two")
    told = [line.rsplit(" ", 3) for line in one.decode().splitlines()]
    assert [line for line, *_ in told] == expected
    remembered: dict[str, tuple[int, str]] = {}
    for line, count, before, salt in told:
        assert remembered.get(line[-1], (0, "-")) == (int(count), before)
        remembered[line[-1]] = int(count) + 1, salt


POINTS = [
    "driver:before-record",
    pytest.param("driver:after-offsets", marks=pytest.mark.slow),
    pytest.param("driver:between-votes", marks=pytest.mark.slow),
    "driver:after-record",
    pytest.param("driver:before-phase2", marks=pytest.mark.slow),
    pytest.param("driver:before-ack", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("point", POINTS)
def test_i9_states_and_output_stay_together_wherever_the_driver_is_killed(cluster: Cluster, point: str) -> None:
    cluster.arm(point)
    source = cluster.send(cluster.numbered(RECORDS))
    cluster.until_dead(DRIVER)
    cluster.until_done(source)
    everything_is_there_once_and_remembered(cluster)


def test_files_that_no_epoch_needs_are_removed(cluster: Cluster) -> None:
    (directory,) = (cluster.directory / "state").iterdir()
    last = cluster.rounds().read(cluster.log().committed)
    assert last is not None
    named = {name for version in last.states.values() for name in version.names}
    assert named
    assert named <= {path.name for path in directory.iterdir()}
    # Those of the epoch before go when this one is committed; others were left by drivers that were killed.
    assert len(list(directory.iterdir())) < 40


def restarted(directory: Path, app: str) -> str:
    """What a changed program on the same checkpoint is told."""
    with Cluster(directory, app, SETTINGS) as cluster:
        try:
            cluster.local.start()
            cluster.until(lambda: False, "the end of the driver")
        except PartFailed as failed:
            return failed.sentence
    raise AssertionError("it went on")


def test_a_changed_program_is_told_what_to_do(cluster: Cluster) -> None:
    cluster.supervisor.stop()
    current = (cluster.directory / "checkpoint" / "CURRENT").read_text()
    told = restarted(cluster.directory, APP.replace('name="salted"', 'name="spiced"'))
    assert "states of stage 'salted', and the program keeps them for 'spiced'" in told
    assert "give it name='salted'" in told
    # Nothing was claimed: a driver that was at work would still be.
    assert (cluster.directory / "checkpoint" / "CURRENT").read_text() == current
