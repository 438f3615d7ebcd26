"""Compares a pipeline from Kafka to Kafka, exactly once, with a plain loop that consumes, transforms and produces.

Both run the same functions on the same messages at the same broker, alternately, for several rounds. The loop has one
consumer and one transactional producer. It commits offsets and messages every 100 ms, as Kafka Streams does; a
stateless program needs no other guarantees. The loop runs twice in each round: with the client's defaults, and tuned.
(By default a consumer pauses for a second when its queue is full; our source does not, and neither does the tuned
loop.) Ours is the whole pipeline: a source, a gateway with a log, Spark, and two-phase commit with the sink. Time is
measured from the first record to the last commit. Then both get messages at a steady rate, and a consumer with
`read_committed` measures the latency of each message. The outputs of both are compared.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from procession.bench.apps.kafka_to_kafka import is_wanted, marked
from procession.bench.loop import RunningPipeline
from procession.chaos.kafka_server import KafkaServer
from procession.deployment.local_pipeline import COMMAND, LocalPipeline
from procession.deployment.settings import Settings
from procession.driver.app_file import load_app
from procession.errors import StorageError
from procession.supervisor.supervisor import Supervisor

APP = Path(__file__).with_name("apps") / "kafka_to_kafka.py"
PARTITIONS = 2
PAYLOAD_BYTES = 100
COMMIT_S = 0.1
COMMIT_RECORDS = 100_000
LATENCY_RECORDS_PER_S = 2_000
LATENCY_S = 10.0
TIMEOUT_S = 120.0
CONSUME = 10_000
TUNED = {"fetch.queue.backoff.ms": 10}
"""Setting that a user would add to the plain loop after measuring it."""
LOOPS: dict[str, dict[str, Any]] = {"loop": {}, "tuned": TUNED}
"""The topics that the loops write to, and their settings of the consumer."""


@dataclass(frozen=True)
class Round:
    """The seconds of ours and of each loop, the transactions that each took, and the processor time of each part."""

    seconds: Mapping[str, float]
    transactions: Mapping[str, int]
    cpu_s: Mapping[str, float]


def measure(records: int, rounds: int, settings: Settings, *, latency_s: float = LATENCY_S) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="procession-bench-") as name, KafkaServer() as server:
        bench = _Bench(server)
        os.environ["PROCESSION_BENCH_KAFKA"] = f"kafka://{server.address}/ours"
        bench.make_topics(
            "ours", *LOOPS, "warm", "slow-ours", "slow-loop", *(f"in-{result}" for result in range(rounds))
        )
        for topic in ("warm", *(f"in-{result}" for result in range(rounds))):
            bench.fill(topic, records)
        with Supervisor(Path(name) / "logs") as supervisor:
            local = LocalPipeline(supervisor, APP, load_app(APP).graph, Path(name), Path(name), settings)
            local.start()
            ours = RunningPipeline(supervisor, local, Path(name))
            ours.until(lambda: ours.epochs > 0)
            found = [bench.round(ours, f"in-{number}" if number >= 0 else "warm") for number in range(-1, rounds)]
            bench.compare()
            latencies = {"ours": bench.latency("ours", bench.follower(local), latency_s)}
        latencies["loop"] = bench.latency("loop", bench.looper, latency_s)
    found = found[1:]
    rates = {name: records / statistics.median(result.seconds[name] for result in found) for name in ("ours", *LOOPS)}
    ratios = {
        name: statistics.median(result.seconds[name] / result.seconds["ours"] for result in found) for name in LOOPS
    }
    return {
        "records": records,
        "records_per_second": rates["ours"],
        "loop_records_per_second": rates["loop"],
        "tuned_loop_records_per_second": rates["tuned"],
        "ratio": ratios["loop"],
        "ratio_tuned": ratios["tuned"],
        "transactions": {
            name: statistics.median(result.transactions[name] for result in found) for name in found[0].transactions
        },
        "cpu_us_per_record": {
            part: statistics.median(result.cpu_s.get(part, 0.0) for result in found) / records * 1e6
            for part in found[0].cpu_s
        },
        "latency_s": latencies,
        "latency_records_per_second": LATENCY_RECORDS_PER_S,
    }


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"ours {figures['records_per_second']:9,.0f} records/s,"
        f" the loop {figures['loop_records_per_second']:9,.0f}: {figures['ratio']:.2f},"
        f" the tuned loop {figures['tuned_loop_records_per_second']:9,.0f}: {figures['ratio_tuned']:.2f}"
    )
    taken = ", ".join(f"{name} {count:.0f}" for name, count in figures["transactions"].items())
    yield f"transactions a round: {taken}"
    used = ", ".join(f"{part} {share:.2f}" for part, share in sorted(figures["cpu_us_per_record"].items()))
    yield f"processor time, µs a record: {used}"
    for name, latency in figures["latency_s"].items():
        p50, p99 = latency["p50"], latency["p99"]
        yield f"{name:4} latency at {LATENCY_RECORDS_PER_S:,} records/s: p50 {p50:.3f} s, p99 {p99:.3f} s"


class _Bench:
    def __init__(self, server: KafkaServer) -> None:
        from confluent_kafka.admin import AdminClient

        self._server = server
        self._config: dict[str, Any] = {"bootstrap.servers": server.address, "log_level": 0}
        self._admin = AdminClient(self._config)

    def make_topics(self, *names: str) -> None:
        from confluent_kafka.admin import NewTopic

        made = self._admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])
        for future in made.values():
            future.result(TIMEOUT_S)

    def fill(self, topic: str, records: int) -> None:
        from confluent_kafka import Producer

        producer = Producer(self._config | {"linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
        for number in range(records):
            while True:
                try:
                    producer.produce(topic, _payload(b"%010d" % number), b"key-%d" % (number % 1000))
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush(TIMEOUT_S)

    def round(self, pipeline: RunningPipeline, topic: str) -> Round:
        """Send the messages of a topic through the loops, then through the pipeline."""
        seconds: dict[str, float] = {}
        transactions: dict[str, int] = {}
        cpu_s: dict[str, float] = {}
        for name in LOOPS:
            used_before = time.process_time()
            seconds[name], transactions[name] = self.loop(topic, name)
            cpu_s[name] = time.process_time() - used_before
        epochs = pipeline.epochs
        arguments = ["kafka", f"kafka://{self._server.address}/{topic}", "--stop-at-end"]
        seconds["ours"], _, spent = pipeline.send(arguments)
        transactions["ours"] = pipeline.epochs - epochs
        return Round(seconds, transactions, {**spent, **cpu_s})

    def loop(self, source: str, target: str, is_over: threading.Event | None = None) -> tuple[float, int]:
        """Consume, transform and produce until the end of the topic, or until `is_over` is set. Return the seconds
        and the number of transactions."""
        from confluent_kafka import Consumer, Producer, TopicPartition

        consumer = Consumer(
            self._config
            | {"group.id": f"{target}-{source}", "isolation.level": "read_committed", "enable.auto.commit": False}
            | LOOPS[target]
        )
        producer = Producer(
            self._config
            | {"transactional.id": f"{target}-{source}", "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
        )
        producer.init_transactions(TIMEOUT_S)
        places = [TopicPartition(source, number, 0) for number in range(PARTITIONS)]
        ends = {place.partition: consumer.get_watermark_offsets(place, TIMEOUT_S)[1] for place in places}
        consumer.assign(places)
        at, began, transactions = dict.fromkeys(ends, 0), 0.0, 0
        while at != ends if is_over is None else not is_over.is_set():
            producer.begin_transaction()
            until, count = time.monotonic() + COMMIT_S, 0
            while time.monotonic() < until and count < COMMIT_RECORDS and (is_over is not None or at != ends):
                first = consumer.poll(0.01)
                message: Any
                for message in () if first is None else (first, *consumer.consume(CONSUME, timeout=0)):
                    began = began or time.perf_counter()
                    at[message.partition()] = message.offset() + 1
                    count += 1
                    if is_wanted(value := message.value()):
                        producer.produce(target, marked(value), message.key())
            producer.poll(0)
            moved = [TopicPartition(source, number, offset) for number, offset in at.items()]
            producer.send_offsets_to_transaction(moved, consumer.consumer_group_metadata(), TIMEOUT_S)
            producer.commit_transaction(TIMEOUT_S)
            transactions += 1
        seconds = time.perf_counter() - began
        consumer.close()
        return seconds, transactions

    def compare(self) -> None:
        """Raise StorageError unless all have published the same messages, in the order of each key."""
        ours = self._by_key("ours")
        if any(ours != self._by_key(name) for name in LOOPS):
            raise StorageError("the pipeline and the loop have published different messages")

    def _by_key(self, topic: str) -> dict[bytes, list[bytes]]:
        found: dict[bytes, list[bytes]] = {}
        for message in self._read(topic, is_over=lambda: False):
            found.setdefault(message.key(), []).append(message.value())
        return found

    def _read(self, topic: str, is_over: Callable[[], bool], *, is_following: bool = False) -> Iterator[Any]:
        from confluent_kafka import OFFSET_END, Consumer, KafkaError, TopicPartition

        consumer = Consumer(
            self._config
            | {"group.id": "read", "isolation.level": "read_committed", "enable.partition.eof": not is_following}
        )
        begin = OFFSET_END if is_following else 0
        consumer.assign([TopicPartition(topic, number, begin) for number in range(PARTITIONS)])
        ended = 0
        while ended < PARTITIONS and not is_over():
            message = consumer.poll(0.1)
            if message is None:
                continue
            if (error := message.error()) is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                ended += 1
        consumer.close()

    def follower(self, local: LocalPipeline) -> Callable[[threading.Event], None]:
        arguments = [f"kafka://{self._server.address}/slow-ours", "--to", local.address, *local.producer_arguments]

        def follow(is_over: threading.Event) -> None:
            with subprocess.Popen(
                [*COMMAND, "source", "kafka", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ) as source:
                is_over.wait()
                source.terminate()

        return follow

    def looper(self, is_over: threading.Event) -> None:
        self.loop("slow-loop", "loop", is_over)

    def latency(self, target: str, run: Callable[[threading.Event], None], seconds: float) -> dict[str, float]:
        """Return the age of messages when a reader receives them, at a steady rate."""
        from confluent_kafka import Producer

        is_over = threading.Event()
        ages: list[float] = []
        wanted = int(seconds * LATENCY_RECORDS_PER_S)

        def read() -> None:
            seen = self._read(target, is_over.is_set, is_following=True)
            ages.extend(time.time() - float(message.value()[11:31]) for message in seen)

        threads = [threading.Thread(target=read), threading.Thread(target=run, args=(is_over,))]
        for thread in threads:
            thread.start()
        producer = Producer(self._config | {"linger.ms": 1})
        began = time.monotonic()
        # A source takes seconds to start, so the first messages that are read do not count, as many as those that do.
        last = number = 0
        while not last or number < last:
            if not last and (ages or time.monotonic() > began + TIMEOUT_S):
                last = number + 2 * wanted
            if (wait_s := began + number / LATENCY_RECORDS_PER_S - time.monotonic()) > 0:
                producer.poll(wait_s)
            stamp = b"%020.6f" % time.time()
            producer.produce(f"slow-{target}", _payload(b"0000000000,%s" % stamp), b"key-%d" % (number % 1000))
            number += 1
        producer.flush(TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        while len(ages) < number and time.monotonic() < deadline:
            producer.poll(0.1)
        is_over.set()
        for thread in threads:
            thread.join()
        counted = sorted(ages[-wanted:])
        return {"p50": counted[len(counted) // 2], "p99": counted[int(len(counted) * 0.99)]}


def _payload(start: bytes) -> bytes:
    return start.ljust(PAYLOAD_BYTES, b".")
