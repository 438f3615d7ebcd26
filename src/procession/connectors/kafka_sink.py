"""A Kafka topic as sink: each epoch is one Kafka transaction, published once.

Invariant: an epoch's messages are in a local file before the vote. When the epoch is committed, one Kafka transaction
publishes them together with the token (`connectors/kafka_token`). If the result of that transaction is unknown, a new
producer fences the old one off, and the token says whether the transaction is committed. A consumer with
`isolation.level=read_committed` sees whole epochs, once, in order. Messages are also sent while the epoch arrives, so
that the commit need not wait for them. Such a transaction is only a shortcut: after any failure a new producer sends
the messages again, from the file. Upstream: sdk/participant. Downstream: the topic.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from procession import faults
from procession.connectors.kafka_client import KafkaClients
from procession.connectors.kafka_errors import is_gone
from procession.connectors.kafka_identity import OutputIdentity
from procession.connectors.kafka_lane_messages import block_messages_of, messages_of
from procession.connectors.kafka_messages import MESSAGE_SCHEMA, check_sizes, check_times
from procession.connectors.kafka_token import ControlTopic, Token
from procession.connectors.kafka_topic import MESSAGE_BYTES_MAX, KafkaSinkOptions, TopicGuard
from procession.connectors.pending_records import PendingRecords
from procession.errors import StorageError
from procession.sdk.output import Output
from procession.sdk.pacing import Backoff
from procession.sdk.payloads import Payloads
from procession.sdk.record_blocks import RecordForm, record_batches
from procession.sdk.sink_directory import LISTEN, OnOutcome, run_sink
from procession.sdk.sink_server import INSTANCES_MAX
from procession.sdk.transaction_log import Transaction
from procession.times import UNITS
from procession.tls import ServerTls

LANES_MAX = 1024
"""Maximum number of lanes that one process writes. Each has a producer."""
QUEUE_MESSAGES_MAX = 200_000
QUEUE_KIB_MAX = 64 * 1024
FULL_QUEUE_S = 0.01
"""Seconds between two attempts to pass a message to a client whose queue is full."""
EARLY_PATIENCE_S = 5.0
"""Seconds for which the sink waits for the client's queue before the vote. After that, the epoch's messages are sent
when it is committed, because the vote must not depend on the brokers."""
BATCH_MESSAGES_MAX = 100_000
"""Maximum number of messages in a batch. The client's default, 10,000, would split short messages into more requests
than needed."""
CLOSE_TIMEOUT_S = 2.0
FENCED_MAX = 3
"""Number of consecutive times that another producer may fence this one before the sink stops."""

_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
_PURGED = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
"""Errors of messages that were dropped because their transaction had failed for another reason."""

log = structlog.get_logger()

pause = time.sleep


class KafkaOutput(Output):
    """One instance's output. DIR/<instance>.kafka contains its identity, DIR/<instance>.pending the messages that are
    not published yet."""

    def __init__(self, base: Path, clients: KafkaClients, options: KafkaSinkOptions) -> None:
        self._clients = clients
        self._guard = guard = TopicGuard(clients, options)
        guard.check()
        guard.warn()
        self._options = options
        self._topic = clients.url.topic
        self._control = ControlTopic(clients, options.control_topic)
        self._pending = PendingRecords(base.with_name(f"{base.name}.pending"), MESSAGE_SCHEMA)
        self._identity = OutputIdentity.open(base, guard.facts, self._control)
        self._producer: Producer | None = None
        self._is_begun = False
        """Whether a transaction of `_producer` is open. It has all messages of the pending file."""
        self._undelivered: KafkaError | None = None
        """The error of the first message that failed in the current transaction."""
        self._token: Token | None = None
        """The token as `_producer` knows it. It is valid until `_producer` is fenced, because no other producer can
        publish before that."""

    def recover(self, committed_end: int, prepared: Transaction | None) -> None:
        self._leave_transaction()
        if self._producer is None:
            self._become_only_producer()
        if prepared is not None and not self._is_published(prepared):
            self._expect(prepared.start)
            self._pending.keep(prepared)
        else:
            self._expect(prepared.end if prepared else committed_end)
            self._pending.drop()

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        for message in self._cut(Payloads.of(payloads)):
            batches = list(self._messages(message))
            for number, messages in enumerate(batches, 1):
                check_sizes(messages, self._guard.message_bytes_max, self._topic)
                check_times(messages, self._guard.facts.settings, self._topic, time.time_ns() // UNITS["ms"])
                # The bytes of a block are counted once, with its last batch.
                self._pending.append(messages, message.edges[-1] if number == len(batches) else 0)
                self._send_early(messages)
        if self._pending.output_bytes > self._options.epoch_bytes_max:
            raise StorageError(
                f"An epoch has more than {self._options.epoch_bytes_max} bytes, the limit of this sink.",
                next_step="Raise transaction_bytes_max of the sink: this epoch is then published. A lower"
                " epoch_bytes_max of the pipeline makes later epochs smaller.",
            )

    def _messages(self, payloads: Payloads) -> Iterator[pa.RecordBatch]:
        encoder, form = self._options.encoder, self._options.records
        if form is RecordForm.LANES:
            blocks = payloads.joined
            return block_messages_of(blocks) if self._options.has_lane_blocks else messages_of(blocks, encoder)
        return map(encoder.encode, record_batches(payloads, form))

    def _cut(self, payloads: Payloads) -> list[Payloads]:
        """Split payloads into batches. A block is a separate batch, so that its bytes are counted with it."""
        if self._options.records is RecordForm.MESSAGES:
            return [payloads]
        return [payloads[row : row + 1] for row in range(len(payloads))]

    def prepare(self, transaction: Transaction) -> None:
        if self._pending.has_records:
            self._guard.check(self._identity.topic_id)
            self._pending.sync()

    def commit(self, transaction: Transaction) -> None:
        if self._pending.has_records:
            self._publish(transaction)
        self._pending.drop()

    def abort(self, transaction: Transaction) -> None:
        if self._is_published(transaction):
            raise StorageError(
                f"The driver aborts {transaction.txn_id}, which is published in {self._topic} already.",
                next_step="Find the other driver or sink of this pipeline; one of them runs on an old copy.",
            )
        self._leave_transaction()
        self._pending.drop()

    def close(self) -> None:
        self._pending.close()
        if self._is_begun and self._producer is not None:
            # Readers wait for the end of an open transaction. Brokers that do not answer end it themselves.
            with suppress(KafkaException):
                self._producer.abort_transaction(CLOSE_TIMEOUT_S)
        self._leave()

    def _publish(self, transaction: Transaction) -> None:
        """Publish the transaction. After a failure a new producer first ends the transaction, so each attempt starts
        from a known token."""
        deadline = time.monotonic() + self._clients.patience_s
        backoff, fenced = Backoff(), 0
        while True:
            if self._producer is None:
                self._become_only_producer()
            if self._is_published(transaction):
                return
            self._expect(transaction.start)
            try:
                self._send(transaction)
                self._token = Token.of(transaction)
                return
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if reason.code() == KafkaError._INCONSISTENT and self._undelivered is not None:
                    reason = self._undelivered  # the error of the commit has only the number of undelivered messages
                pause_s = backoff.next_s()
                log.warning(
                    "sink.publish_failed", topic=self._topic, reason=reason.str(), code=reason.name(), pause_s=pause_s
                )
                fenced = fenced + 1 if reason.code() in _FENCED else 0
                is_dead = reason.fatal() or reason.code() == KafkaError._FATAL  # only for this producer
                is_temporary = is_gone(reason) or reason.retriable() or reason.txn_requires_abort() or is_dead
                self._leave()
                if fenced > FENCED_MAX:
                    raise StorageError(
                        f"Another sink publishes as {self._identity.transactional_id} at the same time.",
                        next_step="Stop the other sink of this output, or the copy of its directory that it runs on.",
                    ) from error
                if not is_temporary or time.monotonic() > deadline:
                    raise self._clients.sentence(reason, f"publish an epoch in {self._topic}") from error
                pause(pause_s)

    def _send_early(self, messages: pa.RecordBatch) -> None:
        """Send messages of an epoch that is still arriving. After an error, the epoch's messages are sent again when it
        is committed."""
        producer = self._producer
        if producer is None or not self._options.is_early:
            return
        try:
            if not self._is_begun:
                self._begin(producer)
            self._produce(producer, messages, time.monotonic() + EARLY_PATIENCE_S)
        except (KafkaException, BufferError) as error:
            log.info("sink.kafka_not_early", topic=self._topic, reason=str(error))
            self._leave()

    def _begin(self, producer: Producer) -> None:
        self._undelivered = None
        producer.begin_transaction()
        self._is_begun = True
        faults.point("sink:kafka-begun")

    def _send(self, transaction: Transaction) -> None:
        producer = self._producer
        assert producer is not None
        if not self._is_begun:
            self._begin(producer)
            for batch in self._pending.batches():
                self._produce(producer, batch)
        faults.point("sink:kafka-sent")
        identity, token = self._identity, Token.of(transaction).encode()
        _queue(producer, self._control.name, token, identity.key, identity.token_partition)
        producer.commit_transaction(self._options.transaction_timeout_s)
        self._is_begun = False
        faults.point("sink:kafka-committed")

    def _produce(self, producer: Producer, batch: pa.RecordBatch, deadline_s: float = math.inf) -> None:
        """Pass messages to the client, one per call, because its calls for several messages accept no timestamps. The
        client's queue is bounded. Raises BufferError if it is full at the deadline."""
        produce, topic = producer.produce, self._topic
        partition = -1 if self._options.partition is None else self._options.partition
        keys, values, timestamps, headers = (column.to_pylist() for column in batch.columns)
        header_lists = (
            [None] * len(batch) if batch.column("headers").null_count == len(batch) else map(_header_pairs, headers)
        )
        for value, key, timestamp_ms, pairs in zip(values, keys, timestamps, header_lists, strict=True):
            try:
                produce(topic, value, key, partition, None, None, timestamp_ms, pairs)
            except BufferError:
                _queue(producer, topic, value, key, partition, None, None, timestamp_ms, pairs, deadline_s=deadline_s)
        producer.poll(0)

    def _note_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is not None and error.code() not in _PURGED and self._undelivered is None:
            self._undelivered = error

    def _become_only_producer(self) -> None:
        """Fence every earlier producer, which ends its transaction, and read the token."""
        timeout_s = self._options.transaction_timeout_s
        producer = self._clients.producer(
            {
                "transactional.id": self._identity.transactional_id,
                "transaction.timeout.ms": timeout_s * 1000,
                "message.timeout.ms": timeout_s * 1000,
                "acks": "all",
                "partitioner": "murmur2_random",
                "compression.type": self._options.compression,
                "message.max.bytes": max(self._guard.message_bytes_max, MESSAGE_BYTES_MAX),
                "batch.size": min(self._guard.message_bytes_max, MESSAGE_BYTES_MAX),
                "batch.num.messages": BATCH_MESSAGES_MAX,
                "on_delivery": self._note_delivery,
                "delivery.report.only.error": True,  # the commit of the transaction reports all other errors
                "linger.ms": 5,
                "queue.buffering.max.messages": QUEUE_MESSAGES_MAX,
                "queue.buffering.max.kbytes": QUEUE_KIB_MAX,
            }
        )
        try:
            producer.init_transactions(self._clients.patience_s)
        except KafkaException as error:
            self._clients.refused(error, f"become the producer {self._identity.transactional_id}")
        self._token = self._control.read(
            self._identity.key, self._identity.token_partition, timeout_s + self._clients.patience_s
        )
        self._producer = producer

    def _leave_transaction(self) -> None:
        """Drop the open transaction, if there is one."""
        if self._is_begun:
            self._leave()

    def _leave(self) -> None:
        """Drop the producer without waiting for messages in flight: the next producer aborts their transaction."""
        producer, self._producer = self._producer, None
        self._is_begun = False
        if producer is not None:
            producer.purge()  # `close` would wait for brokers to abort a transaction that they abort anyway

    def _is_published(self, transaction: Transaction) -> bool:
        return self._token == Token.of(transaction)

    def _expect(self, end: int) -> None:
        """Raise StorageError unless the topic has the output exactly up to this position."""
        found = self._token.end if self._token else 0
        if found == end:
            return
        lost = "it has lost its token" if self._token is None else f"it was published up to {found}"
        raise StorageError(
            f"The topic {self._topic} is not what the log of {self._identity.key} says: it says that the topic has"
            f" the output up to {end}, but according to {self._control.name} {lost}.",
            next_step="Restore the sink's directory or the control topic; or take a new topic and directory.",
        )


def _queue(producer: Producer, *message: Any, deadline_s: float = math.inf) -> None:
    """Pass a message to the client as soon as the client's queue has room."""
    while True:
        try:
            producer.produce(*message)
            return
        except BufferError:
            if time.monotonic() > deadline_s:
                raise
            # A delivered message frees space without an event, so `poll` would wait for its whole time-out.
            producer.poll(FULL_QUEUE_S)


def _header_pairs(headers: list[dict[str, Any]] | None) -> list[tuple[str, str | bytes | None]] | None:
    return [(header["name"], header["value"]) for header in headers] if headers else None


def run_kafka_sink(
    directory: Path,
    listen: str = LISTEN,
    *,
    clients: KafkaClients,
    options: KafkaSinkOptions,
    cookie: bytes | None = None,
    tls: ServerTls | None = None,
    on_outcome: OnOutcome | None = None,
) -> None:
    """Serve the sink until a signal stops it; raises the error that stopped it otherwise."""
    TopicGuard(clients, options).check_start()

    def open_output(instance: str) -> KafkaOutput:
        own = options
        if options.records is RecordForm.LANES:
            # A lane is the partition of its number, the last part of the instance's name: PIPELINE-SINK-3.
            own = replace(options, partition=int(instance.rpartition("-")[2]))
        return KafkaOutput(directory / instance, clients.of_instance(instance), own)

    limit = LANES_MAX if options.records is RecordForm.LANES else INSTANCES_MAX
    run_sink(open_output, directory, listen, cookie=cookie, tls=tls, on_outcome=on_outcome, instances_max=limit)
