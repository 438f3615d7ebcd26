"""A pipeline on Spark whose lanes are the partitions of a topic: merged, they equal the output of its ordered sink,
also when broker, driver and merger are killed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from procession.chaos.kafka_server import KafkaServer
from procession.deployment.local_pipeline import DRIVER
from procession.deployment.settings import Settings
from procession.sdk import merged
from tests.systems.kafka_broker import Kafka, installed, needs_kafka
from tests.walk.cluster import Cluster, committed, wait_for
from tests.walk.commands import run, running

pytestmark = [needs_kafka, pytest.mark.slow]

APP = """
from procession import Pipeline

def number_of(line):
    return line.rpartition(b" ")[2]

def is_kept(line):
    return int(number_of(line)) % 7 != 0

def same(line):
    return line

pipeline = Pipeline("lanes", parallelism={tasks})
stage = pipeline.source("lines").filter(is_kept){stages}
stage.sink("plain", to="file:out")
stage.sink("trades", to="{url}", lanes=4)
"""
WORKLOADS = {
    "listing1": ("15", ".map(same).rebalance(parallelism=2).map(same)"),
    "w1": ("3", ".rebalance(parallelism=4).map(same).rebalance(number_of, parallelism=2).map(same)"),
    "w2": ("4", ".rebalance(parallelism=4).map(same).rebalance(parallelism=2).map(same)"),
}
"""Conflux's workloads: the tasks of the first stage, and the stages after it. Two of the lanes stay empty."""
FORMS = ("", "?lane_messages=blocks")
"""The message forms: one message for each record, or blocks."""


def app_of(workload: str, url: str) -> str:
    tasks, stages = WORKLOADS[workload]
    return APP.replace("{tasks}", tasks).replace("{stages}", stages).replace("{url}", url)


def sequential(lines: Iterable[bytes]) -> bytes:
    """Return the output of a run with one task."""
    return b"".join(line + b"\n" for line in lines if int(line.rpartition(b" ")[2]) % 7)


@pytest.mark.parametrize("options", FORMS)
def test_merged_partitions_are_the_output_of_one_ordered_sink(kafka: Kafka, tmp_path: Path, options: str) -> None:
    url = kafka.url(kafka.topic(partitions=4))
    (tmp_path / "app.py").write_text(app_of("w2", url + options))
    lines = [b"line %d" % number for number in range(3000)]
    (tmp_path / "input.txt").write_bytes(b"\n".join(lines))
    done = run(
        "run", "app.py", "--input", "input.txt", "--listen", "127.0.0.1:0", "--epoch-records-max", "700", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    expected = committed(tmp_path / "out" / "lanes-plain-0")
    assert expected == sequential(lines)
    merging = merged(url, verify=True)
    assert b"".join(record.payload + b"\n" for record in merging) == expected
    assert merging.report.epochs > 1
    merging.close()


@pytest.mark.parametrize(("workload", "options"), [("listing1", FORMS[0]), ("w1", FORMS[1]), ("w2", FORMS[0])])
def test_kills_of_broker_driver_and_merger_lose_nothing_and_keep_the_order(
    tmp_path: Path, workload: str, options: str
) -> None:
    installed()
    from confluent_kafka.admin import AdminClient, NewTopic

    settings = Settings(epoch_interval_s=0.02, epoch_records_max=300)
    output = tmp_path / "merged"

    def merged_bytes() -> int:
        return len(committed(output / "merged-0"))

    with KafkaServer() as broker:
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        admin.create_topics([NewTopic("trades", 4, 1)])["trades"].result(30)
        url = f"kafka://{broker.address}/trades"
        arguments = ("merge", url, "--to", f"file:{output}", "--follow", "--verify", "--json")
        (tmp_path / "cluster").mkdir()
        with Cluster(tmp_path / "cluster", app_of(workload, url + options), settings) as cluster:
            assert cluster.local.start()
            lines = cluster.numbered(300)
            cluster.until_done(cluster.send(lines))
            with running(*arguments, cwd=tmp_path) as merger:
                wait_for(lambda: (output / "merged-0.txnlog").is_file(), "the merger begins", lambda: merger.said)
                more = cluster.numbered(3000)
                source = cluster.send(more, rate=600)
                wait_for(
                    lambda: merged_bytes() > len(sequential(lines)), "the merge of new records", lambda: merger.said
                )
                merger.process.kill()
                broker.kill()
                cluster.local.supervisor.kill(DRIVER)
                broker.start()
            with running(*arguments, cwd=tmp_path) as merger:
                wait_for(lambda: '"progress"' in merger.said, "the restarted merger reads", lambda: merger.said)
                broker.kill()
                broker.start()
                cluster.until_done(source)
                expected = sequential([*lines, *more])
                assert committed(cluster.directory / "out" / "lanes-plain-0") == expected
                wait_for(lambda: merged_bytes() >= len(expected), "all is merged", lambda: merger.said)
                assert merger.process.poll() is None, merger.said
            assert committed(output / "merged-0") == expected
            records = merged(url, verify=True)
            assert b"".join(record.payload + b"\n" for record in records) == expected
            records.close()
