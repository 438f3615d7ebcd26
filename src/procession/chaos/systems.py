"""Starts the clusters with other systems for chaos scenarios, and checks whether they can be started.

Invariant: a missing system is reported with an install command before any process is started. `chaos/system_parts`
defines the parts; `chaos/system_cluster` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyarrow import fs

from procession.chaos import kafka_server, postgres_server, store_server
from procession.chaos.chaos_cluster import ChaosCluster
from procession.chaos.chaos_workload import FileWorkload, MakeWorkload
from procession.chaos.kafka_server import KafkaServer
from procession.chaos.live_cluster import LiveCluster
from procession.chaos.machine_cluster import MachineCluster
from procession.chaos.machine_scenarios import MACHINES
from procession.chaos.output_monitor import MonitoredOutputs
from procession.chaos.postgres_server import PostgresServer
from procession.chaos.scenario import STANDARD, ClusterParts
from procession.chaos.store_server import StoreServer
from procession.chaos.system_cluster import PIPELINE, SinkProgram, SystemCluster
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
    output_of,
)
from procession.chaos.visible_records import TableRows, TopicRecords, delta_rows, iceberg_rows, parquet_rows
from procession.deployment.local_pipeline import COMMAND
from procession.planner.connector_registry import check_installed as check_package
from procession.planner.connector_registry import connector_named, sink_of
from procession.verify.order import PromisedOrder

INPUT = "input"
INPUT_PARTITIONS = 3
KEYED_PARTITIONS = 3
TOPIC_TIMEOUT_S = 60.0
BUCKET = "chaos"
LAKE_OPTIONS = "format=bytes&position_column=position"
COLUMNS = "column=position%3D$position,payload%3D$payload"


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """A running cluster, its monitored outputs and its workload."""

    cluster: LiveCluster
    outputs: MonitoredOutputs
    make_workload: MakeWorkload = FileWorkload


def check_installed(parts: ClusterParts) -> None:
    """Raise ConfigError if a system of this cluster cannot be started here."""
    for check in _NEEDS[parts.name]:
        check()


@contextmanager
def running(parts: ClusterParts, directory: Path, starting: Callable[[], None]) -> Iterator[RunningCluster]:
    """Start a cluster of this kind. Calls `starting` when the supervisor handles signals, before the first part
    starts."""
    with _OPEN[parts.name](directory, starting) as running_cluster:
        yield running_cluster


@contextmanager
def _standard(directory: Path, starting: Callable[[], None]) -> Iterator[RunningCluster]:
    with ChaosCluster(directory) as cluster:
        starting()
        cluster.start()
        yield RunningCluster(cluster, MonitoredOutputs(cluster.instances(), cluster.decisions))


@contextmanager
def _machines(directory: Path, starting: Callable[[], None]) -> Iterator[RunningCluster]:
    with MachineCluster(directory) as cluster:
        starting()
        cluster.start()
        yield RunningCluster(cluster, MonitoredOutputs(cluster.instances(), cluster.decisions))


def _program(url: str) -> Callable[[Path], list[str]]:
    """Return a function with the arguments of a sink's program, as a pipeline's supervisor derives them from the
    URL."""
    connector, parsed = sink_of(url, "chaos")
    assert connector.sink is not None
    arguments = connector.sink.arguments
    return lambda directory: [connector.name, *arguments(parsed, directory)]


@contextmanager
def _kafka(directory: Path, starting: Callable[[], None]) -> Iterator[RunningCluster]:
    from confluent_kafka.admin import NewTopic

    from procession.chaos.kafka_workload import KafkaWorkload
    from procession.connectors.kafka_client import KafkaClients, KafkaUrl
    from procession.connectors.kafka_token import ControlTopic
    from procession.record import stream_id

    servers: list[KafkaServer] = []
    databases: list[PostgresServer] = []
    links = {
        SOURCE_BROKER: lambda: servers[0].ports["SOURCE"],
        SINK_BROKER: lambda: servers[0].ports["SINK"],
        SINK_DATABASE: lambda: databases[0].port,
    }
    with SystemCluster(directory, links, (TOPIC, KEYED, TABLE)) as cluster:
        starting()
        address = cluster.proxies.address
        broker = KafkaServer(proxied={"SOURCE": address(SOURCE_BROKER), "SINK": address(SINK_BROKER)})
        servers.append(broker)
        cluster.add_server(BROKER, broker)
        databases.append(PostgresServer())
        cluster.add_server(DATABASE, databases[0])
        cluster.start_servers()
        clients = KafkaClients(KafkaUrl.parse(f"kafka://{broker.address}/{INPUT}"), {}, patience_s=TOPIC_TIMEOUT_S)
        for name, partitions in ((INPUT, INPUT_PARTITIONS), (TOPIC, 1), (KEYED, KEYED_PARTITIONS)):
            clients.new_topic(NewTopic(name, partitions, 1))
        control = ControlTopic(clients)
        tokens = control.prepare()

        def topic_sink(part: str, partitions: int, options: str, order: PromisedOrder) -> SinkProgram:
            url = f"kafka://{address(SINK_BROKER)}/{part}{options}"
            instance = f"{PIPELINE}-{output_of(part)}-0"
            records = TopicRecords(broker.address, part, partitions, control.name, tokens, instance)
            return SinkProgram(part, url, _program(url), records, order=order)

        sinks = [
            topic_sink(TOPIC, 1, "?partition=0", PromisedOrder.TOTAL),
            topic_sink(KEYED, KEYED_PARTITIONS, "", PromisedOrder.KEY),
            _table_sink(TABLE, databases[0], str(address(SINK_DATABASE)), "prepared"),
        ]
        outputs = cluster.use(sinks)
        cluster.start()
        source = [*COMMAND, "source", "kafka", f"kafka://{address(SOURCE_BROKER)}/{INPUT}"]
        cluster.start_connector(KAFKA_SOURCE, [*source, str(directory / "sources" / INPUT)])
        topic_id = clients.topic(INPUT).id
        ids = [stream_id(f"kafka:{topic_id}:{number}".encode()) for number in range(INPUT_PARTITIONS)]
        workload = partial(KafkaWorkload, brokers=broker.address, topic=INPUT, stream_ids=ids)
        yield RunningCluster(cluster, outputs, workload)


def _table_sink(part: str, server: PostgresServer, address: str, mode: str) -> SinkProgram:
    """Return a sink that writes to a new table."""
    import psycopg

    table = f"chaos_{output_of(part)}"
    with psycopg.connect(server.url(), autocommit=True) as session:
        session.execute(f"CREATE TABLE {table} (position bigint PRIMARY KEY, payload bytea NOT NULL)")
    url = f"{server.url(address=address)}?table={table}&mode={mode}&{COLUMNS}"
    return SinkProgram(part, url, _program(url), TableRows(server.url(), table))


@contextmanager
def _postgres(directory: Path, starting: Callable[[], None]) -> Iterator[RunningCluster]:
    servers: list[PostgresServer] = []
    with SystemCluster(directory, {SINK_DATABASE: lambda: servers[0].port}, (PREPARED, TOKEN)) as cluster:
        starting()
        servers.append(PostgresServer())
        cluster.add_server(DATABASE, servers[0])
        cluster.start_servers()
        address = str(cluster.proxies.address(SINK_DATABASE))
        modes = {PREPARED: "prepared", TOKEN: "token"}
        outputs = cluster.use([_table_sink(part, servers[0], address, mode) for part, mode in modes.items()])
        cluster.start()
        yield RunningCluster(cluster, outputs)


@contextmanager
def _lake(directory: Path, starting: Callable[[], None]) -> Iterator[RunningCluster]:
    local = fs.LocalFileSystem()
    places = {part: directory / "tables" / output_of(part) for part in (PARQUET, DELTA, ICEBERG)}
    records = {
        PARQUET: parquet_rows(local, str(places[PARQUET])),
        DELTA: delta_rows(local, str(places[DELTA]), {}),
        ICEBERG: iceberg_rows(places[ICEBERG], "chaos.lines"),
    }
    with SystemCluster(directory, {}, tuple(places)) as cluster:
        starting()
        urls = {part: f"{output_of(part)}:{place}" for part, place in places.items()}
        urls[ICEBERG] += "/chaos.lines"
        outputs = cluster.use(
            [
                SinkProgram(part, f"{url}?{LAKE_OPTIONS}", _program(f"{url}?{LAKE_OPTIONS}"), records[part])
                for part, url in urls.items()
            ]
        )
        cluster.start()
        yield RunningCluster(cluster, outputs)


@contextmanager
def _store(directory: Path, starting: Callable[[], None]) -> Iterator[RunningCluster]:
    servers: list[StoreServer] = []
    with SystemCluster(directory, {SINK_STORE: lambda: servers[0].port}, (PARQUET, DELTA)) as cluster:
        starting()
        store = StoreServer()
        servers.append(store)
        cluster.add_server(STORE, store)
        cluster.start_servers()
        store.make_bucket(BUCKET)
        filesystem = fs.S3FileSystem(
            access_key="chaos", secret_key="chaos", endpoint_override=f"http://{store.address}", region="us-east-1"
        )
        env = store.environment(str(cluster.proxies.address(SINK_STORE)))
        records = {
            PARQUET: parquet_rows(filesystem, f"{BUCKET}/parquet"),
            DELTA: delta_rows(filesystem, f"s3://{BUCKET}/delta", store.environment()),
        }
        outputs = cluster.use(
            [
                SinkProgram(part, url, _program(url), rows, env)
                for part, rows in records.items()
                for url in [f"{output_of(part)}:s3://{BUCKET}/{output_of(part)}?{LAKE_OPTIONS}"]
            ]
        )
        cluster.start()
        yield RunningCluster(cluster, outputs)


def _package(scheme: str) -> Callable[[], None]:
    """Check that the packages of a connector are installed."""

    def check() -> None:
        connector = connector_named(scheme)
        assert connector is not None
        check_package(connector, "the scenario")

    return check


_KAFKA_NEEDS = (_package("kafka"), kafka_server.find_jars)
_POSTGRES_NEEDS = (_package("postgres"), postgres_server.find_programs)
_NEEDS: dict[str, tuple[Callable[[], object], ...]] = {
    STANDARD.name: (),
    MACHINES.name: (),
    KAFKA_CLUSTER.name: (*_KAFKA_NEEDS, *_POSTGRES_NEEDS),
    POSTGRES_CLUSTER.name: _POSTGRES_NEEDS,
    LAKE_CLUSTER.name: (_package("delta"), _package("iceberg")),
    STORE_CLUSTER.name: (
        _package("delta"),
        store_server.check_installed,
    ),
}
_OPEN = {
    STANDARD.name: _standard,
    MACHINES.name: _machines,
    KAFKA_CLUSTER.name: _kafka,
    POSTGRES_CLUSTER.name: _postgres,
    LAKE_CLUSTER.name: _lake,
    STORE_CLUSTER.name: _store,
}
