"""Data loss at a sink: it comes back with less than it had promised, is refused, and is restored.

The one rule: the driver must end, with a word that names the sink, and nothing may be committed until the sink's files
are as they were. Before it the harness; after it the transaction log and data of the right sink, which are cut back by
one transaction.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from procession.chaos.cluster_view import EXIT_CLEAR, Cluster
from procession.chaos.fault_injector import DRIVER_WORDS, Excuse, FaultInjector
from procession.chaos.monitor import Failed, Monitor
from procession.chaos.scenario import DRIVER, RIGHT
from procession.storage.journal import encode, read_journal

POINT = "driver:before-phase2"
"""Here it is decided to commit, all sinks have promised, and none was told."""


class SinkDataLoss:
    def __init__(self, cluster: Cluster, hands: FaultInjector, vigil: Monitor) -> None:
        self._cluster = cluster
        self._hands = hands
        self._vigil = vigil

    def run(self, what: str) -> None:
        """`committed`: the last output is gone. `prepared`: what was voted for is, and it was decided to commit."""
        stage, hands = self._cluster.stage, self._hands
        stage.held.add(DRIVER)  # it stays away once it is dead
        if what == "prepared":
            hands.excuses[DRIVER] = Excuse((-signal.SIGKILL,))
            self._cluster.arm(DRIVER, POINT)
            self._until_away(DRIVER)
        hands.hit(RIGHT, is_timed=False)
        stage.hold(RIGHT)
        self._until_away(RIGHT)
        self._cluster.save_copy()
        end = self._vigil.outputs.ends["right"]
        forget(self._cluster.instances()["right"], is_committed=what == "committed")
        hands.excuses[DRIVER] = Excuse((EXIT_CLEAR,), DRIVER_WORDS)
        stage.release(RIGHT)
        if what == "prepared":
            stage.release(DRIVER)
            stage.held.add(DRIVER)
            self._vigil.until(lambda: stage.pid(DRIVER) is not None, "the driver to be started")
        hands.note(RIGHT, f"came back without what it had {what}")
        self._until_away(DRIVER)
        if self._vigil.outputs.ends["right"] != end:
            raise Failed("violation", "something was committed to a sink that had forgotten")
        hands.note(DRIVER, "refused it")
        stage.hold(RIGHT)
        self._until_away(RIGHT)
        self._cluster.restore_copy()
        hands.excuses.pop(DRIVER)
        stage.release(RIGHT)
        stage.release(DRIVER)
        hands.note(RIGHT, "was restored")

    def _until_away(self, part: str) -> None:
        self._vigil.until(lambda: self._cluster.stage.pid(part) is None, f"the end of {part}")


def forget(instance: Path, *, is_committed: bool) -> None:
    """Cut the log back to before its last commit (or its last vote), and the data with it."""
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
        raise Failed("unknown", f"{path} holds nothing that could be forgotten")
    number, position = cut
    path.write_bytes(b"".join(encode(entry) for entry in entries[:number]))
    os.truncate(instance.with_suffix(".data"), position)
