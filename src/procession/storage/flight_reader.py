"""Reads a log on another machine over Arrow Flight. The rows are the same as those of its files.

Invariant: the rows are the same on every machine that reads them. On the gateway's machine, where the directory has the
gateway's identity, the files are mapped. On other machines the rows are fetched from `gateway/flight_server`; if the
gateway restarts meanwhile, the remaining rows are requested from the new process. `spark/tasks` reads.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from procession.errors import RoundError, StorageError
from procession.format_number import check_format
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.storage.log_ranges import NOTHING, LogLocation, LogOffset
from procession.storage.log_reader import LogReader
from procession.storage.segment import INGRESS, LogUse
from procession.tls import ClientTls

IDENTITY = "identity"
"""The file next to a log with the identity of its gateway."""

IDENTITY_FORMAT = 2
"""Format number of that file, a JSON object. Format 1 is only the identity. The number applies to the gateway's whole
directory: also to the file with its addresses, and to the set of files."""
TICKET_FORMAT = 2
"""Format number of the ticket that requests rows. A ticket without a number has format 1, otherwise the same."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

FETCH_PATIENCE_S = 30.0
"""Maximum time without a row. Then the task fails and Spark retries it."""
CALL_TIMEOUT_S = 60.0
"""Maximum time of one reply with all its rows."""
RETRY_S = 0.2


@dataclass(frozen=True)
class FlightAccess:
    """The secret and the TLS settings that a gateway requires before it sends rows."""

    cookie: bytes = field(default=b"", repr=False)
    tls: ClientTls | None = None


class RowReader(Protocol):
    """Reads rows: from a log on this machine, or from another machine."""

    def read(self, start: int, end: int, offered: LogOffset = NOTHING) -> Iterator[pa.RecordBatch]: ...


def this_machine() -> str:
    """Return the id of this machine since its last boot. After a reboot, its gateways report the new id."""
    return BOOT_ID.read_text().strip()


def open_log(place: LogLocation, access: FlightAccess, use: LogUse = INGRESS) -> RowReader:
    """Open the log at this place: its files, if they are on this machine."""
    directory = Path(place.directory)
    is_here = place.machine in ("", this_machine()) or not place.flight
    if not place.identity or (is_here and _identity_beside(directory) == place.identity):
        return LogReader(directory, use)
    if not place.flight:
        raise StorageError(
            f"the log in {directory} is not on this machine, and its gateway does not serve it",
            next_step="start that gateway with --flight HOST:PORT, which executors elsewhere can reach",
        )
    return FlightLog(place, access)


def _identity_beside(directory: Path) -> str | None:
    try:
        return read_identity(directory.parent)
    except OSError:
        return None


def read_identity(directory: Path, files: FileSystem = HOST_FILES) -> str:
    """Read the identity of a gateway's directory. Raises StorageError if it has a newer format or is damaged, and
    OSError if there is none."""
    path = directory / IDENTITY
    text = files.read(path).decode(errors="replace")
    try:
        if not text.startswith("{"):
            return uuid.UUID(text).hex  # format 1
        identity_file = json.loads(text)
        check_format(path, identity_file.get("format"), IDENTITY_FORMAT)
        return str(identity_file["identity"])
    except (ValueError, KeyError) as error:
        raise StorageError(
            f"{path}, which identifies the gateway of this directory, is damaged.",
            next_step="Restore the gateway's whole directory from its newest copy.",
            path=str(path),
        ) from error


def written_identity(identity: str) -> bytes:
    return json.dumps({"format": IDENTITY_FORMAT, "identity": identity}).encode()


class FlightLog:
    def __init__(self, place: LogLocation, access: FlightAccess, patience_s: float = FETCH_PATIENCE_S) -> None:
        self._place = place
        self._access = access
        self._patience_s = patience_s
        self._client: Any = None

    def read(self, start: int, end: int, offered: LogOffset = NOTHING) -> Iterator[pa.RecordBatch]:
        """Yield the rows [start, end), even if the gateway restarts in between."""
        from pyarrow import flight

        deadline = time.monotonic() + self._patience_s
        while start < end:
            try:
                for batch in self._fetch(flight, start, end, offered):
                    start += batch.num_rows
                    deadline = time.monotonic() + self._patience_s
                    yield batch
            except (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError) as error:
                what = f"the gateway at {self._place.flight} refuses to send its log"
                raise flight_refusal(
                    error,
                    what,
                    other_secret="give driver and gateways the same cookie file",
                    other_version="start gateways, driver and executors in the same version",
                ) from error
            except (pa.ArrowException, OSError) as error:
                self._client = None
                if time.monotonic() > deadline:
                    raise RoundError(
                        f"The gateway at {self._place.flight} refuses to send its log: {flight_sentence(error)}",
                        next_step="Start it, or look at its log; the task is tried again.",
                    ) from error
                time.sleep(RETRY_S)

    def _fetch(self, flight: Any, start: int, end: int, offered: LogOffset) -> Iterator[pa.RecordBatch]:
        if self._client is None:
            self._client = flight.FlightClient(self._place.flight, **flight_security(self._access.tls))
        request = {"format": TICKET_FORMAT, "identity": self._place.identity, "first": start, "last": end}
        request |= {"offered": offered.as_json(), "cookie": self._access.cookie.hex()}
        options = flight.FlightCallOptions(timeout=CALL_TIMEOUT_S)
        rows = 0
        for chunk in self._client.do_get(flight.Ticket(json.dumps(request).encode()), options):
            rows += chunk.data.num_rows
            yield chunk.data
        if rows != end - start:
            raise pa.ArrowInvalid(f"received {rows} rows instead of {end - start}")


def flight_security(tls: ClientTls | None) -> dict[str, Any]:
    """Return the arguments of a Flight client that trusts and presents these certificates."""
    if tls is None:
        return {}
    shown = (
        {}
        if tls.cert is None or tls.key is None
        else {"cert_chain": tls.cert.read_bytes(), "private_key": tls.key.read_bytes()}
    )
    named = {"override_hostname": tls.name} if tls.name else {}
    return {"tls_root_certs": tls.ca.read_bytes(), **shown, **named}


def flight_refusal(error: BaseException, what: str, *, other_secret: str, other_version: str) -> StorageError:
    """Return the error for a service that refuses a request, with the next step for another secret or another
    version."""
    from pyarrow import flight

    is_secret = isinstance(error, flight.FlightUnauthenticatedError)
    return StorageError(f"{what}: {flight_sentence(error)}", next_step=other_secret if is_secret else other_version)


def flight_sentence(error: BaseException) -> str:
    """Return the message of the other side, without the trace of its library."""
    return str(error).partition(". Detail:")[0].partition(". gRPC")[0]
