"""The commands `procession source kafka` and `procession sink kafka`: each parses its options and makes one call.

Invariant: as in `cli`. Secrets are in files, never in arguments. Upstream: the command line; downstream:
`connectors/kafka_sink`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from procession.cli.command_options import with_groups
from procession.cli.sink_commands import Directory, Json, ReceiveOptions, print_json
from procession.cli.source_commands import Acks, SendOptions
from procession.errors import UsageError
from procession.exit_status import Status

if TYPE_CHECKING:
    from procession.connectors.kafka_client import KafkaClients, KafkaUrl
    from procession.connectors.schema_registry import RegistryCodec

Url = Annotated[str, typer.Argument(metavar="URL", help="kafka://HOST:PORT,HOST:PORT/TOPIC, without any secret.")]
ClientConfig = Annotated[
    Path | None,
    typer.Option(
        envvar="PROCESSION_KAFKA_CONFIG",
        help="File of name=value lines for TLS and SASL: security.protocol, sasl.*, ssl.* of librdkafka.",
    ),
]
Registry = Annotated[
    str | None,
    typer.Option(help="URL of a schema registry: values are Avro, Protobuf or JSON with schemas, payloads are JSON."),
]
PatienceS = Annotated[
    float, typer.Option("--broker-patience-s", min=1, help="Seconds to wait for brokers before the connector ends.")
]
Envelope = Annotated[
    bool,
    typer.Option(
        "--envelope", help="Payloads are JSON objects with key, value, timestamp_ms and headers of the message."
    ),
]


@dataclass(frozen=True, kw_only=True)
class BrokerOptions:
    """Options of every command that connects to Kafka."""

    client_config: ClientConfig = None
    schema_registry: Registry = None
    broker_patience_s: PatienceS = 60.0

    def clients(self, url: KafkaUrl) -> KafkaClients:
        from procession.connectors.kafka_client import KafkaClients, read_client_config

        return KafkaClients(url, read_client_config(self.client_config), patience_s=self.broker_patience_s)

    def codec(self, subject: str | None = None) -> RegistryCodec | None:
        """Return the codec for values. For a sink: with the subject whose latest schema it writes."""
        if self.schema_registry is None:
            return None
        from procession.connectors.kafka_client import read_client_config
        from procession.connectors.schema_registry import RegistryCodec, SchemaRegistry

        return RegistryCodec(SchemaRegistry(self.schema_registry, read_client_config(self.client_config)), subject)


@with_groups
def sink_kafka(
    url: Url,
    directory: Directory,
    records: Annotated[
        Literal["messages", "blocks", "lanes"],
        typer.Option(help="How records arrive: one per message, blocks, or lane blocks, each lane for its partition."),
    ] = "messages",
    lane_messages: Annotated[
        Literal["records", "blocks"],
        typer.Option(
            help="With lanes: a message has one record, or a block of many records, which only mergers can read."
        ),
    ] = "records",
    partition: Annotated[
        int | None,
        typer.Option(
            min=0, show_default="by key, as Java clients", help="Publish to this one partition, in total order."
        ),
    ] = None,
    envelope: Envelope = False,
    tombstones: Annotated[
        bool, typer.Option("--tombstones", help="Publish an empty payload as null, which deletes its key.")
    ] = False,
    timestamps: Annotated[
        Literal["event", "publish"], typer.Option(help="Timestamp of a message: event time, or time of publishing.")
    ] = "event",
    compression: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"], typer.Option(help="Compression of the messages.")
    ] = "none",
    transaction_bytes_max: Annotated[
        int,
        typer.Option(
            min=1, help="Largest epoch that the sink accepts. It determines the time-out of the Kafka transaction."
        ),
    ] = 128 * 1024 * 1024,
    send: Annotated[
        Literal["early", "commit"],
        typer.Option(
            help="When messages are sent: while the epoch arrives, or when it is committed. Early is quicker, but"
            " read_committed readers see messages of other producers only after the epoch's end."
        ),
    ] = "early",
    control_topic: Annotated[
        str, typer.Option(help="Compacted topic for the sink's tokens. Created if it is missing.")
    ] = "procession-tokens",
    subject: Annotated[
        str | None,
        typer.Option(
            show_default="TOPIC-value", help="With --schema-registry: write the latest schema of this subject."
        ),
    ] = None,
    order: Annotated[
        Literal["total", "stream", "key", "none"],
        typer.Option(help="Order that the pipeline keeps. The sink warns if the topic does not preserve it."),
    ] = "key",
    as_json: Json = False,
    *,
    broker: BrokerOptions,
    receive: ReceiveOptions,
) -> None:
    """Publish each committed epoch to a Kafka topic in one transaction, exactly once.

    Readers need isolation.level=read_committed. DIR contains unpublished messages and the identity of each output;
    restart the sink with the same DIR and URL. The topic must exist; give it 3 replicas and min.insync.replicas=2.
    """
    from procession.connectors.kafka_client import KafkaUrl
    from procession.connectors.kafka_messages import MessageEncoder
    from procession.connectors.kafka_sink import run_kafka_sink
    from procession.connectors.kafka_topic import KafkaSinkOptions
    from procession.sdk.record_blocks import RecordForm

    if records == "lanes" and (envelope or partition is not None):
        raise UsageError("Lanes use their own headers and partitions.", next_step="Leave out envelope, partition.")
    is_in_blocks = lane_messages == "blocks"
    if is_in_blocks and (records != "lanes" or tombstones or broker.schema_registry is not None):
        raise UsageError(
            "Blocks are messages of lanes, and contain unchanged records.",
            next_step="Leave out lane_messages; or name lanes= at the sink, without tombstones and schema_registry.",
        )
    place = KafkaUrl.parse(url)
    encoder = MessageEncoder(
        is_envelope=envelope,
        has_tombstones=tombstones,
        has_event_times=timestamps == "event",
        codec=broker.codec(subject or f"{place.topic}-value"),
    )
    options = KafkaSinkOptions(
        RecordForm(records),
        encoder,
        partition,
        control_topic,
        transaction_bytes_max,
        compression,
        order,
        is_in_blocks,
        is_early=send == "early",
    )
    run_kafka_sink(
        directory,
        receive.listen,
        clients=broker.clients(place),
        options=options,
        cookie=receive.cookie(),
        tls=receive.tls.load(),
        on_outcome=print_json if as_json else None,
    )


@with_groups
def source_kafka(
    url: Url,
    state: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Store start offsets and leader epochs in this directory."),
    ] = None,
    partitions: Annotated[
        str | None,
        typer.Option(metavar="N,N", show_default="all, also new ones", help="Read only these partitions."),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            help="Where to begin in partitions without committed messages: earliest, latest, a time in ISO 8601, or"
            " PARTITION:OFFSET,PARTITION:OFFSET."
        ),
    ] = "earliest",
    stop_at_end: Annotated[
        bool,
        typer.Option("--stop-at-end", help="End at the offsets where the partitions ended when the source started."),
    ] = False,
    skip_deleted: Annotated[
        bool, typer.Option("--skip-deleted", help="Continue if retention has deleted messages that were not read.")
    ] = False,
    no_event_times: Annotated[
        bool, typer.Option("--no-event-times", help="Do not use the messages' timestamps as event times.")
    ] = False,
    envelope: Envelope = False,
    group: Annotated[
        str, typer.Option(help="Commit positions to this consumer group, for other tools to see.", show_default="none")
    ] = "",
    streams_by_name: Annotated[
        bool,
        typer.Option(
            "--streams-by-name",
            help="Name streams by topic and partition (kafka:TOPIC/0), so that an event-time order can declare them."
            " Needs DIR and --partitions.",
        ),
    ] = False,
    acks: Acks = None,
    *,
    broker: BrokerOptions,
    send: SendOptions,
) -> None:
    """Send the messages of a Kafka topic. Each partition is a stream; a message's id is its offset.

    The pipeline stores the positions, not a consumer group: a restart continues after the last committed message.
    Only committed messages are read. Brokers may restart meanwhile.
    """
    from dataclasses import replace

    from procession.connectors.kafka_client import KafkaUrl
    from procession.connectors.kafka_positions import StartPosition
    from procession.connectors.kafka_source import (
        PARTITIONS_MAX,
        KafkaSource,
        KafkaSourceOptions,
        parse_partitions,
    )
    from procession.sdk.connector_program import run_source

    if streams_by_name and (state is None or partitions is None):
        missing = "a directory" if state is None else "--partitions"
        raise UsageError(
            f"--streams-by-name needs {missing}.",
            next_step="Give the directory for the source's state, and all partitions to merge.",
        )
    place = KafkaUrl.parse(url)
    reading = KafkaSourceOptions(
        parse_partitions(partitions),
        StartPosition.parse(start),
        is_ending=stop_at_end,
        is_skipping_deleted=skip_deleted,
        has_event_times=not no_event_times,
        is_envelope=envelope,
        codec=broker.codec(),
        group=group,
        is_by_name=streams_by_name,
    )
    source = KafkaSource(broker.clients(place), reading, state)
    options = replace(send.load("kafka", place.topic, acks=acks), streams_at_once_max=PARTITIONS_MAX)
    try:
        if not run_source(source, send.to, options, is_json=send.as_json):
            raise typer.Exit(Status.UNCLEAN)
    finally:
        source.close()
