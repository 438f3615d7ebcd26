"""Serves the driver's files to executors on other machines: round records, states, tables and offsets.

Invariant: with host services, a task reads no file by a path of the driver's machine. The driver's file service sends
these files, and lives as long as the driver. Used by `driver/driver`; the classes that tasks use are pickled with
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from procession.commit.checkpoint import Checkpoint
from procession.commit.log_locations import FOLDER as GATEWAYS
from procession.commit.log_locations import parse_location
from procession.commit.round_record import RoundRecord
from procession.commit.spark_log import OFFSETS, parse_offsets
from procession.errors import ConfigError
from procession.planner.graph import Exchange, Graph
from procession.spark.master import has_executors, is_on_this_machine
from procession.spark.shipped_environment import ShippedSecret
from procession.storage.file_service import FileService
from procession.storage.flight_reader import FlightAccess
from procession.storage.host_runs import DIRECTORY_VARIABLE, announced_host, own_directory
from procession.storage.log_ranges import LogLocation, LogOffset, LogRange, epoch_ranges, numbered_from
from procession.storage.secret import KeptSecret, keep_copy
from procession.storage.shared_files import Folder, SharedFiles
from procession.storage.shipped_tls import task_tls
from procession.storage.state_version import StateVersion
from procession.tls import ClientTls, ServerTls

RECORDS_MAX = 4
"""Maximum number of round records that a worker keeps in memory."""


def check_host_services(graph: Graph, master: str) -> None:
    """Raise ConfigError if this pipeline cannot use host services."""
    if graph.exchange is Exchange.SPARK:
        raise ConfigError(
            'exchange="spark" sends runs through Spark, and host services would not be used.',
            next_step='Use exchange="runs" in the app, or leave --host-services out.',
        )
    if not has_executors(master):
        announced_host(own_directory())  # tasks are threads of this process and would fail one after the other


def task_access(
    cookie: bytes, tls: ClientTls | None, directory: Path, graph: Graph, master: str | None
) -> FlightAccess:
    """Return the credentials of tasks and of Spark's helper process for gateways and services. They read the secret
    from the directory of their host service or of the pipeline. With exchange="spark", executors may share no
    directory; they read it from a file that Spark ships."""
    keep_copy(directory, cookie)
    if is_secret_shipped(graph, master):
        return FlightAccess(ShippedSecret(cookie, str(directory)), tls)
    return FlightAccess(KeptSecret(cookie, (f"${DIRECTORY_VARIABLE}", str(directory))), task_tls(tls))


def is_secret_shipped(graph: Graph, master: str | None) -> bool:
    """Return whether executors share no directory with the driver, and have no host service, so that Spark has to
    give them the secret."""
    return graph.exchange is Exchange.SPARK and not is_on_this_machine(master or "local")


@dataclass(frozen=True)
class SharedRounds:
    """Reads the driver's round records in tasks. Each record names the states and tables with which the next epoch
    begins."""

    files: SharedFiles

    def states(self, epoch: int) -> Mapping[str, StateVersion]:
        return _record(self.files, epoch).states

    def sides(self, epoch: int) -> Mapping[str, str]:
        return _record(self.files, epoch).sides


class FolderReader(Protocol):
    """Reads files of the driver's folders, by path or over the network."""

    def read(self, folder: Folder, name: str) -> bytes: ...


@dataclass(frozen=True)
class LocalFolders:
    """The driver's folders, read by path."""

    paths: Mapping[Folder, Path]

    def read(self, folder: Folder, name: str) -> bytes:
        return (self.paths[folder] / name).read_bytes()


@dataclass(frozen=True)
class OffsetsLayout:
    """Finds the records of an epoch in the gateways' logs, from the offsets in the checkpoint. A task on another
    machine needs this to name a record in an error, and `spark/small_epochs` needs it for every epoch."""

    files: FolderReader

    def ranges(self, epoch: int) -> tuple[int, tuple[LogRange, ...]]:
        """Return the number of the epoch's first record, and the log ranges with its records, one after the other."""
        ends = self._offsets(epoch)
        starts = {name: end.sequence for name, end in self._offsets(epoch - 1).items()} if epoch else {}
        places = {name: self._place(name) for name in ends}
        last = {name: end.sequence for name, end in ends.items()}
        return numbered_from(starts), tuple(epoch_ranges(starts, last, places, ends))

    def _offsets(self, epoch: int) -> dict[str, LogOffset]:
        return parse_offsets(self.files.read(Folder.OFFSETS, str(epoch)), Path(Folder.OFFSETS) / str(epoch))

    def _place(self, gateway: str) -> LogLocation:
        name = f"{gateway}.json"
        return parse_location(self.files.read(Folder.GATEWAYS, name), Path(Folder.GATEWAYS) / name)


@lru_cache(RECORDS_MAX)
def _record(files: SharedFiles, epoch: int) -> RoundRecord:
    name = f"{epoch:020d}"
    return RoundRecord.from_json(files.read(Folder.ROUNDS, name), Path(name))


def serve_files(
    checkpoint: Checkpoint,
    states: Path,
    tables: Path,
    access: FlightAccess,
    listen: str,
    on_state_fetched: Callable[[str], None],
) -> tuple[FileService, SharedFiles]:
    """Start the file service of this driver. Return it with the addresses for tasks. The caller shuts it down."""
    folders = {
        Folder.ROUNDS: checkpoint.rounds.directory,
        Folder.STATES: states,
        Folder.TABLES: tables,
        **layout_folders(checkpoint),
    }
    tls = _server_tls(access.tls)
    service = FileService(folders, checkpoint.fence, access.cookie, listen, tls, on_state_fetched)
    return service, SharedFiles(service.location, checkpoint.id, access)


def layout_folders(checkpoint: Checkpoint) -> dict[Folder, Path]:
    """Return the folders that an `OffsetsLayout` reads."""
    return {Folder.OFFSETS: checkpoint.directory / OFFSETS, Folder.GATEWAYS: checkpoint.root / GATEWAYS}


def local_layout(checkpoint: Checkpoint) -> OffsetsLayout:
    return OffsetsLayout(LocalFolders(layout_folders(checkpoint)))


def are_tasks_local(graph: Graph, master: str | None) -> bool:
    """Return whether tasks read and write only files of this machine."""
    return not has_executors(master or "local") and graph.exchange is Exchange.RUNS


def _server_tls(tls: ClientTls | None) -> ServerTls | None:
    if tls is None:
        return None
    if tls.cert is None or tls.key is None:
        raise ConfigError(
            "With TLS and host services, the driver needs a certificate: executors fetch files from it.",
            next_step="Also set tls_cert and tls_key.",
        )
    return ServerTls(tls.cert, tls.key)
