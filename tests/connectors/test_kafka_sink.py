"""The Kafka sink with a real broker: exactly once for any outcome of a transaction, and refusals before the vote."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from procession.connectors import kafka_client, kafka_sink
from procession.connectors.kafka_client import KafkaClients, KafkaUrl
from procession.connectors.kafka_messages import MessageEncoder
from procession.connectors.kafka_sink import KafkaOutput
from procession.connectors.kafka_token import ControlTopic
from procession.connectors.kafka_topic import KafkaSinkOptions, TopicGuard
from procession.errors import ConfigError, DiskError, ProcessionError, StorageError
from procession.sdk.conformance import CaseOutcome, Conformance, dies_at
from procession.sdk.record_blocks import BLOCK_SCHEMA, RecordForm, encode_block
from procession.sdk.sink_process import SinkProcess
from procession.sdk.transaction_log import Transaction
from tests.systems.kafka_broker import Kafka, needs_kafka

pytestmark = needs_kafka

HOUR_NS = 3600 * 10**9


class Sink:
    """An output that receives epochs as a participant passes them."""

    def __init__(self, kafka: Kafka, directory: Path, topic: str, **options: object) -> None:
        self.kafka, self.topic, self.directory = kafka, topic, directory
        self._options = KafkaSinkOptions(**options)  # type: ignore[arg-type]
        self.end = 0
        self.epochs = 0
        self.open()

    def open(self, *, is_recovered: bool = True) -> None:
        clients = KafkaClients(KafkaUrl.parse(self.kafka.url(self.topic)), {}, patience_s=30.0)
        self.output = KafkaOutput(self.directory / "out", clients, self._options)
        if is_recovered:
            self.output.recover(self.end, None)

    def prepare(self, *payloads: bytes) -> Transaction:
        self.epochs += 1
        self.output.append(self.end, payloads)
        transaction = Transaction(f"id-{self.epochs}", self.end, self.end + sum(map(len, payloads)))
        self.output.prepare(transaction)
        return transaction

    def commit(self, *payloads: bytes) -> None:
        transaction = self.prepare(*payloads)
        self.output.commit(transaction)
        self.end = transaction.end

    def copy(self, directory: Path) -> Sink:
        """Return another sink of the same output, on a copy of this one's directory."""
        shutil.copytree(self.directory, directory)
        other = Sink.__new__(Sink)
        other.__dict__.update(self.__dict__, directory=directory)
        other.open(is_recovered=False)
        return other

    @property
    def values(self) -> list[bytes | None]:
        return self.kafka.values(self.topic)

    @property
    def visible(self) -> list[bytes | None]:
        """What a reader sees while a transaction is open."""
        return self.kafka.values(self.topic, is_settled=False)


@pytest.fixture
def sink(kafka: Kafka, tmp_path: Path) -> Iterator[Sink]:
    sink = Sink(kafka, tmp_path / "sink", kafka.topic())
    yield sink
    sink.output.close()


@pytest.fixture(autouse=True)
def directory(tmp_path: Path) -> None:
    (tmp_path / "sink").mkdir()


def block(payloads: list[bytes], keys: list[bytes | None], times: list[int]) -> bytes:
    return encode_block(pa.record_batch([payloads, keys, times], schema=BLOCK_SCHEMA))


def test_prepared_records_are_not_visible_and_committed_ones_are_in_order(sink: Sink) -> None:
    sink.commit(b"one", b"two")
    assert sink.values == [b"one", b"two"]
    transaction = sink.prepare(b"three", b"four")
    assert sink.visible == [b"one", b"two"]
    sink.output.abort(transaction)
    sink.commit(b"five")
    assert sink.values == [b"one", b"two", b"five"]


def test_messages_are_sent_before_the_commit_unless_told_otherwise(kafka: Kafka, tmp_path: Path) -> None:
    sent = {}
    for is_early in (True, False):
        (tmp_path / f"{is_early}").mkdir()
        sink = Sink(kafka, tmp_path / f"{is_early}", kafka.topic(), is_early=is_early)
        transaction = sink.prepare(*[b"%06d" % number for number in range(1000)])
        deadline = time.monotonic() + 30
        while is_early and kafka.end(sink.topic) < 1000 and time.monotonic() < deadline:
            time.sleep(0.02)
        sent[is_early] = kafka.end(sink.topic)
        assert sink.visible == []
        sink.output.commit(transaction)
        assert len(sink.values) == 1000
        sink.output.close()
    assert sent == {True: 1000, False: 0}


def test_an_epoch_whose_early_transaction_is_lost_is_published_from_the_file(sink: Sink, kafka: Kafka) -> None:
    sink.commit(b"one")
    identity = json.loads((sink.directory / "out.kafka").read_bytes())
    sink.output.append(3, [b"two"])
    intruder = Producer(
        {"bootstrap.servers": kafka.server.address, "transactional.id": f"procession-{identity['key']}"}
    )
    intruder.init_transactions(30)  # aborts the transaction in which "two" was sent
    sink.output.append(6, [b"three"])
    transaction = Transaction("id-2", 3, 11)
    sink.output.prepare(transaction)
    sink.output.commit(transaction)
    assert sink.values == [b"one", b"two", b"three"]


def test_a_sink_that_stops_ends_its_open_transaction(sink: Sink, kafka: Kafka, tmp_path: Path) -> None:
    sink.commit(b"one")
    sink.output.append(3, [b"two"])
    sink.output.close()
    kafka.publish(sink.topic, [b"of another producer"])
    assert sink.values == [b"one", b"of another producer"]


def test_an_epoch_of_empty_payloads_alone_is_published(sink: Sink) -> None:
    sink.commit(b"", b"")
    assert sink.values == [b"", b""]


def test_a_sink_that_died_after_the_kafka_commit_finds_the_epoch_published_and_does_not_repeat_it(sink: Sink) -> None:
    transaction = sink.prepare(b"one", b"two")
    sink.output.commit(transaction)
    sink.open(is_recovered=False)  # the log has the vote only
    sink.output.recover(0, transaction)
    sink.output.commit(transaction)
    sink.end = transaction.end
    sink.commit(b"three")
    assert sink.values == [b"one", b"two", b"three"]


def test_a_published_epoch_is_not_aborted(sink: Sink) -> None:
    transaction = sink.prepare(b"one")
    sink.output.commit(transaction)
    with pytest.raises(StorageError, match="published"):
        sink.output.abort(transaction)


def test_a_fenced_producer_settles_its_transaction_and_continues(sink: Sink, kafka: Kafka) -> None:
    sink.commit(b"one")
    identity = json.loads((sink.directory / "out.kafka").read_bytes())
    intruder = Producer(
        {"bootstrap.servers": kafka.server.address, "transactional.id": f"procession-{identity['key']}"}
    )
    intruder.init_transactions(30)
    sink.commit(b"two", b"three")
    assert sink.values == [b"one", b"two", b"three"]


def test_of_two_sinks_of_one_output_one_commits_and_the_other_notices(sink: Sink, tmp_path: Path) -> None:
    sink.commit(b"one")
    transaction = sink.prepare(b"two")
    other = sink.copy(tmp_path / "copy")
    other.output.recover(sink.end, transaction)  # fences the first one
    other.output.commit(transaction)
    sink.output.commit(transaction)  # the decision is carried out already
    assert sink.values == [b"one", b"two"]
    other.end = transaction.end
    other.commit(b"three")
    sink.output.append(6, [b"xyz"])
    with pytest.raises(StorageError, match="published up to 11"):
        sink.output.commit(Transaction("id-3", 6, 9))
    with pytest.raises(StorageError, match="published up to 11"):
        sink.copy(tmp_path / "older").output.recover(6, None)
    assert sink.values == [b"one", b"two", b"three"]
    other.output.close()


def test_a_lost_token_stops_the_sink(sink: Sink, kafka: Kafka, tmp_path: Path) -> None:
    sink.commit(b"one")
    identity = json.loads((sink.directory / "out.kafka").read_bytes())
    (sink.directory / "out.kafka").write_text(json.dumps(identity | {"key": "out-another"}))
    with pytest.raises(StorageError, match="lost its token"):
        sink.open()


def test_the_token_is_read_beyond_open_transactions_of_others(sink: Sink, kafka: Kafka) -> None:
    identity = json.loads((sink.directory / "out.kafka").read_bytes())
    other = Producer({"bootstrap.servers": kafka.server.address, "transactional.id": "other"})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce("procession-tokens", b"{}", b"other", identity["token_partition"])
    other.flush(30)
    sink.commit(b"one")
    found = []
    control = ControlTopic(KafkaClients(KafkaUrl.parse(kafka.url(sink.topic)), {}))
    reading = threading.Thread(
        target=lambda: found.append(control.read(identity["key"], identity["token_partition"], 60.0))
    )
    reading.start()
    reading.join(1.0)
    assert reading.is_alive(), "a message that it cannot see yet may be the token"
    other.abort_transaction(30)
    reading.join(60)
    assert [token.end for token in found if token] == [3]


def test_records_with_a_key_go_where_java_clients_put_them(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic(partitions=7)
    sink = Sink(kafka, tmp_path / "sink", topic, records=RecordForm.BLOCKS)
    keys: list[bytes | None] = [b"21", b"foobar", b"21"]
    sink.commit(block([b"a", b"b", b"c"], keys, [1_700_000_000_123_000_000, 0, 0]))
    found = {message.value(): message for message in kafka.committed(topic)}
    # Kafka's own test vectors of murmur2.
    assert found[b"a"].partition() == found[b"c"].partition() == (-973932308 & 0x7FFFFFFF) % 7
    assert found[b"b"].partition() == (-790332482 & 0x7FFFFFFF) % 7
    assert found[b"a"].offset() < found[b"c"].offset()
    assert found[b"a"].timestamp()[1] == 1_700_000_000_123
    assert found[b"b"].timestamp()[1] > 1_700_000_000_123, "without event time, a message has the time of publishing"
    sink.output.close()


def test_total_order_is_one_partition_whatever_the_keys(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic(partitions=3)
    sink = Sink(kafka, tmp_path / "sink", topic, records=RecordForm.BLOCKS, partition=2)
    payloads = [b"%d" % number for number in range(50)]
    sink.commit(block(payloads, [b"key-" + payload for payload in payloads], [0] * 50))
    assert [(message.partition(), message.value()) for message in kafka.committed(topic)] == [(2, p) for p in payloads]
    sink.output.close()


@pytest.mark.parametrize(
    ("partitions", "options", "is_told"),
    [
        (3, {"order": "total"}, True),
        (3, {"order": "stream"}, True),
        (3, {"order": "key"}, False),
        (3, {"order": "total", "partition": 2}, False),
        (1, {"order": "total"}, False),
    ],
)
def test_a_topic_that_does_not_keep_the_pipelines_order_is_reported_at_the_start(
    kafka: Kafka,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    partitions: int,
    options: dict[str, object],
    is_told: bool,
) -> None:
    topic = kafka.topic(partitions=partitions)
    Sink(kafka, tmp_path / "sink", topic, **options).output.close()
    sentence = f"note: The topic {topic} has 3 partitions, so its readers get the order of each key"
    assert (sentence in capsys.readouterr().err) == is_told


def test_an_envelope_has_key_headers_and_timestamp_and_a_null_value_is_a_tombstone(
    kafka: Kafka, tmp_path: Path
) -> None:
    sink = Sink(kafka, tmp_path / "sink", kafka.topic(), encoder=MessageEncoder(is_envelope=True))
    fields = {"key": "k", "value": {"a": 1}, "headers": [["h", "v"], ["n", None]], "timestamp_ms": 1_700_000_000_000}
    sink.commit(json.dumps(fields).encode(), b'{"key":"k","value":null}')
    first, second = kafka.committed(sink.topic)
    assert (first.key(), first.value(), first.headers()) == (b"k", b'{"a":1}', [("h", b"v"), ("n", None)])
    assert first.timestamp()[1] == 1_700_000_000_000
    assert (second.key(), second.value()) == (b"k", None)
    sink.output.close()


def test_an_empty_payload_is_a_tombstone_on_request(kafka: Kafka, tmp_path: Path) -> None:
    encoder = MessageEncoder(has_tombstones=True)
    sink = Sink(kafka, tmp_path / "sink", kafka.topic(), records=RecordForm.BLOCKS, encoder=encoder)
    sink.commit(block([b"v", b""], [b"k", b"k"], [0, 0]))
    assert [(message.key(), message.value()) for message in kafka.committed(sink.topic)] == [(b"k", b"v"), (b"k", None)]
    sink.output.close()


def test_a_record_over_the_topics_limit_is_refused_before_the_vote(kafka: Kafka, tmp_path: Path) -> None:
    sink = Sink(kafka, tmp_path / "sink", kafka.topic(max_message_bytes="2000"))
    with pytest.raises(StorageError, match="at most 2000 bytes"):
        sink.prepare(b"x" * 1900)
    sink.output.recover(0, None)
    sink.commit(b"x" * 1870)  # what is let through is really taken
    assert [len(value or b"") for value in sink.values] == [1870]
    sink.output.close()


@pytest.mark.parametrize(
    ("settings", "hours", "sentence"),
    [
        ({}, 2, "ms in the future, but the topic .* takes at most 3600000 "),
        ({"message_timestamp_before_max_ms": "3600000"}, -2, "ms in the past, but the topic .* takes at most 3600000 "),
    ],
)
def test_a_timestamp_that_the_topic_refuses_is_refused_before_the_vote(
    kafka: Kafka, tmp_path: Path, settings: dict[str, str], hours: int, sentence: str
) -> None:
    sink = Sink(kafka, tmp_path / "sink", kafka.topic(**settings), records=RecordForm.BLOCKS)
    with pytest.raises(StorageError, match=sentence):
        sink.prepare(block([b"fine", b"early or late"], [None, None], [0, time.time_ns() + hours * HOUR_NS]))
    sink.output.close()


@pytest.mark.parametrize("settings", [{"timestamp_type": "LogAppendTime"}, {"timestamp_after_max_ms": "36000000"}])
def test_a_timestamp_that_the_topic_takes_is_published(kafka: Kafka, tmp_path: Path, settings: dict[str, str]) -> None:
    topic = kafka.topic(**{f"message_{name}": value for name, value in settings.items()})
    sink = Sink(kafka, tmp_path / "sink", topic, records=RecordForm.BLOCKS)
    sink.commit(block([b"early"], [None], [time.time_ns() + 2 * HOUR_NS]))
    assert sink.values == [b"early"]
    sink.output.close()


def test_an_epoch_over_the_sinks_limit_is_refused_before_the_vote(kafka: Kafka, tmp_path: Path) -> None:
    sink = Sink(kafka, tmp_path / "sink", kafka.topic(), epoch_bytes_max=10)
    with pytest.raises(StorageError, match="more than 10 bytes"):
        sink.prepare(b"x" * 11)
    sink.output.close()


@pytest.mark.parametrize("count", [50, 1000])
def test_an_epoch_that_fills_the_clients_queue_is_published_without_long_waits(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The client's queue has room for 50 messages, so it is full when the token comes."""
    monkeypatch.setattr(kafka_sink, "QUEUE_MESSAGES_MAX", 50)
    sink = Sink(kafka, tmp_path / "sink", kafka.topic())
    payloads = [b"%d" % number for number in range(count)]
    began_s = time.monotonic()
    sink.commit(*payloads)
    assert time.monotonic() - began_s < 10, "a wait of a second for each 50 messages takes 19"
    assert sink.values == payloads
    sink.output.close()


def test_a_transaction_longer_than_the_brokers_allow_is_refused_at_the_start(kafka: Kafka) -> None:
    options = KafkaSinkOptions(epoch_bytes_max=2**40)
    with pytest.raises(ConfigError, match=r"transaction\.max\.timeout\.ms"):
        TopicGuard(KafkaClients(KafkaUrl.parse(kafka.url("any")), {}), options).check_start()


def test_a_missing_topic_or_partition_is_reported_at_the_start(kafka: Kafka) -> None:
    missing = KafkaClients(KafkaUrl.parse(kafka.url("not-there")), {})
    with pytest.raises(ConfigError, match="not-there"):
        TopicGuard(missing, KafkaSinkOptions()).check_start()
    known = KafkaClients(KafkaUrl.parse(kafka.url(kafka.topic())), {})
    with pytest.raises(ConfigError, match="no partition 5"):
        TopicGuard(known, KafkaSinkOptions(partition=5)).check_start()


def test_a_topic_that_was_created_again_is_noticed(sink: Sink, kafka: Kafka) -> None:
    sink.commit(b"one")
    kafka.recreate(sink.topic)
    with pytest.raises(StorageError, match="deleted and created again"):
        sink.open()


def test_a_control_topic_that_deletes_tokens_is_refused(kafka: Kafka) -> None:
    topic = kafka.topic(cleanup_policy="delete")
    with pytest.raises(StorageError, match="deletes tokens"):
        ControlTopic(KafkaClients(KafkaUrl.parse(kafka.url("any")), {}), topic).prepare()


def test_an_unreachable_broker_is_reported_with_its_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kafka_client, "NOTE_S", 0.5)
    clients = KafkaClients(KafkaUrl.parse("kafka://127.0.0.1:1/any"), {}, patience_s=3.0)
    with pytest.raises(DiskError, match=r"answers, to describe the topic any: \S+ Connect to \S+ failed:"):
        clients.topic("any")
    assert capsys.readouterr().err.count("note: No Kafka broker at 127.0.0.1:1 answers so far (") == 1


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("kafka://user:secret@broker/t", "password"),
        ("kafka://broker:9092/", "name of a Kafka topic"),
        ("kafka://broker:9092/a b", "name of a Kafka topic"),
        ("kafka://broker:9092/t?partition=0", "options"),
        ("http://broker/t", "kafka://"),
    ],
)
def test_a_bad_url_is_reported_in_one_sentence_without_the_secret(url: str, sentence: str) -> None:
    with pytest.raises(ProcessionError) as raised:
        KafkaUrl.parse(url)
    assert sentence in raised.value.sentence
    assert "secret" not in raised.value.explain()


POINTS = ("sink:kafka-begun", "sink:kafka-sent", "sink:kafka-committed")


@pytest.mark.parametrize("point", POINTS)
def test_a_sink_that_is_killed_within_the_kafka_transaction_publishes_once(
    kafka: Kafka, tmp_path: Path, point: str
) -> None:
    topic = kafka.topic()
    command = [sys.executable, "-m", "procession", "sink", "kafka", kafka.url(topic), "{dir}", "--listen", "{listen}"]

    def visible(_: Path, __: str) -> bytes:
        return b"".join(value or b"" for value in kafka.values(topic, is_settled=False))

    with SinkProcess(command, tmp_path, visible) as trial:
        finding = asyncio.run(Conformance(trial).run(dies_at(point, commit=True)))
    assert finding.outcome is CaseOutcome.PASSED, finding.why


@pytest.mark.slow
def test_a_commit_survives_the_kill_of_the_broker(kafka: Kafka, tmp_path: Path) -> None:
    sink = Sink(kafka, tmp_path / "sink", kafka.topic())
    sink.commit(b"one")
    transaction = sink.prepare(*[b"%06d" % number for number in range(10_000)])
    kafka.server.kill()
    publishing = threading.Thread(target=sink.output.commit, args=(transaction,))
    publishing.start()
    kafka.server.start()
    publishing.join(120)
    assert not publishing.is_alive()
    sink.end = transaction.end
    sink.commit(b"last")
    assert sink.values == [b"one", *[b"%06d" % number for number in range(10_000)], b"last"]
    sink.output.close()
