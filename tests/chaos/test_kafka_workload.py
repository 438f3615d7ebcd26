"""Records are in the input files before they are published, and a workload continues where the last one ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from procession.chaos import kafka_workload
from procession.chaos.chaos_records import key_of, record, tag
from procession.chaos.chaos_workload import Load
from procession.chaos.kafka_workload import KafkaWorkload
from procession.chaos.output_monitor import MonitoredOutputs


class FakeProducer:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.published: list[tuple[str, bytes, bytes, int]] = []

    def produce(self, topic: str, value: bytes, key: bytes, partition: int, on_delivery: object) -> None:
        self.published.append((topic, value, key, partition))

    def poll(self, timeout_s: float) -> None:
        pass

    def __len__(self) -> int:
        return 0


class FakeMonitor:
    def __init__(self) -> None:
        self.outputs = MonitoredOutputs([])
        self.streams: dict[str, str] = {}


class FakeCluster:
    def __init__(self, directory: Path) -> None:
        self.directory = directory


def published(directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bytes, bytes, int]]:
    """Return the records that one workload publishes to one partition within two seconds."""
    times = iter((0.0, 2.0))
    monkeypatch.setattr(kafka_workload, "Producer", FakeProducer)
    monkeypatch.setattr("procession.chaos.kafka_workload.time.monotonic", lambda: next(times, 2.0))
    monitor, cluster = cast(Any, FakeMonitor()), cast(Any, FakeCluster(directory))
    workload = KafkaWorkload(cluster, monitor, Load(rate=10.0), brokers="", topic="input", stream_ids=[7])
    workload.feed()
    workload.feed()
    workload.drain()
    count = len((directory / "s0000.txt").read_bytes().splitlines())
    assert monitor.outputs.streams[tag(0)].records == count
    return cast(FakeProducer, workload._producer).published


def test_a_second_workload_continues_after_the_records_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = published(tmp_path, monkeypatch) + published(tmp_path, monkeypatch)
    lines = [record(tag(0), number) for number in range(40)]
    assert found == [("input", line, key_of(line), 0) for line in lines]
    assert (tmp_path / "s0000.txt").read_bytes() == b"".join(line + b"\n" for line in lines)
