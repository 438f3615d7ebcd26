"""A pipeline on Spark whose lanes are the partitions of a topic: merged, they are what its ordered sink has."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession.sdk import merged
from tests.systems.kafka_broker import Kafka, needs_kafka
from tests.walk.cluster import committed
from tests.walk.commands import run

pytestmark = [needs_kafka, pytest.mark.slow]

APP = """
from procession import Pipeline

pipeline = Pipeline("lanes", parallelism=3)
spread = pipeline.source("lines").rebalance(parallelism=3).filter(lambda line: not line.endswith(b"3"))
spread.sink("plain", to="file:out")
spread.sink("trades", to="{url}", lanes=4)
"""


def test_merged_partitions_are_the_output_of_one_ordered_sink(kafka: Kafka, tmp_path: Path) -> None:
    url = kafka.url(kafka.topic(partitions=4))
    (tmp_path / "app.py").write_text(APP.replace("{url}", url))
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
