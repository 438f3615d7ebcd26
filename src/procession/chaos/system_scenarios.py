"""Defines scenarios with other systems: Kafka, PostgreSQL, lake tables and an object store. Pure.

Invariant: the name of a scenario begins with its system. A sink is killed before, within and after the external commit;
brokers and databases are killed and stay away; the network to them is cut; two sinks race for one output.
"""

from __future__ import annotations

from procession.chaos.scenario import DRIVER, GATEWAY, SAME_DIRECTORY, ClusterParts, FaultAction, Scenario, StepPattern
from procession.chaos.system_parts import (
    BROKER,
    DATABASE,
    DELTA,
    ICEBERG,
    KAFKA_CLUSTER,
    KAFKA_SOURCE,
    KEYED,
    LAKE_CLUSTER,
    PARQUET,
    POSTGRES_CLUSTER,
    PREPARED,
    SINK_BROKER,
    SINK_DATABASE,
    SINK_STORE,
    SOURCE_BROKER,
    STORE,
    STORE_CLUSTER,
    TABLE,
    TOKEN,
    TOPIC,
)

AT_ONCE = (0.0, 0.05)
SHORTLY = (0.05, 0.5)
AROUND = ("sink:before-vote", "sink:after-vote-before-reply", "sink:before-commit", "sink:after-output-commit")
"""Fault points before and after the external commit, in every sink. A sink may have more fault points within its
commit."""
KAFKA_POINTS = (*AROUND, "sink:kafka-begun", "sink:kafka-sent", "sink:kafka-committed")
PREPARED_POINTS = (*AROUND, "sink:postgres-before-prepare")
TOKEN_POINTS = (*AROUND, "sink:postgres-before-commit")
LAKE_POINTS = (*AROUND, "sink:before-upload", "sink:after-upload", "sink:before-publish", "sink:after-publish")
MANIFEST_POINTS = (*LAKE_POINTS, "sink:manifest-written", "sink:file-visible")
NETWORK = ("cut", "silent", "delay:0.3")


def _around(cluster: ClusterParts, name: str, *sinks: tuple[str, tuple[str, ...]]) -> Scenario:
    lines = [
        StepPattern(FaultAction.ARM, (sink,), details=points, is_each=True, delay_s=SHORTLY) for sink, points in sinks
    ]
    description = "A sink dies before, within and after the commit in the other system, and in the votes before it."
    return Scenario(f"{name}-crash-around-the-commit", description, tuple(lines), cluster=cluster)


def _server(cluster: ClusterParts, name: str, server: str, *sinks: str) -> Scenario:
    return Scenario(
        f"{name}-crash-{server}",
        f"The {server} is killed, stays away for a while, and dies together with a sink and while the sink recovers.",
        (
            StepPattern(FaultAction.KILL, (server,), 2),
            StepPattern(FaultAction.GONE, (server,), seconds=(4.0, 8.0)),
            StepPattern(FaultAction.KILL, sinks),
            StepPattern(FaultAction.KILL, (server,), delay_s=AT_ONCE, is_settled=False),
            StepPattern(FaultAction.KILL, (server,)),
            StepPattern(FaultAction.KILL, sinks, delay_s=(0.5, 4.0), is_settled=False),
        ),
        cluster=cluster,
    )


def _network(cluster: ClusterParts, name: str, *links: str) -> Scenario:
    return Scenario(
        f"{name}-network",
        "The network to the other system is cut, silent or slow; a part that uses the system is killed meanwhile.",
        tuple(
            line
            for link in links
            for kind in NETWORK
            for line in (
                StepPattern(FaultAction.NETWORK, (link,), details=(kind,), seconds=(1.5, 4.0)),
                StepPattern(FaultAction.KILL, cluster.dependants[link], delay_s=(0.2, 1.0), is_settled=False),
                StepPattern(FaultAction.NETWORK, (link,), details=(kind,), seconds=(1.5, 4.0)),
            )
        ),
        cluster=cluster,
    )


def _race(cluster: ClusterParts, name: str, *sinks: tuple[str, tuple[str, ...]]) -> Scenario:
    lines = [
        StepPattern(FaultAction.RACE, (sink,), details=(SAME_DIRECTORY, *points), is_each=True)
        for sink, points in sinks
    ]
    description = (
        "A second sink of the same output is started. It is refused, or it takes over and the first is fenced."
    )
    return Scenario(f"{name}-two-sinks", description, tuple(lines), cluster=cluster)


def _mixed(cluster: ClusterParts, name: str, *parts: str) -> Scenario:
    return Scenario(
        f"{name}-mixed",
        "Any part or system is killed at any time, while others recover.",
        (
            StepPattern(FaultAction.KILL, parts, 6, (0.1, 1.5), is_settled=False),
            StepPattern(FaultAction.KILL, (DRIVER,), is_settled=False),
            StepPattern(FaultAction.KILL, parts, 6, (0.2, 1.5), is_settled=False),
            StepPattern(FaultAction.KILL, parts, 4, (0.0, 0.4)),
        ),
        cluster=cluster,
    )


def _lake(name: str, sink: str, points: tuple[str, ...]) -> tuple[Scenario, ...]:
    return (
        Scenario(
            f"{name}-crash-sink",
            "The sink is killed repeatedly, also while it recovers.",
            (
                StepPattern(FaultAction.KILL, (sink,), 3),
                StepPattern(FaultAction.KILL, (sink,), 2, (0.2, 0.9), is_settled=False),
            ),
            cluster=LAKE_CLUSTER,
        ),
        _around(LAKE_CLUSTER, name, (sink, points)),
        _race(LAKE_CLUSTER, name, (sink, ("sink:before-vote", "sink:before-publish", "sink:after-publish"))),
    )


KAFKA = (
    Scenario(
        "kafka-crash-each",
        "Source, gateway, driver and each sink are killed in turn.",
        (StepPattern(FaultAction.KILL, (KAFKA_SOURCE, GATEWAY, TOPIC, KEYED, TABLE, DRIVER), is_each=True),),
        cluster=KAFKA_CLUSTER,
    ),
    _around(KAFKA_CLUSTER, "kafka", (TOPIC, KAFKA_POINTS), (KEYED, KAFKA_POINTS[-3:]), (TABLE, PREPARED_POINTS)),
    _server(KAFKA_CLUSTER, "kafka", BROKER, KAFKA_SOURCE, TOPIC, KEYED),
    _server(KAFKA_CLUSTER, "kafka", DATABASE, TABLE),
    Scenario(
        "kafka-pause-servers",
        "Broker and database are paused for a while, and then continue.",
        (StepPattern(FaultAction.PAUSE, (BROKER, DATABASE), is_each=True, seconds=(2.0, 6.0)),),
        cluster=KAFKA_CLUSTER,
    ),
    Scenario(
        "kafka-crash-all",
        "All processes die at the same time, including the broker and the database, as in a power cut.",
        (
            StepPattern(FaultAction.NOTHING),
            StepPattern(FaultAction.KILL, KAFKA_CLUSTER.parts, delay_s=(0.0, 0.0), is_settled=False, is_each=True),
        ),
        cluster=KAFKA_CLUSTER,
    ),
    _network(KAFKA_CLUSTER, "kafka", SOURCE_BROKER, SINK_BROKER, SINK_DATABASE),
    _race(
        KAFKA_CLUSTER,
        "kafka",
        (TOPIC, ("sink:before-vote", "sink:kafka-begun", "sink:kafka-sent", "sink:kafka-committed")),
        (TABLE, ("sink:before-commit",)),
    ),
    _mixed(KAFKA_CLUSTER, "kafka", KAFKA_SOURCE, GATEWAY, TOPIC, KEYED, TABLE, BROKER, DATABASE),
)
POSTGRES = (
    _around(POSTGRES_CLUSTER, "postgres", (PREPARED, PREPARED_POINTS), (TOKEN, TOKEN_POINTS)),
    _server(POSTGRES_CLUSTER, "postgres", DATABASE, PREPARED, TOKEN),
    _network(POSTGRES_CLUSTER, "postgres", SINK_DATABASE),
    _race(
        POSTGRES_CLUSTER,
        "postgres",
        (PREPARED, ("sink:before-vote", "sink:before-commit")),
        (TOKEN, ("sink:before-commit", "sink:postgres-before-commit")),
    ),
    _mixed(POSTGRES_CLUSTER, "postgres", GATEWAY, PREPARED, TOKEN, DATABASE, "source-0"),
)
LAKE = (
    *_lake("parquet", PARQUET, MANIFEST_POINTS),
    *_lake("delta", DELTA, LAKE_POINTS),
    *_lake("iceberg", ICEBERG, LAKE_POINTS),
)
S3 = (
    Scenario(
        "s3-store-away",
        "The object store is paused or unreachable; sinks are killed meanwhile.",
        (
            StepPattern(FaultAction.PAUSE, (STORE,), seconds=(2.0, 5.0)),
            *(
                StepPattern(FaultAction.NETWORK, (SINK_STORE,), details=("cut",), seconds=(3.0, 6.0)),
                StepPattern(FaultAction.KILL, (PARQUET, DELTA), delay_s=SHORTLY, is_settled=False),
            ),
            StepPattern(FaultAction.NETWORK, (SINK_STORE,), details=NETWORK, is_each=True, seconds=(2.0, 4.0)),
        ),
        cluster=STORE_CLUSTER,
    ),
    _around(STORE_CLUSTER, "s3", (PARQUET, LAKE_POINTS), (DELTA, LAKE_POINTS[-4:])),
)
SYSTEMS: tuple[Scenario, ...] = (*KAFKA, *POSTGRES, *LAKE, *S3)
