"""Maps the key, value, timestamp and headers of Kafka messages to a pipeline's records, and back.

Invariant: a record's payload is the message's value, byte for byte; or an *envelope*, one JSON object with the whole
message. An envelope that cannot become a message is refused before the vote. Upstream: `connectors/kafka_sink`;
downstream: librdkafka, and `connectors/schema_registry` if values have schemas.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from procession.errors import RecordError, StorageError
from procession.times import UNITS

HEADERS_MAX = 1000
RECORD_OVERHEAD_BYTES = 128
"""Upper bound for the size of a batch with one message, besides its key, value and headers."""
HEADER_OVERHEAD_BYTES = 16
AHEAD_MAX_MS = 3600 * 1000
"""The brokers' default maximum for timestamps in the future, used if the brokers do not report theirs."""

MESSAGE_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.large_binary()),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
    ]
)
"""Columns of messages that wait to be published. A null value is a tombstone; a timestamp of 0 means the time of
publishing."""

Header = tuple[str, bytes | None]


class SchemaCodec(Protocol):
    """Converts values with a schema between bytes and JSON values."""

    def decode(self, value: bytes) -> Any: ...

    def encode(self, value: Any) -> bytes: ...


class _OpenedEnvelope(NamedTuple):
    """The message that an envelope describes."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None
    headers: list[dict[str, Any]] | None


@dataclass(frozen=True, slots=True)
class MessageEncoder:
    """Converts records into messages.

    Args:
        is_envelope: Payloads are envelopes.
        has_tombstones: An empty payload is a null value.
        has_event_times: A message's timestamp is its record's event time, if that has one.
        codec: Converts values with schemas; payloads are then JSON.
    """

    is_envelope: bool = False
    has_tombstones: bool = False
    has_event_times: bool = True
    codec: SchemaCodec | None = None

    def encode(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch with the columns payload, key and event_time_ns to a batch of MESSAGE_SCHEMA."""
        payloads, keys, times = (records.column(name) for name in ("payload", "key", "event_time_ns"))
        keys = pc.if_else(pc.equal(pc.binary_length(keys), 0), pa.scalar(None, pa.binary()), keys)
        headers = pa.nulls(len(records), MESSAGE_SCHEMA.field("headers").type)
        timestamps = self._timestamps(times)
        if self.is_envelope:
            opened = [self._open(payload) for payload in payloads.to_pylist()]
            own = pa.array([message.key for message in opened], pa.binary())
            keys = pc.coalesce(own, keys)
            payloads = pa.array([message.value for message in opened], pa.large_binary())
            times_ms = pa.array([message.timestamp_ms for message in opened], pa.int64())
            timestamps = pc.coalesce(times_ms, timestamps)
            headers = pa.array([message.headers for message in opened], MESSAGE_SCHEMA.field("headers").type)
        else:
            payloads = payloads.cast(pa.large_binary())
            is_empty = pc.equal(pc.binary_length(payloads), 0)
            if self.codec is not None:
                values = [self._encoded(payload) if payload else b"" for payload in payloads.to_pylist()]
                payloads = pa.array(values, pa.large_binary())
            if self.has_tombstones:
                payloads = pc.if_else(is_empty, pa.scalar(None, pa.large_binary()), payloads)
        return pa.record_batch([keys, payloads, timestamps, headers], schema=MESSAGE_SCHEMA)

    def _timestamps(self, times: pa.Array) -> pa.Array:
        if not self.has_event_times:
            return pa.array(np.zeros(len(times), np.int64))
        times = pc.fill_null(times, 0).to_numpy(zero_copy_only=False)
        return pa.array(np.maximum(times, 0) // UNITS["ms"])

    def _encoded(self, payload: bytes) -> bytes:
        assert self.codec is not None
        try:
            value = json.loads(payload)
        except ValueError as error:
            raise _bad_record(f"is not JSON ({error}), and the topic's values have a schema", payload) from None
        return self.codec.encode(value)

    def _open(self, payload: bytes) -> _OpenedEnvelope:
        try:
            envelope = json.loads(payload)
        except ValueError as error:
            raise _bad_record(f"is no envelope: it is not JSON ({error})", payload) from None
        if not isinstance(envelope, dict) or not ({"value", "value_base64"} & envelope.keys()):
            raise _bad_record("is no envelope: it is not a JSON object with a value", payload)
        timestamp = envelope.get("timestamp_ms")
        if timestamp is not None and not (type(timestamp) is int and 0 <= timestamp < 2**63):
            raise _bad_record("is an envelope whose timestamp_ms is not a number of milliseconds since 1970", payload)
        return _OpenedEnvelope(
            _bytes_of(envelope, "key", payload),
            self._value(envelope, payload),
            timestamp,
            _headers_of(envelope.get("headers"), payload),
        )

    def _value(self, envelope: dict[str, Any], payload: bytes) -> bytes | None:
        value = envelope.get("value")
        if self.codec is not None and value is not None:
            return self.codec.encode(value)
        if value is None or isinstance(value, str):
            return _bytes_of(envelope, "value", payload)
        return json_of(value)


def check_sizes(messages: pa.RecordBatch, bytes_max: int, topic: str) -> None:
    """Raise StorageError if a message is too large for the topic. Called before the vote."""
    sizes = pc.add(
        pc.fill_null(pc.binary_length(messages.column("key")), 0).cast(pa.int64()),
        pc.fill_null(pc.binary_length(messages.column("value")), 0),
    ).to_numpy(zero_copy_only=False)
    headers = messages.column("headers")
    if headers.null_count < len(messages):
        sizes = sizes + np.array([_header_bytes(these) for these in headers.to_pylist()], np.int64)
    largest = int(sizes.max(initial=0))
    if largest + RECORD_OVERHEAD_BYTES > bytes_max:
        raise StorageError(
            f"A record has {largest} bytes, but the topic {topic} takes messages of at most {bytes_max} bytes"
            f" with {RECORD_OVERHEAD_BYTES} for their frame.",
            next_step="Raise max.message.bytes of the topic, or make the record shorter; nothing of its epoch is"
            " committed.",
        )


def check_times(messages: pa.RecordBatch, settings: Mapping[str, str], topic: str, now_ms: int) -> None:
    """Raise StorageError if a topic with these settings refuses the timestamp of a message. Called before the
    vote."""
    if settings.get("message.timestamp.type") == "LogAppendTime":
        return
    either = settings.get("message.timestamp.difference.max.ms")  # the setting of brokers before 3.6
    ahead_max_ms = int(settings.get("message.timestamp.after.max.ms", either or AHEAD_MAX_MS))
    behind_max_ms = int(settings.get("message.timestamp.before.max.ms", either or 2**63))
    times_ms = messages.column("timestamp_ms").to_numpy()
    times_ms = times_ms[times_ms > 0]
    latest, earliest = int(times_ms.max(initial=0)), int(times_ms.min(initial=2**63 - 1))
    if latest - now_ms <= ahead_max_ms and now_ms - earliest <= behind_max_ms:
        return
    is_ahead = latest - now_ms > ahead_max_ms
    far = f"{latest - now_ms} ms in the future" if is_ahead else f"{now_ms - earliest} ms in the past"
    name = "after" if is_ahead else "before"
    raise StorageError(
        f"A record has a timestamp {far}, but the topic {topic} takes at most"
        f" {ahead_max_ms if is_ahead else behind_max_ms} (message.timestamp.{name}.max.ms).",
        next_step=f"Correct the clock that set it, raise message.timestamp.{name}.max.ms of the topic, or give the sink"
        " --timestamps publish; nothing of its epoch is committed.",
    )


def _header_bytes(headers: list[dict[str, Any]] | None) -> int:
    return sum(
        len(header["name"].encode()) + len(header["value"] or b"") + HEADER_OVERHEAD_BYTES for header in headers or ()
    )


def envelope_of(
    place: dict[str, Any], key: bytes | None, value: Any, timestamp_ms: int, headers: Sequence[Header]
) -> bytes:
    """Return the envelope of a message that was read. A value of bytes is text, or base64 if it is not UTF-8."""
    envelope = place | {"timestamp_ms": timestamp_ms}
    envelope |= _field_json("key", key)
    envelope |= _field_json("value", value) if value is None or isinstance(value, bytes) else {"value": value}
    envelope["headers"] = [_header_json(name, data) for name, data in headers]
    return json_of(envelope)


def json_of(value: object) -> bytes:
    """Return a value as compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _header_json(name: str, data: bytes | None) -> list[str | None]:
    if data is None or _is_text(data):
        return [name, None if data is None else data.decode()]
    return [name, None, base64.b64encode(data).decode()]


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _field_json(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    return {name: data.decode()} if _is_text(data) else {f"{name}_base64": base64.b64encode(data).decode()}


def _bytes_of(envelope: dict[str, Any], name: str, payload: bytes) -> bytes | None:
    text, encoded = envelope.get(name), envelope.get(f"{name}_base64")
    if isinstance(encoded, str) and text is None:
        return _base64(encoded, name, payload)
    if text is None or isinstance(text, str):
        return None if text is None else text.encode()
    raise _bad_record(f"is an envelope whose {name} is not text", payload)


def _headers_of(headers: Any, payload: bytes) -> list[dict[str, Any]] | None:
    """Parse headers: an object of texts, or a list of [name, text] and [name, null, base64]."""
    if headers is None:
        return None
    pairs = [list(pair) for pair in headers.items()] if isinstance(headers, dict) else headers
    if not isinstance(pairs, list) or len(pairs) > HEADERS_MAX:
        raise _bad_record(f"is an envelope whose headers are no list of at most {HEADERS_MAX}", payload)
    found: list[dict[str, Any]] = []
    for pair in pairs:
        match pair:
            case [str(name), None, str(encoded)]:
                found.append({"name": name, "value": _base64(encoded, "headers", payload)})
            case [str(name), str(text)]:
                found.append({"name": name, "value": text.encode()})
            case [str(name), None]:
                found.append({"name": name, "value": None})
            case _:
                raise _bad_record("is an envelope with a header that is not [name, text]", payload)
    return found


def _base64(text: str, name: str, payload: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise _bad_record(f"is an envelope whose {name} is not base64", payload) from None


def _bad_record(what: str, payload: bytes) -> RecordError:
    return RecordError(
        f"The record {payload[:60]!r} {what}.",
        next_step="Correct the stage before the sink, or leave out --envelope or --schema-registry.",
    )
