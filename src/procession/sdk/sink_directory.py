"""The directory of a sink: locked by one process, with a transaction log for each instance.

The one rule: all durable data of a sink is here, and nobody else writes here while the sink runs. Before it the sink's
program; after it `sdk/sink_server`, which serves the instances, and `sdk/transaction_log`, which stores their votes.
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
from procession.log_format import keep_quiet, tell_uncaught_as_sentences
from procession.sdk.connector_program import run_program
from procession.sdk.output import OpenOutput, Wait
from procession.sdk.participant import Outlet
from procession.sdk.sink_server import SinkServer
from procession.sdk.transaction_log import Transaction, TxnLog
from procession.storage.durable import lock_directory, write_durably
from procession.storage.secret import Secret, make_secret
from procession.tls import ServerTls

LISTEN = "127.0.0.1:7200"
ANNOUNCEMENT = "sink.json"

log = structlog.get_logger("sink")

Tell = Callable[[Mapping[str, object]], None]
"""Receives events as JSON objects, from any thread."""


class Home:
    """The directory of a sink. `open_outlet` is what a SinkServer needs.

    Args:
        directory: The directory. It is locked.
        open_output: Opens the Output of an instance.
        idempotent: Instances whose Outputs accept the same positions again.
        tell: Called with each commit and abort.
    """

    def __init__(
        self, directory: Path, open_output: OpenOutput, *, idempotent: Collection[str] = (), tell: Tell | None = None
    ) -> None:
        keep_quiet()
        tell_uncaught_as_sentences()
        self.directory = directory
        self._open_output = open_output
        self._idempotent = idempotent
        self._tell = tell
        self._lock = lock_directory(directory)
        for draft in directory.glob("*.draft"):
            if draft.suffixes[-3:-2] in ([".txnlog"], [".json"]):
                draft.unlink()  # of a replacement that a crash cut short: the file that it was for is whole

    def open_outlet(self, instance: str, wait: Wait) -> Outlet:
        # The output first: who finds a log looks for its output beside it.
        output, txnlog = self._open_output(instance), self.open_txnlog(instance)
        hear = partial(self._heard, instance) if self._tell else None
        return Outlet(output, txnlog, is_idempotent=instance in self._idempotent, wait=wait, hear=hear)

    def open_txnlog(self, instance: str) -> TxnLog:
        txnlog = TxnLog(self.directory / f"{instance}.txnlog")
        txnlog.open()
        return txnlog

    def previous(self) -> Address | None:
        """Where the sink listened the last time: drivers look for it there."""
        try:
            return parse_address(json.loads((self.directory / ANNOUNCEMENT).read_bytes())["listen"])
        except (OSError, ValueError, KeyError, TypeError, ConfigError):
            return None

    def announce(self, address: Address) -> None:
        """Writes the address into the directory, for whoever started the sink."""
        facts = {"listen": str(address), "pid": os.getpid()}
        write_durably(self.directory / ANNOUNCEMENT, json.dumps(facts).encode())
        if self._tell is not None:
            self._tell({"event": "listening", **facts})

    def close(self) -> None:
        os.close(self._lock)

    def _heard(self, instance: str, transaction: Transaction, commit: bool) -> None:
        assert self._tell
        event = "committed" if commit else "aborted"
        self._tell({"event": event, "instance": instance, **transaction._asdict()})


def run_sink(
    open_output: OpenOutput,
    directory: Path,
    listen: str = LISTEN,
    *,
    cookie: bytes | None = None,
    tls: ServerTls | None = None,
    idempotent: Collection[str] = (),
    tell: Tell | None = None,
) -> None:
    """Serve a sink until SIGTERM or SIGINT. Raises the error that stopped it otherwise.

    Args:
        open_output: Opens the Output of an instance by its name. Called once for each.
        directory: The sink's directory. The Output may keep files there, but not `*.txnlog`, `*.json` or `secrets`.
        listen: Address for the driver, HOST:PORT.
        cookie: The secret that the driver must send. None: the one in `secrets/sinks` of the directory, which is
            created.
            Empty: any driver that reaches the port is accepted.
        tls: The server's certificate, for TLS.
        idempotent: Instances whose Outputs accept the same positions again.
        tell: Called with each commit and abort.
    """
    home = Home(directory, open_output, idempotent=idempotent, tell=tell)
    try:
        serve(home, listen, make_secret(directory, Secret.SINKS) if cookie is None else cookie, tls)
    finally:
        home.close()


def serve(home: Home, listen: str, cookie: bytes = b"", tls: ServerTls | None = None) -> None:
    if not cookie:
        log.warning("sink.open", listen=listen, reason="anybody who reaches this port can write, without a secret")
    with listening_socket(parse_address(listen), home.previous()) as listener:
        home.announce(address_of(listener))
        run_program(SinkServer(home.open_outlet, cookie=cookie, tls=tls).serve(listener))
