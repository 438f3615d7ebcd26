"""Runs a pipeline on the hosts of a cluster: gateways, sinks and sources on the last host, the driver on the first,
tasks on the workers. If a sink has several connections, an emitter beside the sinks sends to it.

Invariant: no part reads a directory of another host. Each host has its own copy of the secrets; all other data is
sent over the network. The supervisor runs outside of the hosts, and restarts a part on the same host. If the cluster
has replicas, they store the driver's directory, and a driver can continue on another host. Uses
`deployment/local_pipeline` for the command lines, and `cluster/namespace_cluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from procession.cluster.namespace_cluster import NamespaceCluster
from procession.cluster.namespace_hosts import NamespaceHost, entered
from procession.deployment.local_pipeline import DRIVER, LocalPipeline
from procession.deployment.pipeline_replicas import PipelineReplicas, check_place
from procession.deployment.run_inputs import FilePattern
from procession.deployment.settings import Settings
from procession.gateway.listen_address import addresses
from procession.planner.graph import Graph
from procession.storage.secret import Secret, make_private
from procession.supervisor.supervisor import Supervisor

PIPELINES, DRIVERS = "pipelines", "drivers"
"""Folders in the directory of a host: one for gateways, sinks and sources, and one for drivers, because a host may
have both."""


def ends_directory(cluster: NamespaceCluster, name: str) -> Path:
    """Return the directory of a pipeline's gateways, sinks and sources."""
    return cluster.edge.directory / PIPELINES / name


def driver_directory(cluster: NamespaceCluster, name: str) -> Path:
    """Return the directory of a pipeline's driver, on the current host of drivers."""
    return cluster.head.directory / DRIVERS / name


@dataclass(frozen=True)
class ClusterPipeline:
    """The parts of a pipeline, by host. It has the properties of `LocalPipeline` that a run needs."""

    ends: LocalPipeline
    """The gateways, sinks and sources."""
    driver: LocalPipeline

    @property
    def graph(self) -> Graph:
        return self.driver.graph

    @property
    def directory(self) -> Path:
        """The driver's directory, with checkpoint, states and logs."""
        return self.driver.directory

    @property
    def replicas(self) -> PipelineReplicas:
        return self.driver.replicas

    @property
    def replicated(self) -> dict[str, Path]:
        """The directories that replicas store. Gateways and sinks continue when their host is up again."""
        return {DRIVER: self.directory}

    @property
    def gateways_in(self) -> Path:
        """The directory with the gateways' directories."""
        return self.ends.directory

    @property
    def settings(self) -> Settings:
        """The settings of the driver."""
        return self.driver.settings

    @property
    def sink_directories(self) -> dict[str, Path]:
        return self.ends.sink_directories

    @property
    def gateway_parts(self) -> list[str]:
        return self.ends.gateway_parts

    @property
    def address(self) -> str:
        return self.ends.address

    @property
    def control(self) -> str:
        return self.ends.control

    @property
    def is_new(self) -> bool:
        return self.ends.is_new

    def start(self, beside: Callable[[], None] = lambda: None) -> bool:
        """Start gateways and sinks, then the driver, and call `beside`. Return False if asked to stop meanwhile."""
        for local in (self.ends, self.driver):
            make_private(local.directory.parent)
            make_private(local.directory)
        if not self.ends.start_ends():
            return False
        control = str(addresses(self.ends.gateway_directory)["control"])
        settings = self.settings
        if self.ends.has_emitter:
            settings = settings.model_copy(update={"emitters_at": self.ends.emitter_address})
        return replace(self.driver, gateway_at=control, settings=settings).start_driver(beside)

    def start_source(self, paths: Sequence[Path], **options: Any) -> None:
        """Start a file source on the host of the gateways."""
        self.ends.start_source(paths, **options)

    def start_pattern(self, files: FilePattern, **options: Any) -> None:
        """Start a source of files that are one stream, on the host of the gateways."""
        self.ends.start_pattern(files, **options)

    def start_connected(self) -> None:
        """Start the connectors of the app's sources that read a URL, on the host of the gateways."""
        self.ends.start_connected()


def with_replicas(cluster: NamespaceCluster, settings: Settings) -> Settings:
    """Return the settings with the replicas of the cluster, if it has replicas and the settings name none."""
    if settings.replicas:
        check_place(has_replicas=cluster.has_replicas)
    elif not cluster.has_replicas:
        return settings
    named = {
        "replicas": settings.replicas or cluster.replica_addresses,
        "replica_cookie_file": settings.replica_cookie_file or cluster.secret(cluster.head, Secret.SOS),
    }
    return settings.model_copy(update=named)


def on_cluster(
    cluster: NamespaceCluster,
    supervisor: Supervisor,
    app: Path,
    graph: Graph,
    settings: Settings,
    *,
    place: str = "",
    inputs: Sequence[Path] = (),
    input_streams: frozenset[int] = frozenset(),
) -> ClusterPipeline:
    """Return the pipeline of this app on this cluster. Its directory on each host has the pipeline's name, or the
    name of `place`. Relative directories of sinks are inside the directory on the last host."""
    head, edge, place = cluster.head, cluster.edge, place or graph.name

    def secrets(host: NamespaceHost) -> dict[str, Path]:
        files = {
            "control_cookie_file": Secret.CONTROL,
            "sink_cookie_file": Secret.SINKS,
            "cookie_file": Secret.PRODUCERS,
        }
        return {name: cluster.secret(host, which) for name, which in files.items()}

    at_edge = {"control": f"{edge.address}:0", "flight": f"{edge.address}:0", "replicas": None, **secrets(edge)}
    at_head = {
        "master": cluster.master,
        "host_services": True,
        "driver_files": f"{head.address}:0",
        "conf": spark_properties(cluster) | (settings.conf or {}),
        **secrets(head),
    }
    base = ends_directory(cluster, place)
    has_parted = any(end.bucket is not None for end in graph.participants)
    ends = LocalPipeline(
        supervisor,
        app,
        graph,
        base,
        base,
        settings.model_copy(update=at_edge),
        f"{edge.address}:0",
        input_streams,
        sink_listen=f"{edge.address}:0",
        has_checkpoint=False,
        has_emitter=has_parted and not settings.emitters and settings.emitters_at is None,
        enter=partial(entered, edge, visible=[path.resolve().parent for path in inputs]),
    )
    driver = LocalPipeline(
        supervisor,
        app.resolve(),
        graph,
        driver_directory(cluster, place),
        base,
        settings.model_copy(update=at_head),
        input_streams=input_streams,
        enter=partial(entered, head, visible=[app.resolve().parent]),
        env={DRIVER: cluster.spark_env(head)},
    )
    return ClusterPipeline(ends, driver)


def spark_properties(cluster: NamespaceCluster) -> dict[str, str]:
    """Return the properties of Spark for a driver on this cluster. The secret is in the host's configuration file."""
    from procession.spark.jvm_launch import JAVA_OPTIONS, archive_options

    return {
        "spark.driver.host": cluster.head.address,
        "spark.driver.bindAddress": cluster.head.address,
        "spark.executor.memory": f"{cluster.executor_memory_mb}m",
        "spark.executor.extraJavaOptions": " ".join((*JAVA_OPTIONS, *archive_options())),
    }
