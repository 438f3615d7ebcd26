"""Kafka partitions in the order of event time, as an app names them: by a URL, together with a file."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.systems.kafka_broker import Kafka, needs_kafka
from tests.walk.commands import run

pytestmark = [needs_kafka, pytest.mark.slow]  # tests/connectors/test_kafka_source.py has the rules

APP = """
from procession import Pipeline

pipeline = Pipeline("merged", order_by="event_time", lateness_s=3, late="dead-letter", dead_letter="file:letters")
trades = pipeline.source(
    "trades", from_="{url}?partitions=0,1&stop_at_end=true", codec="json", event_time_field="at"
)
rates = pipeline.source("rates", from_="file:rates.jsonl", codec="json", event_time_field="at")
trades.merge(rates).sink("out", to="file:out")
"""


def test_two_runs_write_the_same_bytes_in_the_order_of_event_time(tmp_path: Path, kafka: Kafka) -> None:
    chance = random.Random(5)
    topic = kafka.topic(partitions=2)
    trades: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    for number in range(300):
        late = 20 if number % 50 == 49 else chance.randrange(3)
        trades[number % 2].append({"id": number, "at": 1_000 + number - late})
    for partition, values in trades.items():
        kafka.publish(topic, [json.dumps(trade).encode() for trade in values], partition=partition)
    rates = [{"id": f"r{number}", "at": 1_000 + 7 * number} for number in range(40)]

    def on_time(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the records that are not later than the lateness allows."""
        return [
            record
            for place, record in enumerate(records)
            if record["at"] >= max((before["at"] - 3 for before in records[:place]), default=0)
        ]

    expected = [*on_time(trades[0]), *on_time(trades[1]), *rates]
    assert len(expected) < 340
    outputs = []
    for name in ("first", "second"):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "app.py").write_text(APP.replace("{url}", kafka.url(topic)))
        (directory / "rates.jsonl").write_text("".join(f"{json.dumps(rate)}\n" for rate in rates))
        done = run("run", "app.py", "--listen", "127.0.0.1:0", "--epoch-records-max", "70", cwd=directory)
        assert done.returncode == 0, done.stderr
        outputs.append(run("cat", "out", cwd=directory).stdout)
    assert outputs[0] == outputs[1]
    found = [json.loads(line) for line in outputs[0].splitlines()]
    assert [record["at"] for record in found] == sorted(record["at"] for record in expected)
    assert sorted(str(record["id"]) for record in found) == sorted(str(record["id"]) for record in expected)
