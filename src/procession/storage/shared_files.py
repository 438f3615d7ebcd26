"""Files of the driver, as executors on other machines use them.

The files are round records, states of keys, copies of tables, and the places of an epoch's records. Invariant: the
driver's disk has the files of record. A state file is durable there before the task that wrote it reports it, so the
loss of a machine with executors loses no state. An executor keeps copies of the files that it has read or written in
the directory of its host service. A file never changes once it has its name, so a copy equals the original.
`storage/file_service` is the server.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa

from procession.errors import RoundError, StorageError
from procession.storage.durable import storage_error
from procession.storage.flight_reader import FlightAccess, flight_security, flight_sentence
from procession.storage.host_runs import own_directory

REQUEST_FORMAT = 1
"""Format of the requests to the driver's file service."""

PIECE_BYTES = 1024 * 1024
"""Maximum bytes of a file that are in memory at once."""
DRAFT = ".draft"
PIECES = pa.schema([("piece", pa.binary())])
SIZE = b"size"
"""Key of the file's size in the metadata of a reply."""

PATIENCE_S = 20.0
"""Maximum time for which a silent driver is asked again. Then the task fails and Spark retries it."""
CALL_TIMEOUT_S = 60.0
RETRY_S = 0.2
STATE_NAME = re.compile(r"\d{10}-(?P<owner>.+-\d{6})-\d{20}-\d+-\d+\.state")
"""Name of a state file: see `storage/state_version`. The owner is a stage and the number of its task."""


class Folder(StrEnum):
    """The folders of the driver that executors use."""

    ROUNDS = "rounds"
    STATES = "states"
    TABLES = "tables"
    OFFSETS = "offsets"
    GATEWAYS = "gateways"


@dataclass(frozen=True)
class SharedFiles:
    """The files of one driver."""

    location: str
    pipeline: str
    """The checkpoint's id."""
    access: FlightAccess = field(default_factory=FlightAccess)
    patience_s: float = PATIENCE_S

    def read(self, folder: Folder, name: str) -> bytes:
        """Return the contents of a small file. Raises StorageError if the driver does not have it."""
        return b"".join(self._asked(lambda client, flight: list(self._pieces(client, flight, folder, name))))

    def copied(self, folder: Folder, names: Collection[str]) -> Path:
        """Return this machine's directory with copies of these files. Fetches the missing files."""
        directory = self.directory(folder)
        for name in names:
            if not (directory / name).exists():
                self._fetch(folder, name, directory)
        return directory

    def directory(self, folder: Folder) -> Path:
        """Return the existing directory for copies on this machine."""
        directory = own_directory() / folder / self.pipeline
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(directory, "make the directory", error) from error
        return directory

    def put_state(self, name: str) -> None:
        """Send a state file of this machine to the driver. It is durable there when this returns."""
        path = self.directory(Folder.STATES) / name

        def send(client: Any, flight: Any) -> None:
            descriptor = flight.FlightDescriptor.for_command(
                self._request(Folder.STATES, name, size=path.stat().st_size)
            )
            writer, answers = client.do_put(descriptor, PIECES, _options(flight))
            with writer, open(path, "rb") as file:  # closing it raises the driver's error
                while piece := file.read(PIECE_BYTES):
                    writer.write_batch(pa.record_batch([pa.array([piece], pa.binary())], schema=PIECES))
                writer.done_writing()
                answer = answers.read()
            if answer is None:
                raise pa.ArrowInvalid("the driver has not confirmed the file")

        self._asked(send)

    def forget_states(self, owner: str, kept: Collection[str]) -> None:
        """Delete the copies of a task's state files except these, because earlier versions are not read again."""
        directory = self.directory(Folder.STATES)
        for name in os.listdir(directory):
            found = STATE_NAME.fullmatch(name)
            if found is not None and found["owner"] == owner and name not in kept:
                with suppress(OSError):
                    (directory / name).unlink()

    def forget_tables(self, kept: Collection[str]) -> None:
        """Delete the copies of tables except these, because later epochs read newer copies."""
        directory = self.directory(Folder.TABLES)
        for name in os.listdir(directory):
            if name not in kept and not name.endswith(DRAFT):
                with suppress(OSError):
                    (directory / name).unlink()

    def _fetch(self, folder: Folder, name: str, directory: Path) -> None:
        draft = directory / f"{name}.{uuid.uuid4().hex}{DRAFT}"

        def receive(client: Any, flight: Any) -> None:
            with open(draft, "wb") as file:
                for piece in self._pieces(client, flight, folder, name):
                    file.write(piece)
            draft.rename(directory / name)

        try:
            self._asked(receive)
        finally:
            draft.unlink(missing_ok=True)

    def _pieces(self, client: Any, flight: Any, folder: Folder, name: str) -> Iterator[bytes]:
        reader = client.do_get(flight.Ticket(self._request(folder, name)), _options(flight))
        expected, size = int(reader.schema.metadata[SIZE]), 0
        for chunk in reader:
            for piece in chunk.data.column(0).to_pylist():
                size += len(piece)
                yield piece
        if size != expected:
            raise pa.ArrowInvalid(f"received {size} bytes instead of {expected}")

    def _asked(self, call: Callable[[Any, Any], Any]) -> Any:
        """Make a call with a client of the driver, and repeat it after a lost connection."""
        from pyarrow import flight

        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                with flight.FlightClient(self.location, **flight_security(self.access.tls)) as client:
                    return call(client, flight)
            except (
                flight.FlightUnauthenticatedError,
                flight.FlightUnauthorizedError,
                flight.FlightServerError,
            ) as error:
                raise StorageError(f"the driver at {self.location} refuses: {flight_sentence(error)}") from error
            except (pa.ArrowException, OSError) as error:
                if time.monotonic() > deadline:
                    raise RoundError(
                        f"The driver at {self.location} does not answer: {flight_sentence(error)}"
                    ) from error
                time.sleep(RETRY_S)

    def _request(self, folder: Folder, name: str, **fields: Any) -> bytes:
        cookie = self.access.cookie.hex()
        return json.dumps(
            {"format": REQUEST_FORMAT, "cookie": cookie, "folder": folder, "name": name, **fields}
        ).encode()


def _options(flight: Any) -> Any:
    return flight.FlightCallOptions(timeout=CALL_TIMEOUT_S)
