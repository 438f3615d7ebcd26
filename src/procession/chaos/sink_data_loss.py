"""Injects data loss at a sink: the sink returns with less output than it had promised, is refused, and is restored.

Invariant: the driver must exit with an error that names the sink, and nothing may be committed until the sink's files
are restored. The transaction log and data of the right sink are truncated by one transaction.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from procession.chaos.cluster_view import EXIT_CLEAR, Cluster
from procession.chaos.fault_injector import DRIVER_TEXT, AllowedExit, FaultInjector
from procession.chaos.monitor import Failed, Monitor
from procession.chaos.scenario import DRIVER, RIGHT
from procession.storage.journal import encode, read_journal

POINT = "driver:before-phase2"
"""The fault point where all sinks have voted and the commit is decided, but no sink knows the decision."""


class SinkDataLoss:
    def __init__(self, cluster: Cluster, injector: FaultInjector, monitor: Monitor) -> None:
        self._cluster = cluster
        self._injector = injector
        self._monitor = monitor

    def run(self, what: str) -> None:
        """Run the fault. `committed`: the last committed output is lost. `prepared`: prepared output is lost after
        the decision."""
        supervisor, injector = self._cluster.supervisor, self._injector
        supervisor.held.add(DRIVER)  # do not restart it after its death
        if what == "prepared":
            injector.allowed_exits[DRIVER] = AllowedExit((-signal.SIGKILL,))
            self._cluster.arm(DRIVER, POINT)
            self._until_away(DRIVER)
        injector.hit(RIGHT, is_timed=False)
        supervisor.hold(RIGHT)
        self._until_away(RIGHT)
        self._cluster.save_copy()
        end = self._monitor.outputs.ends["right"]
        forget(self._cluster.instances()["right"], is_committed=what == "committed")
        injector.allowed_exits[DRIVER] = AllowedExit((EXIT_CLEAR,), DRIVER_TEXT)
        supervisor.release(RIGHT)
        if what == "prepared":
            supervisor.release(DRIVER)
            supervisor.held.add(DRIVER)
            self._monitor.until(lambda: supervisor.pid(DRIVER) is not None, "the driver to be started")
        injector.note(RIGHT, f"came back without its {what} output")
        self._until_away(DRIVER)
        if self._monitor.outputs.ends["right"] != end:
            raise Failed("violation", "something was committed to a sink that had lost data")
        injector.note(DRIVER, "refused it")
        supervisor.hold(RIGHT)
        self._until_away(RIGHT)
        self._cluster.restore_copy()
        injector.allowed_exits.pop(DRIVER)
        supervisor.release(RIGHT)
        supervisor.release(DRIVER)
        injector.note(RIGHT, "was restored")

    def _until_away(self, part: str) -> None:
        self._monitor.until(lambda: self._cluster.supervisor.pid(part) is None, f"the end of {part}")


def forget(instance: Path, *, is_committed: bool) -> None:
    """Truncate the log to before its last commit (or its last vote), and the data with it."""
    path = instance.with_suffix(".txnlog")
    entries = list(read_journal(path))
    starts: dict[str, tuple[int, int]] = {}
    cut: tuple[int, int] | None = None
    for number, entry in enumerate(entries):
        if entry["op"] == "phase1" and entry["vote"]:
            starts[entry["txn"]] = (number, entry["start"])
            if not is_committed:
                cut = (number, entry["start"])
        elif entry["op"] == "phase2" and entry["commit"] and is_committed:
            cut = starts[entry["txn"]]
    if cut is None:
        raise Failed("unknown", f"{path} holds nothing that could be lost")
    number, position = cut
    path.write_bytes(b"".join(encode(entry) for entry in entries[:number]))
    os.truncate(instance.with_suffix(".data"), position)
