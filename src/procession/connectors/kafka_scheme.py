"""Parses the Kafka URLs of apps: `kafka://HOST:PORT/TOPIC?option=value`. Pure.

Invariant: an option of the URL is an option of the program, with the same name and meaning. Upstream: the planner;
downstream: `cli/kafka_commands`. Imports no client library.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from procession.errors import ConfigError
from procession.planner.connector import Connector, EpochLimits, SinkTraits, SourceTraits
from procession.planner.connector_url import FLAG, NUMBER, TEXT, ConnectorUrl, OptionKind
from procession.record import stream_id

EPOCH_BYTES_MAX = 128 * 1024 * 1024
"""Default for the largest epoch that a sink accepts."""

BROKEN_ORDERS = ("total", "stream")
"""Orders that a topic with several partitions does not preserve. It preserves the order of each key."""

_BOTH = {"envelope": FLAG, "client_config": TEXT, "schema_registry": TEXT, "broker_patience_s": NUMBER}
SINK_OPTIONS: Mapping[str, OptionKind] = _BOTH | {
    "partition": NUMBER,
    "tombstones": FLAG,
    "timestamps": ("event", "publish"),
    "compression": ("none", "gzip", "snappy", "lz4", "zstd"),
    "transaction_bytes_max": NUMBER,
    "send": ("early", "commit"),
    "control_topic": TEXT,
    "subject": TEXT,
    "lane_messages": ("records", "blocks"),
}
SOURCE_OPTIONS: Mapping[str, OptionKind] = _BOTH | {
    "partitions": TEXT,
    "start": TEXT,
    "stop_at_end": FLAG,
    "group": TEXT,
    "skip_deleted": FLAG,
    "no_event_times": FLAG,
}


def check_sink(url: ConnectorUrl) -> None:
    _check(url, SINK_OPTIONS)


def check_source(url: ConnectorUrl) -> None:
    _check(url, SOURCE_OPTIONS)
    try:
        partition_numbers(url.options.get("partitions", "0"))
    except ConfigError:
        url.refuse("names partitions that are not numbers", "write numbers, separated by commas: ?partitions=0,1,5")


def _check(url: ConnectorUrl, known: Mapping[str, OptionKind]) -> None:
    if not url.hosts or not url.path.strip("/") or url.user:
        url.refuse("is not a URL of a Kafka topic", "write kafka://HOST:PORT/TOPIC")
    url.check_options(known)
    url.check_values(known)


def program_arguments(url: ConnectorUrl, directory: Path) -> list[str]:
    """Return the program's arguments: the URL without its options, the directory, and the options."""
    arguments = [url.text.partition("?")[0], str(directory)]
    for name, value in url.options.items():
        option = f"--{name.replace('_', '-')}"
        kind = (SINK_OPTIONS | SOURCE_OPTIONS)[name]  # type: ignore[operator]
        if kind != FLAG:
            arguments += [option, value]
        elif value == "true":
            arguments.append(option)
    return arguments


def epoch_limits(url: ConnectorUrl) -> EpochLimits:
    return EpochLimits(bytes_max=url.count("transaction_bytes_max") or EPOCH_BYTES_MAX)


def declared_streams(url: ConnectorUrl) -> frozenset[int]:
    """Return the ids of the streams for event-time order, one per partition in the URL. They are derived from the
    topic's name, because only the cluster knows the topic's id."""
    if (text := url.options.get("partitions")) is None:
        url.refuse(
            "names no partitions, but in event-time order the streams must be known before the start",
            "name all that are to be merged, such as ?partitions=0,1,2",
        )
    return frozenset(named_stream(url.path.strip("/"), number) for number in partition_numbers(text))


def named_stream(topic: str, partition: int) -> int:
    """Return the stream id of a partition, derived from the topic's name."""
    return stream_id(f"kafka:{topic}/{partition}".encode())


def partition_numbers(text: str) -> frozenset[int]:
    """Parse partitions such as `0,1,5`. Raises ConfigError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise ConfigError(f"{text!r} are not partition numbers.", next_step="Give numbers, separated by commas: 0,1,5.")
    return frozenset(map(int, parts))


def order_note(url: ConnectorUrl, order: str) -> str:
    if order not in BROKEN_ORDERS or "partition" in url.options:
        return ""
    return f"a topic keeps the order {order!r} within a partition; with several, write ?partition=0 to keep it"


CONNECTOR = Connector(
    name="kafka",
    form="kafka://HOST:PORT/TOPIC",
    sink=SinkTraits(
        help="Publish each committed epoch to a Kafka topic in one transaction.",
        check=check_sink,
        arguments=program_arguments,
        limits=epoch_limits,
        order_note=order_note,
        takes_order=True,
        lanes="procession.connectors.kafka_lanes:open_url",
    ),
    source=SourceTraits(
        help="Send the messages of a Kafka topic.",
        check=check_source,
        arguments=program_arguments,
        ends=lambda url: url.options.get("stop_at_end") == "true",
        streams="procession.connectors.kafka_source:url_streams",
        declared=declared_streams,
        declared_arguments=lambda _, __: ["--streams-by-name"],
        rewind="procession.connectors.kafka_rewind:KafkaRewind",
    ),
    commands="procession.cli.kafka_commands",
    modules=("confluent_kafka", "fastavro", "httpx"),
    install="procession[kafka]",
    password_hint="a sasl.password line in the file that PROCESSION_KAFKA_CONFIG names",
)
