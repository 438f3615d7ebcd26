"""A stage and a sink with the same name each keep their own records, states and outputs, also when processes are killed
and when one of the two is added later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from procession.deployment.settings import Settings
from tests.slow_cases import slow
from tests.walk.cluster import Cluster

APP = """
from procession import Pipeline

def numbered(count, line):
    return count + 1, f"{line} {count}"

pipeline = Pipeline("walk", parallelism=2)
lines = pipeline.source("lines", codec="text")
# One task writes the records for both: those of the exchange before the stage, and those of the sink.
lines.sink("alerts", to="file:plain")
counted = lines.map_stateful(numbered, key=lambda line: line[-1], initial=0, name="alerts")
counted.sink("counts", to="file:counted")
"""
WITH_ANOTHER = APP.replace("counted.sink(", 'counted.rebalance(name="counts", parallelism=3).sink(')
"""An app whose stage has the name of an existing sink."""
SETTINGS = Settings(epoch_interval_s=0.02, epoch_records_max=100)
RECORDS = 300


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("names"), APP, SETTINGS) as cluster:
        assert cluster.local.start()
        cluster.until_done(cluster.send(cluster.numbered(RECORDS)))
        yield cluster


def everything_is_there_once_and_counted(cluster: Cluster) -> None:
    expected = b"".join(path.read_bytes() for path in cluster.inputs)
    assert cluster.committed("alerts") == expected
    seen: Counter[str] = Counter()
    counted = []
    for line in expected.decode().splitlines():
        counted.append(f"{line} {seen[line[-1]]}\n")
        seen[line[-1]] += 1
    assert cluster.committed("counts").decode() == "".join(counted)


@pytest.mark.parametrize(
    "point", [slow("driver:before-record"), slow("driver:after-record"), slow("sink:after-vote-before-reply")]
)
def test_a_stage_and_a_sink_of_one_name_are_kept_apart_when_processes_are_killed(cluster: Cluster, point: str) -> None:
    cluster.send_and_kill(point, cluster.numbered(RECORDS))
    everything_is_there_once_and_counted(cluster)


@pytest.mark.slow
def test_a_new_stage_with_the_name_of_a_sink_changes_no_existing_output(cluster: Cluster) -> None:
    cluster.supervisor.stop()
    with Cluster(cluster.directory, WITH_ANOTHER, SETTINGS) as later:
        assert later.local.start()
        later.inputs += cluster.inputs
        later.until_done(later.send(later.numbered(RECORDS)))
        everything_is_there_once_and_counted(later)
