"""The directory of a sink: locked by one process, with a transaction log for each instance.

Invariant: all durable data of a sink is here, and no other process writes here while the sink runs. `sdk/sink_server`
serves the instances; `sdk/transaction_log` stores their votes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

import structlog

from procession.address import Address, address_of, listening_socket, parse_address
from procession.errors import ConfigError
from procession.log_format import keep_quiet, print_uncaught_as_sentences
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.sdk.connector_program import run_program
from procession.sdk.output import OpenOutput, Wait
from procession.sdk.participant import SinkParticipant
from procession.sdk.recovery import remove_drafts
from procession.sdk.sink_server import INSTANCES_MAX, SESSIONS_MAX, SinkServer
from procession.sdk.transaction_log import Transaction, TransactionLog
from procession.storage.durable import lock_directory, write_durably
from procession.storage.secret import Secret, make_secret
from procession.tls import ServerTls

LISTEN = "127.0.0.1:7200"
ANNOUNCEMENT = "sink.json"

log = structlog.get_logger("sink")

OnOutcome = Callable[[Mapping[str, object]], None]
"""Receives events as JSON objects, from any thread."""


class SinkDirectory:
    """The locked directory of a sink. A SinkServer calls its `open_participant`.

    Args:
        directory: The directory to lock.
        open_output: Opens the Output of an instance.
        idempotent: Instances whose Outputs accept the same positions again.
        on_outcome: Called with each commit and abort.
        files: The file system of the directory.
    """

    def __init__(
        self,
        directory: Path,
        open_output: OpenOutput,
        *,
        idempotent: Collection[str] = (),
        on_outcome: OnOutcome | None = None,
        files: FileSystem = HOST_FILES,
    ) -> None:
        keep_quiet()
        print_uncaught_as_sentences()
        self.directory = directory
        self._open_output = open_output
        self._idempotent = idempotent
        self._announce = on_outcome
        self._files = files
        self._lock = lock_directory(directory, files)
        remove_drafts(directory, files)

    def open_participant(self, instance: str, wait: Wait) -> SinkParticipant:
        # The output opens first: a reader that finds a log expects the output next to it.
        output, txnlog = self._open_output(instance), self.open_txnlog(instance)
        on_decision = partial(self._decided, instance) if self._announce else None
        return SinkParticipant(
            output, txnlog, is_idempotent=instance in self._idempotent, wait=wait, on_decision=on_decision
        )

    def open_txnlog(self, instance: str) -> TransactionLog:
        txnlog = TransactionLog(self.directory / f"{instance}.txnlog", files=self._files)
        txnlog.open()
        return txnlog

    def previous(self) -> Address | None:
        """Return the address at which the sink listened before its restart, because drivers expect it there. None:
        unknown."""
        try:
            return parse_address(json.loads((self.directory / ANNOUNCEMENT).read_bytes())["listen"])
        except (OSError, ValueError, KeyError, TypeError, ConfigError):
            return None

    def announce(self, address: Address) -> None:
        """Write the address into the directory, for the process that started the sink."""
        facts = {"listen": str(address), "pid": os.getpid()}
        write_durably(self.directory / ANNOUNCEMENT, json.dumps(facts).encode(), self._files)
        if self._announce is not None:
            self._announce({"event": "listening", **facts})

    def close(self) -> None:
        self._lock.close()

    def _decided(self, instance: str, transaction: Transaction, commit: bool) -> None:
        assert self._announce
        event = "committed" if commit else "aborted"
        self._announce({"event": event, "instance": instance, **transaction._asdict()})


def run_sink(
    open_output: OpenOutput,
    directory: Path,
    listen: str = LISTEN,
    *,
    cookie: bytes | None = None,
    tls: ServerTls | None = None,
    idempotent: Collection[str] = (),
    on_outcome: OnOutcome | None = None,
    instances_max: int = INSTANCES_MAX,
    files: FileSystem = HOST_FILES,
) -> None:
    """Serve a sink until SIGTERM or SIGINT. Raises the error that stopped it otherwise.

    Args:
        open_output: Opens the Output of an instance by its name. Called once for each instance.
        directory: The sink's directory. The Output may keep files there, but not `*.txnlog`, `*.json` or `secrets`.
        listen: Address for the driver, HOST:PORT.
        cookie: The secret that the driver must send. None: the secret in `secrets/sinks` of the directory, which is
            created. Empty: any driver that reaches the port is accepted.
        tls: The server's certificate, for TLS.
        idempotent: Instances whose Outputs accept the same positions again.
        on_outcome: Called with each commit and abort.
        instances_max: Maximum number of instances.
        files: The file system of the directory.
    """
    sink_directory = SinkDirectory(directory, open_output, idempotent=idempotent, on_outcome=on_outcome, files=files)
    try:
        secret = make_secret(directory, Secret.SINKS) if cookie is None else cookie
        serve(sink_directory, listen, secret, tls, instances_max=instances_max)
    finally:
        sink_directory.close()


def serve(
    sink_directory: SinkDirectory,
    listen: str,
    cookie: bytes = b"",
    tls: ServerTls | None = None,
    *,
    instances_max: int = INSTANCES_MAX,
) -> None:
    if not cookie:
        log.warning(
            "sink.open",
            listen=listen,
            reason="without a secret, any program that reaches this port can write",
        )
    with listening_socket(parse_address(listen), sink_directory.previous()) as listener:
        sink_directory.announce(address_of(listener))
        log.info("sink.listening", listen=str(address_of(listener)))
        server = SinkServer(
            sink_directory.open_participant,
            cookie=cookie,
            tls=tls,
            sessions_max=max(SESSIONS_MAX, 2 * instances_max),
            instances_max=instances_max,
        )
        run_program(server.serve(listener))
