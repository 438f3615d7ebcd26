"""The driver's file service: sends executors the files that they need, and stores the state files that they send.

Invariant: a received file is new, complete and synced before it gets its name, and before the answer. A name is used
once: if the same file is sent again, it is confirmed; a different file is refused. Only state files of the driver's own
fence are accepted. Clients with the secret can fetch whole files of these folders. `storage/shared_files` is the
client.
"""

from __future__ import annotations

import filecmp
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from procession.address import Address, parse_address
from procession.errors import ConfigError
from procession.runtime.host_files import sync
from procession.storage.durable import fsync_dir
from procession.storage.host_service import checked_request, server_security
from procession.storage.shared_files import PIECE_BYTES, PIECES, REQUEST_FORMAT, SIZE, STATE_NAME, Folder
from procession.tls import ServerTls

NAME = re.compile(r"[0-9A-Za-z_][^/\0]{0,254}")


class FileService(flight.FlightServerBase):  # type: ignore[misc]
    """Answers requests, in its own threads."""

    def __init__(
        self,
        folders: Mapping[Folder, Path],
        fence: int,
        cookie: bytes,
        listen: str,
        tls: ServerTls | None = None,
        on_state_fetched: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`on_state_fetched` is called with the name of each state file that is sent, in any thread."""
        self._folders = folders
        self._fence = fence
        self._cookie = cookie
        self._on_state_fetched = on_state_fetched
        address = parse_address(listen)
        scheme = "grpc+tcp" if tls is None else "grpc+tls"
        try:
            super().__init__(f"{scheme}://{address}", **server_security(tls))
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(
                f"Cannot serve the driver's files at {address}: {str(error).partition('. Detail')[0]}.",
                next_step="Choose an address of this machine with a port that is free.",
            ) from error
        self.location = f"{scheme}://{Address(address.host, self.port)}"

    def do_get(self, context: Any, ticket: Any) -> Any:
        request = self._checked(ticket.ticket)
        path = self._path(request)
        try:
            file = open(path, "rb")  # noqa: SIM115  (the generator closes it)
        except OSError as error:
            raise flight.FlightServerError(f"{path} cannot be read: {error.strerror}") from error
        if request["folder"] == Folder.STATES:
            self._on_state_fetched(path.name)
        size = os.fstat(file.fileno()).st_size
        return flight.GeneratorStream(PIECES.with_metadata({SIZE: str(size).encode()}), _pieces(file))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        request = self._checked(descriptor.command)
        path = self._path(request)
        is_own = path.name.startswith(f"{self._fence:010d}-")
        if request["folder"] != Folder.STATES or not is_own or not STATE_NAME.fullmatch(path.name):
            raise flight.FlightServerError(f"{path.name[:200]!r} is not the name of a new state file of this driver")
        draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}.draft")
        try:
            with open(draft, "wb") as file:
                for chunk in reader:
                    for piece in chunk.data.column(0):
                        file.write(piece.as_buffer())
                file.flush()
                if file.tell() != request.get("size"):
                    raise flight.FlightServerError(f"received {file.tell()} bytes instead of {request.get('size')}")
                sync(file.fileno())
            try:
                os.link(draft, path)
            except FileExistsError:
                if not filecmp.cmp(draft, path, shallow=False):
                    raise flight.FlightServerError(f"there is another file {path}") from None
            fsync_dir(path.parent)
        except OSError as error:
            raise flight.FlightServerError(f"{path} cannot be written: {error.strerror}") from error
        finally:
            draft.unlink(missing_ok=True)
        writer.write(pa.py_buffer(b"durable"))

    def _path(self, request: dict[str, Any]) -> Path:
        folder, name = request.get("folder"), str(request.get("name"))
        if folder not in set(self._folders) or not NAME.fullmatch(name):
            raise flight.FlightServerError(f"there is no file {name[:80]!r} in {str(folder)[:80]!r}")
        return self._folders[Folder(folder)] / name

    def _checked(self, body: bytes) -> dict[str, Any]:
        return checked_request(body, self._cookie, REQUEST_FORMAT, "this driver")


def _pieces(file: Any) -> Iterator[pa.RecordBatch]:
    with file:
        while piece := file.read(PIECE_BYTES):
            yield pa.record_batch([pa.array([piece], pa.binary())], schema=PIECES)
