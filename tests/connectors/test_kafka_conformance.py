"""The Kafka sink, run as a program with a real broker, passes every case of the conformance suite."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.sdk.conformance import CASES, CaseOutcome, Conformance, ConformanceCase
from procession.sdk.sink_process import SinkProcess
from tests.connectors.conformance_round import cases
from tests.systems.kafka_broker import Kafka, needs_kafka

pytestmark = needs_kafka

SHORT = frozenset(
    {"visible", "empty-epoch", "gap", "killed-commit", "killed-abort", "after-output-commit-commit", "two-workers"}
)
"""The cases of every test run; the others take long, because each opens an output."""


@pytest.fixture(scope="module")
def conformance(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conformance]:
    def visible(_: Path, instance: str) -> bytes:
        return b"".join(value or b"" for value in kafka.values(f"check-{instance}", is_settled=False))

    names = [f"check-case-{number}{other}" for number in range(len(CASES)) for other in ("", "-other")]
    kafka.topics(names, config={"max.message.bytes": "4000000"})
    url = kafka.url("check-{instance}")
    command = [sys.executable, "-m", "procession", "sink", "kafka", url, "{dir}", "--listen", "{listen}"]
    with SinkProcess(command, tmp_path_factory.mktemp("sink"), visible) as trial:
        yield Conformance(trial)


@pytest.mark.parametrize("case", cases(short_round=SHORT))
def test_the_kafka_sink_conforms(conformance: Conformance, case: ConformanceCase) -> None:
    finding = asyncio.run(conformance.run(case))
    assert finding.outcome is CaseOutcome.PASSED, finding.why
