"""The configuration of a driver: addresses, directories, limits and secrets.

Invariant: the default of an operator's setting is the one in `deployment/settings`. The command `procession driver`
creates the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from procession.address import Address, parse_address
from procession.commit.coordinator import REFUSALS_MAX
from procession.driver import executor_files
from procession.driver.app_file import App
from procession.driver.early_jvm import EarlyJvm
from procession.driver.epoch_log import LOG_BYTES_MAX
from procession.driver.spark_process import SparkProcess
from procession.planner.graph import Graph
from procession.spark.shipped_environment import ShippedEnvironment, check_archive
from procession.storage.state_store import KEYS_MAX
from procession.tls import ClientTls


@dataclass(frozen=True)
class DriverConfig:
    """Addresses, directories and limits of a driver."""

    app: Path
    directory: Path
    gateway: str | Path
    """The gateway's control address, or its directory, from which the current address is read."""
    sinks: Mapping[str, str] = field(default_factory=dict)
    """The address of each sink of the app, or of one of its connections as `NAME.1`. Not needed for sinks whose
    address is in the app."""
    epoch_interval_s: float = 0.0
    epoch_target_s: float = 2.5
    small_epoch_records_max: int = 1000
    """Maximum number of records in an epoch that runs without a Spark job; 0: every epoch runs as a Spark job."""
    epoch_records_max: int = 4_000_000
    epoch_bytes_max: int = 256 * 1024 * 1024
    answer_timeout_s: float = 30.0
    sink_refusals_max: int = REFUSALS_MAX
    state_keys_max: int = KEYS_MAX
    emitters: int = 0
    """Number of processes that send output to sinks with several connections; 0: the driver's process sends it."""
    emitters_at: tuple[Address, ...] = ()
    """Emitters that send this output, on any machines."""
    dead_letter_share_max: float = 0.5
    dead_letter_records_min: int = 1000
    jvm_timeout_s: float = 30.0
    history_bytes_max: int = LOG_BYTES_MAX
    changed_stages: tuple[str, ...] = ()
    """Stages that keep their state although their key or input differs from the checkpoint."""
    input_streams: frozenset[int] = frozenset()
    """The streams of `--input`. A source ends when all of its streams have ended."""
    runs: Path | None = None
    master: str | None = None
    spark_properties: Mapping[str, str] = field(default_factory=dict)
    host_services: bool = False
    """Whether tasks use the host services of the executors' machines, instead of paths on the driver's machine."""
    driver_files: str = "127.0.0.1:0"
    """With host services: the address at which executors fetch round records, states and tables from this driver."""
    environment_archive: str | None = None
    """The archive with the executors' Python environment, as a path or URL; None: it is installed there."""
    spark_secret: str = field(default="", repr=False)
    """The secret of a standalone Spark cluster."""
    control_cookie: bytes = field(default=b"", repr=False)
    """The secret for gateways."""
    sink_cookie: bytes = field(default=b"", repr=False)
    """The secret for sinks that the app names by address."""
    file_sink_cookie: bytes = field(default=b"", repr=False)
    """The secret for the file sinks that Procession starts."""
    tls: ClientTls | None = None
    """TLS to the sinks and the gateways."""
    early_jvm: EarlyJvm | None = None
    """The JVM that the command has started already; None: Spark starts it."""

    def log_directory(self, graph: Graph) -> Path:
        """Return the directory of the log that tasks read. With event-time order it is the sorted log."""
        return self.directory / "gateway" / ("log" if graph.event_time is None else "ordered")

    @property
    def shipped(self) -> ShippedEnvironment | None:
        """The environment that Spark sends to executors on other machines; None if it is installed there."""
        if self.environment_archive is None:
            return None
        return ShippedEnvironment(
            check_archive(self.environment_archive),
            parse_address(self.driver_files).host,
            bytes(self.control_cookie),
            self.tls,
        )

    def start_spark(self, app: App, say: Any) -> SparkProcess:
        return SparkProcess(
            self.directory,
            self.app,
            app.plan,
            self.master,
            say,
            timeout_s=self.jvm_timeout_s,
            properties=self.spark_properties,
            shipped=self.shipped,
            spark_secret=self.spark_secret,
            secret=bytes(self.control_cookie) if executor_files.is_secret_shipped(app.graph, self.master) else b"",
            early=self.early_jvm,
            has_worker=bool(self.small_epoch_records_max) and executor_files.are_tasks_local(app.graph, self.master),
        )
