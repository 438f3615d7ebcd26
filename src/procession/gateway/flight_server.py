"""The gateway's log, served over Arrow Flight to executors on other machines.

Invariant: the server reads the log's files like an executor on this machine. It returns rows only if the request has
the secret and names this directory. It runs in its own threads and shares only the files with the gateway.
`storage/flight_reader` is the client.
"""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyarrow import flight

from procession.address import Address, parse_address
from procession.errors import ConfigError, ProcessionError, RemoteProtocolError
from procession.format_number import is_known_format
from procession.gateway.gateway_options import GatewayConfig
from procession.gateway.request_parsing import integers, offset
from procession.storage.flight_reader import TICKET_FORMAT
from procession.storage.host_service import server_security
from procession.storage.log_ranges import LogOffset
from procession.storage.log_reader import LogReader


class LogService(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, config: GatewayConfig, identity: str, location: str) -> None:
        self._config = config
        self._identity = identity
        self._lock = threading.Lock()
        self.fetched_rows = 0
        """Number of rows that were sent since the start."""
        super().__init__(location, **server_security(config.tls))

    def do_get(self, context: Any, ticket: Any) -> Any:
        try:
            request = json.loads(ticket.ticket)
            expected = self._config.control_cookie.hex().encode()
            if not hmac.compare_digest(str(request.get("cookie")).encode(errors="replace"), expected):
                raise flight.FlightUnauthenticatedError("the ticket has a wrong cookie, or no cookie")
            if not is_known_format(format_number := request.get("format", 1), TICKET_FORMAT):
                raise flight.FlightUnauthorizedError(
                    f"the ticket has format {str(format_number)[:20]}; this gateway reads formats 1 to {TICKET_FORMAT}"
                )
            if request.get("identity") != self._identity:
                raise flight.FlightUnavailableError("the request is for another gateway")
            first, last = integers(request, "first", "last")
            log = LogReader(self._config.offered_directory, self._config.offered_use)
            rows = log.read(first, last, offset(request, "offered") or LogOffset())
            return flight.GeneratorStream(self._config.offered_use.schema, self._counted(rows))
        except (ValueError, AttributeError) as error:
            raise flight.FlightServerError("the ticket is not JSON") from error
        except RemoteProtocolError as error:
            raise flight.FlightServerError(error.sentence) from error
        except ProcessionError as error:
            raise flight.FlightUnavailableError(error.sentence) from error

    def _counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with self._lock:
                self.fetched_rows += batch.num_rows
            yield batch


def serve_log(config: GatewayConfig, identity: str, previous: Address | None) -> LogService:
    """Serve the log at the address of the settings. Port 0 means the port of the last start, if it is free."""
    address = parse_address(config.flight)
    if address.port == 0 and previous is not None:
        with suppress(OSError, pa.ArrowException, ConfigError):
            return LogService(config, identity, _location(config, Address(address.host, previous.port)))
    try:
        return LogService(config, identity, _location(config, address))
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(
            f"Cannot serve the log at {address}: {str(error).partition('. Detail')[0]}.",
            next_step="Choose an address of this machine with a port that is free.",
        ) from error


def _location(config: GatewayConfig, address: Address) -> str:
    return f"{scheme(config)}://{address}"


def scheme(config: GatewayConfig) -> str:
    return "grpc+tls" if config.tls is not None else "grpc+tcp"
