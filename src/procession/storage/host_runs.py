"""Runs on the disks of several machines: tasks write runs through host services, and other machines read them.

Each machine with executors runs a host service (`storage/host_service`). Its tasks write their runs into the service's
directory, by path. Readers on the same machine map the files; others fetch the batches over Arrow Flight. Invariant:
the service outlives the executors, so a run stays readable when its executor has ended. A run that cannot be read fails
the epoch, and the whole epoch is computed again. `spark/tasks` uses the store; the driver reads with
`storage/epoch_runs`, which also lets the services delete the epoch.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from procession.errors import ConfigError, StorageError
from procession.format_number import check_format
from procession.storage.flight_reader import FlightAccess, flight_refusal, flight_security, flight_sentence
from procession.storage.run_store import Run, RunStore

DIRECTORY_VARIABLE = "PROCESSION_HOST_DIR"
"""Environment variable of executors: the directory of their machine's host service."""

ANNOUNCEMENT = "host.json"
RUNS = "runs"
FORMAT = 1
"""Format of the announcement of a host service."""
TICKET_FORMAT = 1
"""Format of the requests to a host service."""

FETCH_PATIENCE_S = 20.0
"""Maximum time without a batch. Then the epoch fails, and is run again."""
CALL_TIMEOUT_S = 60.0
"""Maximum time of one reply with all its batches."""
DROP_TIMEOUT_S = 2.0
RETRY_S = 0.2
TOGETHER_BYTES_MAX = 1024 * 1024
"""Maximum bytes of the runs that a service sends in one reply. A task keeps them in memory."""
TOGETHER_FILES_MAX = 4096
"""Maximum number of runs in one request."""
TOGETHER_TIMEOUT_S = 5.0
"""Maximum time of such a reply. After it, each run is fetched separately."""


@dataclass(frozen=True)
class RunHost:
    """A host service: the identity of its directory, and its Flight location."""

    identity: str
    location: str

    def __str__(self) -> str:
        return f"{self.identity}@{self.location}"

    @classmethod
    def parse(cls, text: str) -> RunHost:
        identity, _, location = text.partition("@")
        return cls(identity, location)


def announced_host(directory: Path) -> RunHost:
    """Return the host service of this directory. Raises ConfigError if none has been started there."""
    path = directory / ANNOUNCEMENT
    try:
        found = json.loads(path.read_text())
        check_format(path, found.get("format"), FORMAT)
        return RunHost(str(found["identity"]), str(found["location"]))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"No host service has been started in {directory}.",
            next_step=f"Start it on this machine: procession host --dir {directory} --listen HOST:PORT.",
        ) from error


def own_directory() -> Path:
    """Return the directory of this machine's host service. Raises ConfigError if the environment names none."""
    directory = os.environ.get(DIRECTORY_VARIABLE)
    if not directory:
        raise ConfigError(
            f"This executor has no host service: {DIRECTORY_VARIABLE} is not set.",
            next_step=f"Run `procession host --dir D` on each machine with executors, and set {DIRECTORY_VARIABLE}=D"
            " in the environment of Spark's worker.",
        )
    return Path(directory)


@dataclass(frozen=True)
class HostRuns:
    """The runs of one driver's incarnation, on the machines of its executors."""

    pipeline: str
    """The checkpoint's id."""
    fence: int
    access: FlightAccess = field(default_factory=FlightAccess)
    patience_s: float = FETCH_PATIENCE_S

    def store(self) -> RunStore:
        """Return the store of a task on this machine. It writes here and reads from all hosts."""
        directory = own_directory()
        host = announced_host(directory)
        return RunStore(runs_folder(directory, self.pipeline, self.fence), str(host), self)

    def read(self, epoch: int, run: Run) -> Iterator[pa.RecordBatch]:
        """Fetch a run from the host that has it, batch by batch.

        After a lost connection it reconnects and requests the rest. Raises StorageError if the run cannot be
        fetched."""
        from pyarrow import flight

        host = RunHost.parse(run.host)
        received = 0
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                ticket = flight.Ticket(
                    self._request(host, epoch=epoch, file=run.file, bucket=run.bucket, skip=received)
                )
                for chunk in self._client(flight, host).do_get(ticket, _options(flight, CALL_TIMEOUT_S)):
                    received += 1
                    yield chunk.data
                    deadline = time.monotonic() + self.patience_s  # the reader's own time does not count
                return
            except (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError) as error:
                what = f"the host service at {host.location} refuses to send a run"
                raise flight_refusal(
                    error,
                    what,
                    other_secret="give the driver and all host services the same control cookie file",
                    other_version="start host services, driver and executors in the same version",
                ) from error
            except flight.FlightServerError as error:
                # Without a next step, because no person has to act. The driver restarts and computes the epoch again
                # from the log.
                raise StorageError(f"a run of epoch {epoch} is lost: {flight_sentence(error)}") from error
            except (pa.ArrowException, OSError) as error:
                _forget_client(host.location, self.access)
                if time.monotonic() > deadline:
                    raise StorageError(
                        f"a run of epoch {epoch} is lost: the host service at {host.location} does not answer:"
                        f" {flight_sentence(error)}"
                    ) from error
                time.sleep(RETRY_S)

    def read_small(self, epoch: int, runs: Sequence[Run]) -> dict[str, list[pa.RecordBatch]]:
        """Fetch runs of one host and one bucket with one request, as many of them as fit into TOGETHER_BYTES_MAX.

        Returns their batches by file. A run may be missing, for example because of an error. Then use `read`, which
        tries again and reports the error.
        """
        from pyarrow import flight

        host = RunHost.parse(runs[0].host)
        files = list(dict.fromkeys(run.file for run in runs))[:TOGETHER_FILES_MAX]
        found: dict[str, list[pa.RecordBatch]] = {file: [] for file in files}
        count = 0
        try:
            ticket = flight.Ticket(self._request(host, epoch=epoch, files=files, bucket=runs[0].bucket))
            for chunk in self._client(flight, host).do_get(ticket, _options(flight, TOGETHER_TIMEOUT_S)):
                said = int(chunk.app_metadata.to_pybytes())
                if said < 0:
                    count = -said - 1
                else:
                    found[files[said]].append(chunk.data)
        except (pa.ArrowException, OSError, ValueError, IndexError, AttributeError):
            return {}
        return {file: found[file] for file in files[:count]}

    def drop(self, epoch: int, hosts: Sequence[str]) -> None:
        """Ask these hosts to delete the runs up to this epoch, and the runs of earlier drivers. A host that does not
        answer is asked again after the next epoch."""
        from pyarrow import flight

        for host in map(RunHost.parse, hosts):
            with suppress(pa.ArrowException, OSError):
                action = flight.Action("drop", self._request(host, epoch=epoch))
                list(self._client(flight, host).do_action(action, _options(flight, DROP_TIMEOUT_S)))

    def _request(self, host: RunHost, **fields: Any) -> bytes:
        named = {"identity": host.identity, "pipeline": self.pipeline, "fence": self.fence}
        return json.dumps({"format": TICKET_FORMAT, "cookie": self.access.cookie.hex(), **named, **fields}).encode()

    def _client(self, flight: Any, host: RunHost) -> Any:
        key = host.location, self.access
        with _lock:
            if key not in _clients:
                _clients[key] = flight.FlightClient(host.location, **flight_security(self.access.tls))
            return _clients[key]


def runs_folder(directory: Path, pipeline: str, fence: int) -> Path:
    """Return the folder for the runs of a driver in the directory of a host service."""
    return directory / RUNS / pipeline / f"{fence:010d}"


def _options(flight: Any, timeout_s: float) -> Any:
    return flight.FlightCallOptions(timeout=timeout_s)


# A worker runs many tasks, and a connection costs more than a small run.
_clients: dict[tuple[str, FlightAccess], Any] = {}
_lock = threading.Lock()


def _forget_client(location: str, access: FlightAccess) -> None:
    with _lock:
        _clients.pop((location, access), None)
