"""A pipeline on Spark whose lanes are the partitions of a topic: merged, they are what its ordered sink has, also when
broker, driver and merger are killed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from procession.chaos.kafka_server import KafkaServer
from procession.sdk import merged
from procession.supervisor.local_pipeline import DRIVER
from procession.supervisor.settings import Settings
from tests.systems.kafka_broker import Kafka, installed, needs_kafka
from tests.walk.cluster import Cluster, committed, wait_for
from tests.walk.commands import run, running

pytestmark = [needs_kafka, pytest.mark.slow]

APP = """
from procession import Pipeline

pipeline = Pipeline("lanes", parallelism=3)
spread = pipeline.source("lines").rebalance(parallelism=3).filter(lambda line: not line.endswith(b"3"))
spread.sink("plain", to="file:out")
spread.sink("trades", to="{url}", lanes=4)
"""
FORMS = ("", "?lane_messages=blocks")
"""A message for each record, or blocks."""


@pytest.mark.parametrize("options", FORMS)
def test_merged_partitions_are_the_output_of_one_ordered_sink(kafka: Kafka, tmp_path: Path, options: str) -> None:
    url = kafka.url(kafka.topic(partitions=4))
    (tmp_path / "app.py").write_text(APP.replace("{url}", url + options))
    (tmp_path / "input.txt").write_bytes(b"".join(b"line %d\n" % number for number in range(3000)))
    done = run(
        "run", "app.py", "--input", "input.txt", "--listen", "127.0.0.1:0", "--epoch-records-max", "700", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    expected = committed(tmp_path / "out" / "lanes-plain-0")
    assert expected.count(b"\n") == 2700
    merging = merged(url, verify=True)
    assert b"".join(record.payload + b"\n" for record in merging) == expected
    assert merging.report.epochs > 1
    merging.close()


@pytest.mark.parametrize("options", FORMS)
def test_kills_of_broker_driver_and_merger_lose_nothing_and_keep_the_order(tmp_path: Path, options: str) -> None:
    installed()
    from confluent_kafka.admin import AdminClient, NewTopic

    settings = Settings(epoch_interval_s=0.02, epoch_records_max=300)
    output = tmp_path / "merged"
    with KafkaServer() as broker:
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        admin.create_topics([NewTopic("trades", 4, 1)])["trades"].result(30)
        url = f"kafka://{broker.address}/trades"
        arguments = ("merge", url, "--to", f"file:{output}", "--follow", "--verify", "--json")
        (tmp_path / "cluster").mkdir()
        with Cluster(tmp_path / "cluster", APP.replace("{url}", url + options), settings) as cluster:
            assert cluster.local.start()
            cluster.until_done(cluster.send(cluster.numbered(300)))
            with running(*arguments, cwd=tmp_path) as merger:
                wait_for(lambda: (output / "merged-0.txnlog").is_file(), "the merger begins", lambda: merger.said)
                source = cluster.send(cluster.numbered(3000), rate=600)
                time.sleep(1.0)  # somewhere in the middle
                merger.process.kill()
                broker.kill()
                cluster.local.supervisor.kill(DRIVER)
                broker.start()
            with running(*arguments, cwd=tmp_path) as merger:
                time.sleep(1.0)
                broker.kill()
                broker.start()
                cluster.until_done(source)
                expected = committed(cluster.directory / "out" / "lanes-plain-0")
                wait_for(
                    lambda: len(committed(output / "merged-0")) >= len(expected), "all is merged", lambda: merger.said
                )
                assert merger.process.poll() is None, merger.said
            assert committed(output / "merged-0") == expected
            records = merged(url, verify=True)
            assert b"".join(record.payload + b"\n" for record in records) == expected
            records.close()
