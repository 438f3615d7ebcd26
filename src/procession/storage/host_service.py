"""The host service: serves the runs in its directory to readers on other machines, over Arrow Flight.

Invariant: each machine with executors has one service, a separate process that outlives them. It sends batches only if
the request has the secret and names this directory, and only whole batches whose checksums match. It deletes only runs
that a driver names: epochs of that driver, and all runs of earlier drivers of the same pipeline. `storage/host_runs` is
the client.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from procession.address import Address, parse_address
from procession.errors import ConfigError, ProcessionError
from procession.format_number import is_known_format
from procession.storage.batch_file import BatchFile
from procession.storage.durable import lock_directory, make_directory, write_durably
from procession.storage.executor_host import has_executors
from procession.storage.host_runs import (
    ANNOUNCEMENT,
    FORMAT,
    TICKET_FORMAT,
    TOGETHER_BYTES_MAX,
    TOGETHER_FILES_MAX,
    RunHost,
    announced_host,
    runs_folder,
)
from procession.storage.run_store import RunStore
from procession.storage.secret import keep_copy
from procession.tls import ServerTls

LINGER_S = 600.0
"""Time that a service, if an executor started it, serves runs after the last executor of its machine has ended. The
driver may still have to read them."""
EXECUTORS_POLL_S = 1.0

PIPELINE = re.compile(r"[0-9A-Za-z-]{1,64}")
FILE = re.compile(r"[0-9A-Za-z._-]{1,255}\.arrow")


@dataclass(frozen=True)
class HostConfig:
    directory: Path
    listen: str
    cookie: bytes = field(repr=False)
    advertise: str = ""
    """The host name that readers use, if it is not the one in `listen`."""
    tls: ServerTls | None = None
    linger_s: float | None = None
    """If set, the service ends this long after the last executor that has registered in its directory."""


class RunService(flight.FlightServerBase):  # type: ignore[misc]
    """Answers requests, in its own threads."""

    def __init__(self, config: HostConfig, identity: str, address: Address) -> None:
        self._config = config
        self._identity = identity
        scheme = "grpc+tcp" if config.tls is None else "grpc+tls"
        super().__init__(f"{scheme}://{address}", **server_security(config.tls))
        host = config.advertise or address.host
        self.host = RunHost(identity, f"{scheme}://{Address(host, self.port)}")

    def do_get(self, context: Any, ticket: Any) -> Any:
        request = self._checked(ticket.ticket)
        try:
            epoch, bucket = (int(request[name]) for name in ("epoch", "bucket"))
            folder = _folder(self._config.directory, request) / f"{epoch:020d}"
            if "files" in request:
                paths = [folder / _checked_file(file) for file in request["files"][:TOGETHER_FILES_MAX]]
                first = BatchFile(paths[0], what="the run")
                return flight.GeneratorStream(first.schema, _together(paths, bucket, first.schema))
            found = BatchFile(folder / _checked_file(request["file"]), what="the run")
            return flight.GeneratorStream(found.schema, _whole(found, bucket, int(request["skip"])))
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise flight.FlightServerError(f"the request is invalid: {error}") from error
        except ProcessionError as error:
            raise flight.FlightServerError(error.sentence) from error

    def do_action(self, context: Any, action: Any) -> Any:
        request = self._checked(action.body.to_pybytes())
        try:
            if action.type != "drop":
                raise ValueError(f"there is no action {action.type[:80]!r}")
            folder, epoch = _folder(self._config.directory, request), int(request["epoch"])
        except (KeyError, ValueError, TypeError) as error:
            raise flight.FlightServerError(f"the request is invalid: {error}") from error
        RunStore(folder.parent).clear_before(int(folder.name))
        store = RunStore(folder)
        for known in store.epochs():
            if known <= epoch:
                store.drop(known)
        return iter(())

    def _checked(self, body: bytes) -> dict[str, Any]:
        request = checked_request(body, self._config.cookie, TICKET_FORMAT, "this service")
        if request.get("identity") != self._identity:
            raise flight.FlightServerError("the request is for the host service of another directory")
        return request


def checked_request(body: bytes, expected: bytes, newest: int, server: str) -> dict[str, Any]:
    """Return the request, if its sender has shown this cookie. Raises Flight's error for the reason if not."""
    try:
        request = json.loads(body)
        cookie = str(request.get("cookie")).encode(errors="replace")
    except (ValueError, AttributeError) as error:
        raise flight.FlightServerError("the request is not a JSON object") from error
    if not hmac.compare_digest(cookie, expected.hex().encode()):
        raise flight.FlightUnauthenticatedError("the request has a wrong cookie, or no cookie")
    if not is_known_format(number := request.get("format"), newest):
        raise flight.FlightUnauthorizedError(
            f"the request has format {str(number)[:20]}; {server} reads formats 1 to {newest}"
        )
    return dict(request)


def _folder(directory: Path, request: dict[str, Any]) -> Path:
    if not PIPELINE.fullmatch(pipeline := str(request["pipeline"])):
        raise ValueError(f"{pipeline[:80]!r} is not the id of a pipeline")
    return runs_folder(directory, pipeline, int(request["fence"]))


def _checked_file(name: object) -> str:
    if not FILE.fullmatch(file := str(name)):
        raise ValueError(f"{file[:80]!r} is not the name of a run")
    return file


def _together(paths: Sequence[Path], bucket: int, schema: pa.Schema) -> Iterator[Any]:
    """Yield the batches of a bucket of several runs, each with the number of its run. The reply ends before a run that
    does not fit into TOGETHER_BYTES_MAX or has other columns. The last item is -1 - n for n runs that were sent
    whole."""
    size = count = 0
    for number, path in enumerate(paths):
        found = BatchFile(path, what="the run")
        size += found.bytes_of(bucket)
        if found.schema != schema or size > TOGETHER_BYTES_MAX:
            break
        for batch in _flight_errors(found.batches(mark=bucket)):
            yield batch, b"%d" % number
        count += 1
    yield _no_rows(schema), b"%d" % (-1 - count)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _whole(found: BatchFile, bucket: int, skip: int) -> Iterator[Any]:
    for number, batch in enumerate(_flight_errors(found.batches(mark=bucket))):
        if number >= skip:
            yield batch


def _flight_errors(batches: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from batches
    except ProcessionError as error:
        raise flight.FlightServerError(error.sentence) from error


def server_security(tls: ServerTls | None) -> dict[str, Any]:
    """Return the arguments of a Flight server with this certificate."""
    if tls is None:
        return {}
    security: dict[str, Any] = {"tls_certificates": [(tls.cert.read_bytes(), tls.key.read_bytes())]}
    if tls.client_ca is not None:
        security |= {"verify_client": True, "root_certificates": tls.client_ca.read_bytes()}
    return security


def open_service(config: HostConfig) -> RunService:
    """Start the service and announce it in its directory. Port 0 means the port of the last start, if it is free."""
    if not config.cookie:
        raise ConfigError(
            "A host service needs the pipeline's control secret.",
            next_step="Give it a copy of DIR/secrets/control of the pipeline with --control-cookie-file.",
        )
    make_directory(config.directory)
    keep_copy(config.directory, config.cookie)
    identity, previous = uuid.uuid4().hex, None
    with suppress(ConfigError):
        known = announced_host(config.directory)
        identity, previous = known.identity, known.location
    address = parse_address(config.listen)
    service = None
    if address.port == 0 and previous is not None:
        with suppress(OSError, pa.ArrowException, ConfigError, ValueError):
            port = int(previous.rpartition(":")[2])
            service = RunService(config, identity, Address(address.host, port))
    try:
        service = service or RunService(config, identity, address)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(
            f"Cannot serve runs at {address}: {str(error).partition('. Detail')[0]}.",
            next_step="Choose an address of this machine with a port that is free.",
        ) from error
    announcement = {"format": FORMAT, "pid": os.getpid(), "identity": identity, "location": service.host.location}
    write_durably(config.directory / ANNOUNCEMENT, json.dumps(announcement).encode())
    return service


def serve_host(config: HostConfig, say: Callable[[str], None]) -> None:
    """Run a host service until SIGTERM or SIGINT, or until its executors are gone. Raises ConfigError or StorageError
    if it cannot start."""
    make_directory(config.directory)
    lock = lock_directory(config.directory)
    try:
        service = open_service(config)
        is_over = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: is_over.set())
        say(f"serving the runs in {config.directory} at {service.host.location}")
        _await_end(config, is_over)
        service.shutdown()
    finally:
        lock.close()


def _await_end(config: HostConfig, is_over: threading.Event) -> None:
    """Wait until the service should end."""
    if config.linger_s is None:
        is_over.wait()
        return
    used_s = time.monotonic()
    while not is_over.wait(EXECUTORS_POLL_S) and (config.directory / ANNOUNCEMENT).exists():
        if has_executors(config.directory):
            used_s = time.monotonic()
        elif time.monotonic() - used_s > config.linger_s:
            return
