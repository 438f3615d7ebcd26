"""A sink with several connections: each has its share of the keys, in order, and all commit an epoch together, also
when the process of one connection is killed.

`narrow` has three connections to one process. `keyed` has two, each to its own process; its records get a salt that is
new in each attempt of an epoch, and `twin` must have the same salts.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.deployment.local_pipeline import DRIVER, LocalPipeline
from procession.deployment.settings import Settings
from procession.sdk.transaction_log import uncommitted
from procession.verify.comparison import ComparisonRequest, judge
from procession.verify.order import PromisedOrder
from procession.verify.sink_outputs import written_in
from tests.slow_cases import slow
from tests.walk.cluster import Cluster, committed, stopped

APP = """
import os
from procession import Pipeline

def last(payload):
    return payload[-1:]

def salted(payload):
    return os.urandom(4).hex().encode() + payload

pipeline = Pipeline("shares", order="key", parallelism=2)
lines = pipeline.source("lines").key_by(last)
lines.sink("narrow", to="file:out", connections=3)
keyed = lines.map(salted).rebalance(last, parallelism=3)
keyed.sink("keyed", to="file:salty", connections=2)
keyed.sink("twin", to="file:out", connections=2)
"""
RECORDS = 600
APART = "keyed.1"


class Apart(LocalPipeline):
    """A pipeline with a sink whose second connection has its own process."""

    @property
    def sink_directories(self) -> dict[str, Path]:
        return {**super().sink_directories, APART: self.base / "apart"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = Settings(epoch_interval_s=0.02, epoch_records_max=200)
    with Cluster(tmp_path_factory.mktemp("shares"), APP, settings) as cluster:
        cluster.local = Apart(**vars(cluster.local))
        assert cluster.local.start()
        cluster.until_done(cluster.send(cluster.numbered(RECORDS)))
        yield cluster


def lines_of(cluster: Cluster, sink: str, number: int) -> list[bytes]:
    folder = {"narrow": "out", "twin": "out", "keyed": "apart" if number else "salty"}[sink]
    return committed(cluster.directory / folder / f"shares-{sink}-{number}").splitlines()


def connection_of(line: bytes, connections: int) -> int:
    return zlib.crc32(line[-1:]) % 4096 % connections


def every_key_is_there_once_and_in_order(cluster: Cluster) -> None:
    sent = b"".join(path.read_bytes() for path in cluster.inputs).splitlines()
    for number in range(3):
        assert lines_of(cluster, "narrow", number) == [line for line in sent if connection_of(line, 3) == number]
    for number in range(2):
        salted = lines_of(cluster, "keyed", number)
        assert salted == lines_of(cluster, "twin", number), "two sinks have had different runs of an epoch"
        got = [line[8:] for line in salted]
        for digit in (b"%d" % digit for digit in range(10)):
            own = [line for line in sent if line[-1:] == digit and connection_of(line, 2) == number]
            assert [line for line in got if line[-1:] == digit] == own


def test_each_key_is_in_one_output_in_order_and_the_round_has_a_part_for_each(cluster: Cluster) -> None:
    every_key_is_there_once_and_in_order(cluster)
    record = cluster.rounds().read(cluster.log().committed)
    assert record is not None
    assert sorted(record.parts) == ["keyed.0", "keyed.1", "narrow.0", "narrow.1", "narrow.2", "twin.0", "twin.1"]
    ends = [record.parts[f"narrow.{number}"].end for number in range(3)]
    assert ends == [sum(len(line) + 1 for line in lines_of(cluster, "narrow", number)) for number in range(3)]
    assert all(ends)
    out = cluster.directory / "out"
    assert [output.name for output in written_in(out)] == ["shares-narrow", "shares-twin"]
    question = ComparisonRequest(cluster.inputs, out, "shares-narrow", PromisedOrder.KEY, key_of=lambda line: line[-1:])
    assert judge(question).is_clean


@pytest.mark.parametrize(
    "point", [slow("sink:before-vote"), "sink:after-vote-before-reply", slow("sink:before-commit")]
)
def test_a_sink_that_dies_with_some_of_the_connections_comes_back_and_all_commit_together(
    cluster: Cluster, point: str
) -> None:
    parts = [*cluster.local.sink_parts.values(), DRIVER]
    before = {part: cluster.restarts(part) for part in parts}
    cluster.arm(point)
    cluster.until_done(cluster.send(cluster.numbered(RECORDS)))
    assert not cluster.fault.exists()
    assert sum(cluster.restarts(part) for part in parts) == sum(before.values()) + 1
    assert cluster.restarts(DRIVER) == before[DRIVER]
    every_key_is_there_once_and_in_order(cluster)


def test_the_process_behind_one_connection_is_killed_while_all_others_have_voted(cluster: Cluster) -> None:
    """The process is suspended before its vote and then killed. It is restarted, and gets the same runs in a new
    transaction."""
    apart = cluster.local.sink_parts[cluster.directory / "apart"]
    pid = cluster.supervisor.pid(apart)
    assert pid is not None
    with stopped(pid):
        source = cluster.send(cluster.numbered(RECORDS))
        voted = [cluster.directory / "out" / f"shares-narrow-{number}.txnlog" for number in range(3)]
        cluster.until(lambda: all(uncommitted(log) for log in voted), "the votes of the others")
        cluster.supervisor.kill(apart)
    cluster.until_done(source)
    every_key_is_there_once_and_in_order(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["driver:between-votes", "driver:between-phase2"])
def test_a_driver_that_dies_between_two_connections_is_followed_by_one_that_completes_the_round(
    cluster: Cluster, point: str
) -> None:
    restarts = cluster.restarts(DRIVER)
    cluster.arm(point)
    cluster.until_done(cluster.send(cluster.numbered(RECORDS)))
    assert cluster.restarts(DRIVER) == restarts + 1
    every_key_is_there_once_and_in_order(cluster)
