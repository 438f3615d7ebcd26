"""Processes are killed before, during and after exchanges: the output equals that of the sequential run, byte for byte.

Each record gets a random salt that selects its task, so a repeated task sends its records to other tasks than before. A
task that read from both attempts would lose or duplicate records.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.deployment.local_pipeline import DRIVER
from procession.deployment.settings import Settings
from tests.slow_cases import slow
from tests.walk.cluster import Cluster, jvms

APP = '''
import os
from pathlib import Path
from procession import Pipeline

def failing_at(place):
    """Kills whom the file that a record names tells it to, once, if it is here; the record passes unchanged."""
    def observe(payload):
        if payload.startswith(b"kill %s by " % place):
            order = Path(payload.split(b" ")[3].decode())
            if order.exists():
                victim = order.read_text()
                order.unlink()
                os.kill(int(victim or os.getpid()), 9)
        return payload
    return observe

def salted(payload):
    return payload + b" " + os.urandom(4).hex().encode()

def salt(payload):
    return payload[-8:]

def without(payload):
    return payload[:-9]

pipeline = Pipeline("shuffled", parallelism=4, exchange="{exchange}")
lines = pipeline.source("lines").map(failing_at(b"before")).map(salted)
spread = lines.rebalance(salt, parallelism=4).map(failing_at(b"between"))
again = spread.rebalance(lambda payload: salt(payload)[::-1], parallelism=3).map(failing_at(b"behind"))
again.map(without).sink("plain", to="file:plain")
again.sink("one", to="file:salty")
again.sink("two", to="file:salty")
'''


TWO_EXECUTORS = "local-cluster[2,2,1024]"
WAYS = [("runs", None), slow(("spark", None)), slow(("runs", TWO_EXECUTORS)), slow(("spark", TWO_EXECUTORS))]
RECORDS = 2_000


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: "-".join(filter(None, way)))
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    exchange, master = request.param
    settings = Settings(small_epoch_records_max=0, epoch_interval_s=0.02, epoch_records_max=500, master=master)
    app = APP.replace("{exchange}", exchange)
    with Cluster(tmp_path_factory.mktemp("exchange"), app, settings) as cluster:
        assert cluster.local.start()
        cluster.until_done(cluster.send(cluster.numbered(RECORDS)))
        yield cluster


def everything_is_there_once_and_in_order(cluster: Cluster) -> None:
    expected = b"".join(path.read_bytes() for path in cluster.inputs)
    assert cluster.committed("plain") == expected
    salted = cluster.committed("one")
    assert salted == cluster.committed("two"), "the sinks have had different runs of an epoch"
    assert b"".join(line[:-9] + b"\n" for line in salted.splitlines()) == expected


def lines_that_kill(cluster: Cluster, place: str, victim: int | None) -> tuple[list[bytes], Path]:
    order = cluster.directory / f"kill-{len(cluster.inputs)}"
    order.write_text("" if victim is None else str(victim))
    lines = cluster.numbered(RECORDS)
    lines.insert(1_200, b"kill %s by %s" % (place.encode(), bytes(order)))
    return lines, order


@pytest.mark.parametrize("place", [slow("before"), "between", slow("behind")])
def test_a_worker_that_is_killed_at_an_exchange_changes_nothing(cluster: Cluster, place: str) -> None:
    restarts = cluster.restarts(DRIVER)
    lines, order = lines_that_kill(cluster, place, None)
    cluster.until_done(cluster.send(lines))
    assert not order.exists()
    assert cluster.restarts(DRIVER) == restarts, "the task is tried again, and nobody else"
    everything_is_there_once_and_in_order(cluster)


@pytest.mark.parametrize("victim", ["driver", slow("jvm")])
def test_a_driver_that_is_killed_between_two_exchanges_is_followed_by_one_that_runs_the_epoch_again(
    cluster: Cluster, victim: str
) -> None:
    restarts, driver = cluster.restarts(DRIVER), cluster.supervisor.pid(DRIVER)
    assert driver is not None
    lines, order = lines_that_kill(cluster, "between", driver if victim == "driver" else jvms(driver)[0])
    cluster.until_done(cluster.send(lines))
    assert not order.exists()
    assert cluster.restarts(DRIVER) == restarts + 1
    everything_is_there_once_and_in_order(cluster)


@pytest.mark.slow
def test_an_executor_that_is_killed_with_its_shuffle_files_changes_nothing(cluster: Cluster) -> None:
    driver = cluster.supervisor.pid(DRIVER)
    assert driver is not None
    executors = jvms(driver)[1:]
    if not executors:
        pytest.skip("with local threads the executor is the driver's own JVM")
    for place in ("between", "behind"):
        lines, order = lines_that_kill(cluster, place, jvms(driver)[1])
        cluster.until_done(cluster.send(lines))
        assert not order.exists()
        everything_is_there_once_and_in_order(cluster)
        driver = cluster.supervisor.pid(DRIVER) or driver
