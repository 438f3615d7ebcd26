"""A sink with lanes on Spark: mergers produce the output of one ordered sink from the lanes, byte for byte, also when
the driver or the sink is killed; a killed merger continues where its output ends.

`plain` is the ordered sink of the same pipeline. `few` has fewer lanes than paths, `many` has more; `keyed` is written
by key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.deployment.local_pipeline import DRIVER
from procession.deployment.settings import Settings
from procession.sdk import merged
from tests.slow_cases import slow
from tests.walk.cluster import Cluster, committed
from tests.walk.commands import run

APP = """
from procession import Pipeline

def last(payload):
    return payload[-1:]

def twice(payload):
    return [] if payload.endswith(b"3") else [payload + b"a", payload + b"b"]

pipeline = Pipeline("lanes", parallelism=3)
spread = pipeline.source("lines").rebalance(parallelism=3).flat_map(twice)
spread.sink("plain", to="file:out")
spread.sink("few", to="lanes:few", lanes=2)
spread.sink("many", to="lanes:many", lanes=5)
spread.key_by(last).sink("keyed", to="lanes:keyed", lanes=4, order="key")
"""
RECORDS = 600
SINKS = ("few", "many", "keyed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = Settings(epoch_interval_s=0.02, epoch_records_max=200)
    with Cluster(tmp_path_factory.mktemp("lanes"), APP, settings) as cluster:
        assert cluster.local.start()
        cluster.until_done(cluster.send(cluster.numbered(RECORDS)))
        yield cluster


def plain(cluster: Cluster) -> bytes:
    return committed(cluster.directory / "out" / "lanes-plain-0")


def merged_bytes(cluster: Cluster, sink: str, **options: object) -> bytes:
    records = merged(f"lanes:{cluster.directory / sink}", verify=True, **options)  # type: ignore[arg-type]
    return b"".join(record.payload + b"\n" for record in records)


def test_merged_lanes_are_the_output_of_one_ordered_sink(cluster: Cluster) -> None:
    expected = plain(cluster)
    assert expected.count(b"\n") >= RECORDS
    for sink in SINKS:
        assert merged_bytes(cluster, sink) == expected, sink
    sizes = [(cluster.directory / "many" / f"lanes-many-{lane}.lane").stat().st_size for lane in range(5)]
    assert min(sizes[:3]) > 2 * max(sizes[3:]) > 0, "three paths: two lanes have frontiers only"


def test_a_key_is_in_one_shard(cluster: Cluster) -> None:
    shards = [merged_bytes(cluster, "keyed", shard=f"{number}/2") for number in range(2)]
    keys = [{line[-1:] for line in shard.splitlines()} for shard in shards]
    assert keys[0] | keys[1] == {b"a", b"b"}
    assert not keys[0] & keys[1]


@pytest.mark.parametrize(
    "point", ["sink:after-vote-before-reply", slow("sink:before-commit"), slow("driver:between-phase2")]
)
def test_lanes_are_whole_after_a_crash(cluster: Cluster, point: str) -> None:
    parts = [*cluster.local.sink_parts.values(), DRIVER]
    before = sum(cluster.restarts(part) for part in parts)
    cluster.arm(point)
    cluster.until_done(cluster.send(cluster.numbered(RECORDS)))
    assert sum(cluster.restarts(part) for part in parts) > before
    for sink in SINKS:
        assert merged_bytes(cluster, sink) == plain(cluster), sink


@pytest.mark.slow
def test_1_2_30_and_300_lanes_of_a_pipeline_give_the_sequence(tmp_path: Path) -> None:
    counts = (1, 2, 30, 300)
    sinks = "".join(f'spread.sink("lanes{count}", to="lanes:lanes{count}", lanes={count})\n' for count in counts)
    (tmp_path / "app.py").write_text(APP.partition('spread.sink("few"')[0] + sinks)
    (tmp_path / "input.txt").write_bytes(b"".join(b"line %d\n" % number for number in range(2000)))
    limits = ("--listen", "127.0.0.1:0", "--epoch-records-max", "700")
    done = run("run", "app.py", "--input", "input.txt", *limits, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = committed(tmp_path / "out" / "lanes-plain-0")
    assert expected.count(b"\n") == 3600
    for count in counts:
        done = run("merge", f"lanes:lanes{count}", "--verify", "--to", f"file:merged{count}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert committed(tmp_path / f"merged{count}" / "merged-0") == expected, count


@pytest.mark.parametrize("point", ["merge:before-vote", "merge:after-vote", slow("merge:between-commits")])
def test_a_merger_that_is_killed_continues_where_its_output_ends(cluster: Cluster, tmp_path: Path, point: str) -> None:
    arguments = ("merge", f"lanes:{cluster.directory / 'few'}", "--to", f"file:{tmp_path / 'out'}")
    small = ("--transaction-bytes", "1000")
    killed = run(*arguments, *small, cwd=tmp_path, PROCESSION_FAULT=f"{point}@2")
    assert killed.returncode != 0
    cut = committed(tmp_path / "out" / "merged-0")
    assert len(cut) < len(plain(cluster))
    done = run(*arguments, *small, "--verify", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert committed(tmp_path / "out" / "merged-0") == plain(cluster)
    result = json.loads(done.stderr.splitlines()[-1])
    assert result["event"] == "merged"
    assert result["records"] == plain(cluster).count(b"\n")
    assert result["inversions"] == {}
