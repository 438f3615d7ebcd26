"""Runs the reader of `procession bench conflux`: a downstream service that needs the output in order.

Invariant: the reader is a separate process, like a service. It reads lanes with the merger (`sdk/lane_merge`), and a
topic with one partition with a plain consumer. Both read committed messages. It records when the client returned a
message (`consumed_ns`) and when the service had the record in order (`emitted_ns`). After the run it reads the topic
again for the time at which the broker appended each message (`sunk_ns`), so that the measurement does not pay for it.
Upstream: the topic; downstream: the file of arrays that `bench/conflux_figures` reads.
"""

from __future__ import annotations

import bisect
import itertools
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message, TopicPartition

from procession.bench.stamped_records import RECORD, records_of
from procession.connectors.kafka_client import KafkaClients, KafkaUrl, next_messages
from procession.connectors.kafka_lane_messages import BLOCK_HEADER, content_of
from procession.connectors.kafka_lanes import POLL_MESSAGES, POLL_S, open_topic
from procession.errors import StorageError
from procession.sdk.lane_merge import LaneMerge, MergeOptions
from procession.wire.lane_blocks import LaneRecords

Times = npt.NDArray[np.int64]

READ_TIMEOUT_S = 60.0
"""Maximum time between two messages of the second pass."""
NO_NUMBERS: Times = np.zeros(0, np.int64)

# Functions to map over whole lists, in a third of the time of a loop, because the reader's time is part of the
# measurement.
_ERROR: Callable[[Message], KafkaError | None] = Message.error
_PARTITION: Callable[[Message], Any] = Message.partition
_TIMESTAMP: Callable[[Message], tuple[int, int]] = Message.timestamp
_VALUE: Callable[[Message], bytes | None] = Message.value

STAMPS = ("created_ns", "processed_ns", "sunk_ns", "consumed_ns", "emitted_ns")


class Poll(NamedTuple):
    """Messages that the client returned together: the time, and their number in each partition."""

    at_ns: int
    counts: Mapping[int, int]


class StampingConsumer:
    """A consumer that records when it returns messages."""

    def __init__(self, consumer: Any, polls: list[Poll]) -> None:
        self._consumer = consumer
        self._polls = polls

    def poll(self, timeout: float) -> Any:
        message = self._consumer.poll(timeout)
        if message is not None:
            self._note([message])
        return message

    def consume(self, count: int, timeout: float) -> list[Any]:
        messages: list[Any] = self._consumer.consume(count, timeout=timeout)
        self._note(messages)
        return messages

    def _note(self, messages: list[Any]) -> None:
        now_ns = time.time_ns()
        if any(map(_ERROR, messages)):
            messages = [message for message in messages if message.error() is None]
        if counts := Counter(map(_PARTITION, messages)):
            self._polls.append(Poll(now_ns, counts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


class StampingClients(KafkaClients):
    """Clients whose consumers record when they return messages."""

    def __init__(self, url: KafkaUrl, polls: list[Poll]) -> None:
        super().__init__(url, {})
        self._polls = polls

    def consumer(self, settings: Mapping[str, Any]) -> Any:
        return StampingConsumer(super().consumer(settings), self._polls)


class Emission(NamedTuple):
    """Records that the service received together in order."""

    at_ns: int
    records: npt.NDArray[Any]


def read_merged(clients: KafkaClients, position: Mapping[str, Any], expected: int) -> tuple[list[Emission], Any]:
    """Merge lanes until all records are read. Return the records and the position after them."""
    stop, found, count = threading.Event(), [], 0
    merge = LaneMerge(open_topic(clients), MergeOptions(is_following=True), position.get("merge"), stop=stop)
    for turn in merge.turns():
        for batch in turn:
            found.append(Emission(time.time_ns(), records_of(batch.rows.column("payload")).copy()))
            count += batch.rows.num_rows
        if count >= expected:
            stop.set()
    reached = merge.position
    merge.close()
    return found, {"merge": reached, "offsets": {name.rpartition("-")[2]: at for name, at in reached["at"].items()}}


def read_plain(clients: KafkaClients, position: Mapping[str, Any], expected: int) -> tuple[list[Emission], Any]:
    """Read partition 0 until all records are read."""
    consumer = clients.consumer({"fetch.wait.max.ms": 50})
    offset, found, count = position.get("offsets", {}).get("0", OFFSET_BEGINNING), [], 0
    consumer.assign([TopicPartition(clients.url.topic, 0, offset)])
    while count < expected:
        messages = next_messages(consumer, POLL_MESSAGES, POLL_S)
        if error := next(filter(None, map(_ERROR, messages)), None):
            raise StorageError(f"the output cannot be read: {error.str()}")
        if messages:
            values = [value or b"" for value in map(_VALUE, messages)]
            found.append(Emission(time.time_ns(), np.frombuffer(b"".join(values), RECORD)))
            offset, count = (messages[-1].offset() or 0) + 1, count + len(messages)
    consumer.close()
    return found, {"offsets": {"0": offset}}


class AppendedMessages(NamedTuple):
    """The messages of a partition in their order, and the records in them."""

    numbers: Times
    """The number of each record."""
    places: Times
    """The index of the message that contains each record."""
    appended_ns: Times
    """When each message was appended."""


def read_appended(url: KafkaUrl, start: Mapping[str, int], end: Mapping[str, int]) -> dict[int, AppendedMessages]:
    """Read the messages of the run a second time, for the times at which they were appended."""
    consumer = KafkaClients(url, {}).consumer({"enable.partition.eof": True})
    found = {}
    for name, stop in end.items():
        partition, numbers, counts, times = int(name), [NO_NUMBERS], [NO_NUMBERS], []
        consumer.assign([TopicPartition(url.topic, partition, start.get(name, OFFSET_BEGINNING))])
        for messages in _polls(consumer, stop):
            some, per_message = numbers_of(messages)
            numbers.append(some)
            counts.append(per_message)
            times += [appended_ms for _, appended_ms in map(_TIMESTAMP, messages)]
        places = np.repeat(np.arange(len(times)), np.concatenate(counts))
        found[partition] = AppendedMessages(np.concatenate(numbers), places, np.array(times, np.int64) * 1_000_000)
    consumer.close()
    return found


def numbers_of(messages: Sequence[Any]) -> tuple[Times, Times]:
    """Return the numbers of the records in these messages, and how many each message has."""
    values = [value or b"" for value in map(_VALUE, messages)]
    is_record = np.fromiter(map(len, values), np.int64, len(values)) == RECORD.itemsize
    records = np.frombuffer(b"".join(itertools.compress(values, is_record)), RECORD)["number"]
    blocks = {place: _block_numbers(messages[place]) for place in np.flatnonzero(~is_record).tolist()}
    counts = is_record.astype(np.int64)
    for place, numbers in blocks.items():
        counts[place] = len(numbers)
    ends = np.cumsum(counts)
    found = np.empty(int(counts.sum()), np.int64)
    found[ends[is_record] - 1] = records
    for place, numbers in blocks.items():
        found[ends[place] - len(numbers) : ends[place]] = numbers
    return found, counts


def _block_numbers(message: Any) -> Times:
    """Return the numbers of the records in a block. Frontiers and messages with order keys have no records."""
    if BLOCK_HEADER not in dict(message.headers() or ()):
        return NO_NUMBERS
    content = content_of(message.value())
    assert isinstance(content, LaneRecords)
    return records_of(content.batch.column("payload"))["number"]


def _polls(consumer: Any, stop: int) -> Iterator[Sequence[Any]]:
    """Yield the messages of a partition before this offset, poll by poll."""
    deadline_s = time.monotonic() + READ_TIMEOUT_S
    while time.monotonic() < deadline_s:
        polled = next_messages(consumer, POLL_MESSAGES, POLL_S)
        errors = list(map(_ERROR, polled))
        messages = [message for message, error in zip(polled, errors, strict=True) if error is None]
        if messages:
            deadline_s = time.monotonic() + READ_TIMEOUT_S
            offsets = [message.offset() or 0 for message in messages]
            yield messages[: bisect.bisect_left(offsets, stop)]
            if offsets[-1] >= stop:
                return
        for error in filter(None, errors):
            if error.code() == KafkaError._PARTITION_EOF:
                return
            raise StorageError(f"the output cannot be read: {error.str()}")
    raise StorageError("the output cannot be read to its end")


def stamps_of(
    emissions: list[Emission], polls: list[Poll], appended: Mapping[int, AppendedMessages]
) -> dict[str, Times]:
    """Return the number and the five times of each record, in the order of emission. Raises StorageError if a time is
    missing."""
    records = np.concatenate([emission.records for emission in emissions])
    numbers = np.ascontiguousarray(records["number"])
    size = int(numbers.max()) + 1
    at_sink, consumed = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for partition, messages in appended.items():
        counts = [poll.counts.get(partition, 0) for poll in polls]
        at = np.repeat([poll.at_ns for poll in polls], counts)
        is_read = messages.places < len(at)
        consumed[messages.numbers[is_read]] = at[messages.places[is_read]]
        at_sink[messages.numbers] = messages.appended_ns[messages.places]
    stamps = {
        "number": numbers,
        "created_ns": np.ascontiguousarray(records["created_ns"]),
        "processed_ns": np.ascontiguousarray(records["processed_ns"]),
        "sunk_ns": at_sink[numbers],
        "consumed_ns": consumed[numbers],
        "emitted_ns": np.repeat(
            [emission.at_ns for emission in emissions], [len(emission.records) for emission in emissions]
        ),
    }
    if missing := [name for name in STAMPS if (stamps[name] <= 0).any()]:
        raise StorageError(f"records have no {missing[0]}")
    return stamps


def read_output(url: str, position: Mapping[str, Any], expected: int, output: Path, *, has_lanes: bool) -> Any:
    """Read this many records, write their stamps to a file, and return the position after them."""
    polls: list[Poll] = []
    parsed = KafkaUrl.parse(url)
    clients = StampingClients(parsed, polls)
    print("ready", flush=True)
    emissions, reached = (read_merged if has_lanes else read_plain)(clients, position, expected)
    print("read", flush=True)
    appended = read_appended(parsed, position.get("offsets", {}), reached["offsets"])
    np.savez(output, **stamps_of(emissions, polls, appended))  # type: ignore[arg-type]
    return reached


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(
        json.dumps(
            read_output(
                given["url"],
                given["position"],
                given["expected"],
                Path(given["output"]),
                has_lanes=given["has_lanes"],
            )
        ),
        flush=True,
    )
