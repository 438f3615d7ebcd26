"""Defines the clusters of scenarios with other systems: their parts, and the dependencies between parts. Pure.

Invariant: each cluster has one gateway and one driver. A part that needs a system may end with an error while the
system is away, if it recovers when it is started again.
"""

from __future__ import annotations

from procession.chaos.scenario import CONTROL, DRIVER, GATEWAY, TO_GATEWAY, ClusterParts

BROKER, DATABASE, STORE = "broker", "database", "store"
KAFKA_SOURCE = "source-kafka"
FILE_SOURCES = ("source-0", "source-1")
TOPIC, KEYED, TABLE = "sink-topic", "sink-keyed", "sink-table"
PREPARED, TOKEN = "sink-prepared", "sink-token"
PARQUET, DELTA, ICEBERG = "sink-parquet", "sink-delta", "sink-iceberg"

# The connections with a proxy, in addition to those between our own parts.
SOURCE_BROKER, SINK_BROKER, SINK_DATABASE, SINK_STORE = "source-broker", "sink-broker", "sink-database", "sink-store"


def output_of(sink: str) -> str:
    return sink.removeprefix("sink-")


def link_to(sink: str) -> str:
    """Return the link from the driver to a sink."""
    return f"driver-{output_of(sink)}"


def _cluster(
    name: str,
    description: str,
    sinks: tuple[str, ...],
    servers: dict[str, tuple[str, ...]],
    links: dict[str, tuple[str, ...]],
    sources: tuple[str, ...] = FILE_SOURCES,
) -> ClusterParts:
    """Return a cluster. `servers` and `links` have the parts that depend on them."""
    return ClusterParts(
        name,
        description,
        (GATEWAY, DRIVER, *sources, *sinks, *servers),
        (TO_GATEWAY, CONTROL, *map(link_to, sinks), *links),
        {source: (GATEWAY,) for source in sources if source in FILE_SOURCES},
        {sink: (output_of(sink),) for sink in sinks}
        | {server: tuple(output_of(part) for part in parts if part in sinks) for server, parts in servers.items()},
        servers | links,
    )


KAFKA_CLUSTER = _cluster(
    "kafka",
    "a Kafka broker, a PostgreSQL server, a Kafka source, a gateway, a driver, sinks to a topic in total order, to a"
    " topic by key and to a table",
    (TOPIC, KEYED, TABLE),
    {BROKER: (KAFKA_SOURCE, TOPIC, KEYED), DATABASE: (TABLE,)},
    {SOURCE_BROKER: (KAFKA_SOURCE,), SINK_BROKER: (TOPIC, KEYED), SINK_DATABASE: (TABLE,)},
    (KAFKA_SOURCE,),
)
POSTGRES_CLUSTER = _cluster(
    "postgres",
    "a PostgreSQL server, two producers, a gateway, a driver, and sinks to two tables, one with prepared transactions",
    (PREPARED, TOKEN),
    {DATABASE: (PREPARED, TOKEN)},
    {SINK_DATABASE: (PREPARED, TOKEN)},
)
LAKE_CLUSTER = _cluster(
    "lake",
    "two producers, a gateway, a driver, and sinks to a Parquet directory, a Delta table and an Iceberg table on disk",
    (PARQUET, DELTA, ICEBERG),
    {},
    {},
)
STORE_CLUSTER = _cluster(
    "s3",
    "an S3-compatible server, two producers, a gateway, a driver, and sinks to Parquet files and a Delta table there",
    (PARQUET, DELTA),
    {STORE: (PARQUET, DELTA)},
    {SINK_STORE: (PARQUET, DELTA)},
)
SYSTEM_CLUSTERS = (KAFKA_CLUSTER, POSTGRES_CLUSTER, LAKE_CLUSTER, STORE_CLUSTER)
