"""`procession bench conflux`: its stages, its stamps and its figures are right; the report shows them.

The first tests need neither Spark nor Kafka. The last one runs all contestants at toy size.
"""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Message
from typer.testing import CliRunner

from procession.bench import conflux, conflux_figures, conflux_report
from procession.bench.conflux_contestants import CONTESTANTS, ConfluxSetup
from procession.bench.stamped_reader import (
    AppendedMessages,
    Emission,
    Poll,
    StampingConsumer,
    numbers_of,
    stamps_of,
)
from procession.bench.stamped_records import (
    RECORD,
    StampedSource,
    StampedStage,
    conflux_pipeline,
    expected_numbers,
    payload_of,
    records_of,
)
from procession.bench.window_sort_driver import SegmentOnRows
from procession.bench.workload import StageFunction, expected_count
from procession.cli.main import app
from procession.connectors.kafka_lane_messages import BLOCK_HEADER, FRONTIER_HEADER, ORDER_HEADER
from procession.errors import StorageError
from procession.testing import run
from procession.wire.lane_blocks import encode_records, lane_batch
from tests.bench.test_conflux_figures import MS, stamps
from tests.systems.kafka_broker import needs_kafka


def records(numbers: list[int], created_ns: int = 1) -> Any:
    made = np.zeros(len(numbers), RECORD)
    made["number"], made["created_ns"], made["payload"] = numbers, created_ns, b"x" * 10
    return made


def test_a_source_creates_each_number_once_with_its_creation_time() -> None:
    before_ns = time.time_ns()
    source = StampedSource("numbers", 2500, 0.0)
    (stream,) = source.streams()
    made = np.concatenate([records_of(batch.payloads) for batch in source.read(stream, 99)])
    assert made["number"].tolist() == list(range(100, 2500)), "a source continues after the last commit"
    assert before_ns <= made["created_ns"].min() <= made["created_ns"].max() <= time.time_ns()


@pytest.mark.parametrize("workload", ["listing1", "w1", "w2"])
@pytest.mark.parametrize("contestant", ["lanes", "blocks", "ordered", "sequential"])
def test_every_ordered_contestant_produces_the_output_of_a_sequential_run(workload: str, contestant: str) -> None:
    pipeline = conflux_pipeline(workload, contestant, 0, "kafka://127.0.0.1:9/t", 2)
    inputs = [bytes(record) for record in records(list(range(300)))]
    found = records_of(pa.array(run(pipeline, {"numbers": inputs}, epochs=70)["output"], pa.binary()))
    assert found["number"].tolist() == [number for number in range(300) if number % 7]
    assert found["processed_ns"].min() > MS, "the last stage stamps every record"


def test_the_baseline_computes_the_same_rows() -> None:
    stages = [StampedStage(StageFunction.FILTER, 0), StampedStage(StageFunction.MAP, 0, is_last=True)]
    payload = payload_of(records(list(range(20))))
    batch = pa.record_batch({"number": list(range(20)), "payload": payload})
    empty = batch.slice(0, 1)
    kept, nothing = SegmentOnRows(stages)(iter([batch, empty]))
    assert records_of(kept.column("payload"))["number"].tolist() == kept.column("number").to_pylist()
    assert kept.num_rows == expected_count(20)
    assert records_of(kept.column("payload"))["processed_ns"].min() > 0
    assert nothing.num_rows == 0


def test_a_stage_burns_the_stated_time() -> None:
    before_ns = time.thread_time_ns()
    StampedStage(StageFunction.MAP, 10_000).mask(payload_of(records(list(range(100)))))
    assert time.thread_time_ns() - before_ns >= 1_000_000


def message(partition: int, value: bytes | None = None, header: str | None = None) -> Message:
    headers = [(header, b"")] if header else None
    return Message(topic="t", partition=partition, offset=0, value=value, headers=headers)


class Consumer:
    def poll(self, timeout: float) -> Message | None:
        return message(1) if timeout else None

    def consume(self, count: int, timeout: float) -> list[Message]:
        end = Message(topic="t", partition=1, error=KafkaError(KafkaError._PARTITION_EOF))
        return [message(0), message(1), message(0), end]

    def assign(self, places: object) -> str:
        return "assigned"


def test_a_consumer_notes_when_it_returns_messages_and_how_many_of_each_partition() -> None:
    polls: list[Poll] = []
    consumer = StampingConsumer(Consumer(), polls)
    assert consumer.poll(0.0) is None
    consumer.poll(1.0)
    consumer.consume(9, 0)
    assert [dict(poll.counts) for poll in polls] == [{1: 1}, {0: 2, 1: 1}]
    assert consumer.assign([]) == "assigned"


def test_the_second_pass_finds_the_records_of_plain_messages_and_of_blocks() -> None:
    block = lane_batch(
        pa.record_batch(
            {
                "payload": payload_of(records([4, 5])),
                "key": pa.array([b"", b""]),
                "event_time": pa.nulls(2, pa.int64()),
                "order_0": pa.array([4, 5]),
            }
        )
    )
    messages = [
        message(0, b"order keys", ORDER_HEADER),
        message(0, records([2]).tobytes()),
        message(0, encode_records(7, block), BLOCK_HEADER),
        message(0, records([9]).tobytes()),
        message(0, b"frontier", FRONTIER_HEADER),
    ]
    numbers, counts = numbers_of(messages)
    assert numbers.tolist() == [2, 4, 5, 9]
    assert counts.tolist() == [0, 1, 2, 1, 0]
    assert [some.tolist() for some in numbers_of([])] == [[], []]


def test_stamps_of_partitions_and_polls_are_joined_by_record() -> None:
    # Partition 0 has the records 1, 3 and a frontier, then 6; partition 1 has 2 and 5 in one message and a frontier.
    appended = {
        0: AppendedMessages(np.array([1, 3, 6]), np.array([0, 1, 3]), np.array([10, 11, 12, 30])),
        1: AppendedMessages(np.array([2, 5]), np.array([0, 0]), np.array([20, 22])),
    }
    polls = [Poll(100, {0: 2, 1: 1}), Poll(200, {0: 1, 1: 1}), Poll(300, {0: 1})]
    emissions = [Emission(250, records([1, 2, 3, 5])), Emission(350, records([6]))]
    for emission in emissions:
        emission.records["processed_ns"] = 5
    stamps = stamps_of(emissions, polls, appended)
    assert stamps["number"].tolist() == [1, 2, 3, 5, 6]
    assert stamps["sunk_ns"].tolist() == [10, 20, 11, 20, 30]
    assert stamps["consumed_ns"].tolist() == [100, 100, 100, 100, 300]
    assert stamps["emitted_ns"].tolist() == [250, 250, 250, 250, 350]


def test_a_record_without_a_time_is_an_error() -> None:
    appended = {0: AppendedMessages(np.array([1]), np.array([0]), np.array([3]))}
    with pytest.raises(StorageError, match="processed_ns"):
        stamps_of([Emission(9, records([1]))], [Poll(5, {0: 1})], appended)


@pytest.mark.parametrize(
    ("numbers", "is_ordered", "sentence"),
    [([1, 2, 3], True, "3 records"), ([1, 2, 4, 3, 5, 6, 8, 9], True, "record 4"), ([1] * 8, False, "record 1")],
)
def test_a_wrong_output_is_found(numbers: list[int], is_ordered: bool, sentence: str) -> None:
    with pytest.raises(StorageError, match=sentence):
        conflux.check_numbers(np.array(numbers), 10, is_ordered=is_ordered)
    conflux.check_numbers(expected_numbers(10)[::-1], 10, is_ordered=False)


def measured() -> dict[str, Any]:
    waits = dict(zip(CONTESTANTS, (40, 35, 30, 20, 80, 100), strict=True))
    found = {}
    for name, wait_ms in waits.items():
        rounds = [conflux_figures.run_figures(stamps(500, wait_ms + step), 500) for step in (1, 0, 2)]
        found[name] = conflux_figures.contestant_figures([{**run, "cpu_us_per_record": 2.0} for run in rounds])
    setup = {"records": 500, "burn_ns": 0, "rounds": 3, "epoch_records": 100, "rate": 0.0, "record_bytes": 34}
    ratios = conflux_figures.ratios_to(found, "baseline")
    paper = {**conflux_figures.PAPER, "ratios": conflux_figures.paper_ratios()}
    workload = {"contestants": found, "ratios_to_baseline": ratios, "lanes": 2, "tasks": [15, 2], "records_out": 428}
    return {**setup, "workloads": {"listing1": workload}, "paper": paper}


def test_the_report_has_six_plots_and_loads_no_other_file(tmp_path: Path) -> None:
    figures = measured()
    conflux_report.write_report(tmp_path / "report.html", figures)
    page = (tmp_path / "report.html").read_text()
    assert all(f"Figure {number}:" in page for number in range(7, 13))
    assert page.count("<svg") == 6
    assert not [word for word in ("<script", "<link", "<img", "src=", "@import") if word in page]
    for _, drawing in conflux_report.plots(figures["workloads"]["listing1"]).values():
        ElementTree.fromstring(drawing)
    assert "1,330" in page, "the paper's figures are beside ours"


def test_plots_are_also_files(tmp_path: Path) -> None:
    conflux_report.write_plots(tmp_path, measured())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"listing1-figure-{number}.svg" for number in range(7, 13)
    )


def test_the_summary_has_a_line_for_each_contestant_and_the_published_ratios() -> None:
    text = "\n".join(conflux.report_lines(measured()))
    assert all(name in text for name in CONTESTANTS)
    assert "published, Conflux to its baseline: throughput 1.72, mean 0.63, p99 0.71" in text


def test_a_report_that_cannot_be_written_is_refused_before_the_measurement(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "conflux", "--report", str(tmp_path / "no" / "report.html")])
    assert result.exit_code != 0
    assert "cannot be written" in str(result.exception) + result.output


def test_two_epochs_may_be_in_flight() -> None:
    given = ConfluxSetup(1_000_000, 0, 1, 100_000)
    assert (given.in_flight, given.warm_records, given.lanes_of("listing1")) == (200_000, 2_000_000, 2)


def test_a_stopped_run_reports_the_workloads_that_were_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured_workload(_: ConfluxSetup, workload: str, *__: object) -> str:
        if workload == "w2":
            raise KeyboardInterrupt
        return workload

    monkeypatch.setattr(conflux, "KafkaServer", nullcontext)
    monkeypatch.setattr(conflux, "_measure_workload", measured_workload)
    found: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        found.extend(figures["workloads"] for figures in conflux.measure(ConfluxSetup(1000, 0, 1, 100), ["w1", "w2"]))
    assert found == [{"w1": "w1"}]


@needs_kafka
@pytest.mark.slow  # six pipelines on Spark
def test_all_contestants_run_and_every_output_is_checked(tmp_path: Path) -> None:
    sizes = ("--records", "3000", "--epoch-records", "1000", "--rounds", "1", "--burn-ns", "0", "--workload", "w1")
    report, figures = tmp_path / "report.html", tmp_path / "figures.json"
    arguments = ["bench", "conflux", *sizes, "--report", str(report), "--figures", str(figures), "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found == json.loads(figures.read_text())
    workload = found["workloads"]["w1"]
    assert workload["contestants"].keys() == set(CONTESTANTS)
    assert workload["records_out"] == 2571
    assert "Figure 12" in report.read_text()
