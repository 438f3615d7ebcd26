"""Pauses, resumes and drains a running pipeline through the control ports of its gateways.

Invariant: no record is lost. Producers keep the records that a paused gateway does not read. A drain stops the
pipeline only after all received records are committed, and writes the last epoch into `drained.json`. Used by
`procession pause`, `resume` and `drain`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from procession.deployment.part_arguments import GATEWAY
from procession.deployment.run_claim import DRAINED, holder, stop
from procession.errors import ConfigError, ProcessionError
from procession.gateway.control_client import ControlClient
from procession.storage.durable import write_durably
from procession.tls import ClientTls
from procession.verify.decisions import last_committed

PATIENCE_S = 10.0
POLL_INTERVAL_S = 0.1


@dataclass(frozen=True)
class Intake:
    """The gateways of the pipeline in a directory."""

    directory: Path
    cookie: bytes = b""
    tls: ClientTls | None = None

    @contextmanager
    def _clients(self) -> Iterator[dict[str, ControlClient]]:
        """Yield a client of each gateway. Raises ConfigError if no pipeline runs, or if a gateway does not answer."""
        if holder(self.directory) is None:
            raise ConfigError(
                f"No pipeline runs in {self.directory}.", next_step="Start it with `procession run`, or check --dir."
            )
        with ExitStack() as stack:
            leader = ControlClient(self.directory / GATEWAY, self.cookie, PATIENCE_S, tls=self.tls)
            members = stack.enter_context(leader).gateways()
            if away := [member["name"] for member in members if not member["is_connected"]]:
                raise ConfigError(
                    f"Gateways that do not answer: {', '.join(away)}.",
                    next_step="Start them, or remove them with `procession gateways leave`. Then try again.",
                )
            yield {
                member["name"]: stack.enter_context(
                    ControlClient(member["control"], self.cookie, PATIENCE_S, member["identity"], self.tls)
                )
                for member in members
            }

    def pause(self) -> list[str]:
        """Stop reading from producers until `resume`. Return the names of the gateways."""
        with self._clients() as clients:
            for client in clients.values():
                client.pause(is_kept=True)
            return list(clients)

    def resume(self) -> list[str]:
        with self._clients() as clients:
            for client in clients.values():
                client.resume()
            return list(clients)

    def drain(self, timeout_s: float) -> dict[str, Any]:
        """Stop reading from producers, wait until everything received is committed, then stop the pipeline. Return
        the last epoch. Raises ConfigError if that takes longer than `timeout_s`; the pipeline then continues to
        run."""
        deadline = time.monotonic() + timeout_s
        with self._clients() as clients:
            paused_before = {name for name, client in clients.items() if client.status()["is_paused"]}
            try:
                while waiting := _uncommitted(clients):
                    if time.monotonic() > deadline:
                        rows = ", ".join(f"{count:,} at {name}" for name, count in waiting.items())
                        raise ConfigError(
                            f"Not everything is committed after {timeout_s:g} seconds: {rows}.",
                            next_step="The pipeline goes on. Wait longer with --timeout-s, or see the reason with"
                            " `procession status`. Records in event-time order wait for streams that are silent.",
                        )
                    time.sleep(POLL_INTERVAL_S)
            except (ProcessionError, KeyboardInterrupt):
                for name in clients.keys() - paused_before:
                    clients[name].resume()
                raise
        process = stop(self.directory, max(1.0, deadline - time.monotonic()))
        last = last_committed(self.directory)
        record = {
            "epoch": None if last is None else last.epoch,
            "committed": 0 if last is None else last.counters.get("records_in", 0),
            "drained_s": time.time(),
        }
        write_durably(self.directory / DRAINED, json.dumps(record).encode())
        return {**record, "process": process}


def _uncommitted(clients: dict[str, ControlClient]) -> dict[str, int]:
    """Return the number of rows that each gateway has received and that are not committed. A gateway that was paused
    just now, also after its restart, may still have received rows, so it is asked again."""
    found = {}
    for name, client in clients.items():
        status = client.status()
        if not status["is_paused"]:
            client.pause(is_kept=False)
        if status["buffered"] or not status["is_paused"]:
            found[name] = int(status["buffered"])
    return found
