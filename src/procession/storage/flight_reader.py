"""Reads a log on another machine over Arrow Flight: the same rows as from its files.

The one rule: whoever reads cannot tell the difference. The files are mapped on the gateway's own machine, where the
directory bears its identity; elsewhere rows are fetched, and a gateway that is started again meanwhile is asked for the
rest. Before it `gateway/flight_server`, which serves; after it `spark/tasks`.
"""

from __future__ import annotations

import functools
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
from procession.storage.log import LogReader
from procession.storage.log_ranges import Place
from procession.storage.segment import INGRESS, Use
from procession.tls import ClientTls

IDENTITY = "identity"
"""The file beside a log that says whose it is."""

IDENTITY_FORMAT = 2
"""Of that file: a JSON object. Format 1 is the identity alone. The number counts for the gateway's whole directory: for
the file with its addresses, too, and for which files there are."""
TICKET_FORMAT = 2
"""Of what a gateway is asked for rows with. A ticket without a number is of format 1, which says the same."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

FETCH_PATIENCE_S = 30.0
"""So long no row may come before the task is given up; Spark tries it again."""
CALL_TIMEOUT_S = 60.0
"""So long one answer may take, all rows of it."""
RETRY_S = 0.2


@dataclass(frozen=True)
class Access:
    """What a gateway wants to be shown before it gives rows away, and how it is spoken to."""

    cookie: bytes = field(default=b"", repr=False)
    tls: ClientTls | None = None


class Rows(Protocol):
    """What has rows: a log here, or one elsewhere."""

    def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]: ...


@functools.cache
def this_machine() -> str:
    """What tells this machine from others, until it is started anew: then its gateways say the new one."""
    return BOOT_ID.read_text().strip()


def open_log(place: Place, access: Access, use: Use = INGRESS) -> Rows:
    """The log at this place: its files, if they are on this machine."""
    directory = Path(place.directory)
    is_here = place.machine in ("", this_machine()) or not place.flight
    if not place.identity or (is_here and _identity_beside(directory) == place.identity):
        return LogReader(directory, use)
    if not place.flight:
        raise StorageError(
            f"the log in {directory} is not on this machine, and its gateway does not serve it",
            next_step="start that gateway with --flight HOST:PORT, which executors elsewhere can reach",
        )
    return DistantLog(place, access)


def _identity_beside(directory: Path) -> str | None:
    try:
        return read_identity(directory.parent)
    except OSError:
        return None


def read_identity(directory: Path) -> str:
    """The identity of a gateway's directory. Raises StorageError if a later version wrote it, or if it is damaged, and
    OSError if there is none."""
    path = directory / IDENTITY
    text = path.read_text(errors="replace")
    try:
        if not text.startswith("{"):
            return uuid.UUID(text).hex  # format 1
        told = json.loads(text)
        check_format(path, told.get("format"), IDENTITY_FORMAT)
        return str(told["identity"])
    except (ValueError, KeyError) as error:
        raise StorageError(
            f"{path}, which says whose directory this is, is damaged.",
            next_step="Restore the gateway's directory, the whole of it, from its newest copy.",
            path=str(path),
        ) from error


def written_identity(identity: str) -> bytes:
    return json.dumps({"format": IDENTITY_FORMAT, "identity": identity}).encode()


class DistantLog:
    def __init__(self, place: Place, access: Access, patience_s: float = FETCH_PATIENCE_S) -> None:
        self._place = place
        self._access = access
        self._patience_s = patience_s
        self._client: Any = None

    def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The rows [start, end), however often the gateway is started again meanwhile."""
        from pyarrow import flight

        deadline = time.monotonic() + self._patience_s
        while start < end:
            try:
                for batch in self._fetch(flight, start, end):
                    start += batch.num_rows
                    deadline = time.monotonic() + self._patience_s
                    yield batch
            except flight.FlightUnauthenticatedError as error:
                raise StorageError(
                    f"the gateway at {self._place.flight} does not give its log away: {_sentence(error)}",
                    next_step="give driver and gateways the same cookie file",
                ) from error
            except flight.FlightUnauthorizedError as error:
                raise StorageError(
                    f"the gateway at {self._place.flight} does not give its log away: {_sentence(error)}",
                    next_step="start gateways, driver and executors in the same version",
                ) from error
            except (pa.ArrowException, OSError) as error:
                self._client = None
                if time.monotonic() > deadline:
                    raise RoundError(
                        f"The gateway at {self._place.flight} does not give its log away: {_sentence(error)}",
                        next_step="Start it, or look at its log; the task is tried again.",
                    ) from error
                time.sleep(RETRY_S)

    def _fetch(self, flight: Any, start: int, end: int) -> Iterator[pa.RecordBatch]:
        if self._client is None:
            self._client = flight.FlightClient(self._place.flight, **self._security())
        asked = {"format": TICKET_FORMAT, "identity": self._place.identity, "first": start, "last": end}
        asked["cookie"] = self._access.cookie.hex()
        options = flight.FlightCallOptions(timeout=CALL_TIMEOUT_S)
        rows = 0
        for chunk in self._client.do_get(flight.Ticket(json.dumps(asked).encode()), options):
            rows += chunk.data.num_rows
            yield chunk.data
        if rows != end - start:
            raise pa.ArrowInvalid(f"{rows} rows came instead of {end - start}")

    def _security(self) -> dict[str, Any]:
        tls = self._access.tls
        if tls is None:
            return {}
        shown = (
            {}
            if tls.cert is None or tls.key is None
            else {"cert_chain": tls.cert.read_bytes(), "private_key": tls.key.read_bytes()}
        )
        named = {"override_hostname": tls.name} if tls.name else {}
        return {"tls_root_certs": tls.ca.read_bytes(), **shown, **named}


def _sentence(error: BaseException) -> str:
    """What the other side said, without the trace of its library."""
    return str(error).partition(". Detail:")[0].partition(". gRPC")[0]
