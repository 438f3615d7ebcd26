"""Writes the reports of a driver: its epoch log, and a file with its current state.

Invariant: a separate thread writes the reports, so a slow disk does not slow a commit. At most `QUEUE_MAX` epochs
wait for the thread; further epochs are omitted from the log and counted. `driver-status.json` is replaced as a whole
and never synced, because it only describes the present. Read by `monitoring/pipeline_snapshot`.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from procession.commit.checkpoint import Checkpoint
from procession.commit.performer import CommittedEpoch
from procession.commit.recovery import RecoveredRounds
from procession.driver.epoch_log import EpochLog
from procession.driver.round_times import EpochTimes, RoundTimes
from procession.driver.state_placement import StatePlacement
from procession.planner.explain import as_dict
from procession.planner.plan import Plan

EPOCHS = "epochs.jsonl"
STATUS = "driver-status.json"
PLAN = "plan.json"

QUEUE_MAX = 100
"""Maximum number of epochs that wait to be written."""
INTERVAL_S = 1.0
"""Interval between two checks of the open epoch."""
JVM_INTERVAL_S = 5.0
"""Time between two questions to the JVM."""


class DriverReports:
    """The reports of one driver. `start` starts the thread that writes them; `close` writes the remaining ones."""

    def __init__(self, directory: Path, plan: Plan, checkpoint: Checkpoint, history_bytes_max: int) -> None:
        names = {node.id: node.name for node in plan.graph.nodes}
        self.times = RoundTimes()
        self.placement = StatePlacement()
        self.fetched_bytes: Callable[[], int] = lambda: 0
        """Returns the bytes of output that the driver has fetched from host services."""
        self._directory = directory
        self._plan = plan
        self._checkpoint = checkpoint
        self._log = EpochLog(directory / EPOCHS, history_bytes_max, checkpoint.id, names)
        self._waiting: queue.Queue[tuple[CommittedEpoch, EpochTimes | None] | None] = queue.Queue(QUEUE_MAX)
        self._left_out = 0
        self._jvm: Callable[[], dict[str, float]] | None = None
        self._jvm_figures: dict[str, float] = {}
        self._jvm_due = 0.0
        self._started_s = time.time()
        self.is_ready = False
        """Whether Spark is ready for epochs."""
        self._written = ""
        self._thread: threading.Thread | None = None

    def start(self, recovered: RecoveredRounds) -> None:
        """Complete the history from the checkpoint, and begin to report."""
        with suppress(OSError):
            _replace(self._directory / PLAN, json.dumps(as_dict(self._plan), ensure_ascii=False))
        self._log.fill(recovered.rounds.values())
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self._thread.start()

    def watch_jvm(self, ask: Callable[[], dict[str, float]]) -> None:
        """Call `ask` at intervals and report what it returns. `ask` may block, and may raise any error."""
        self._jvm = ask

    def committed(self, outcome: CommittedEpoch) -> None:
        """Handle the commit of an epoch. Never blocks."""
        times = self.times.last
        self.placement.committed(outcome.record)
        try:
            self._waiting.put_nowait((outcome, times if times and times.epoch == outcome.record.epoch else None))
        except queue.Full:
            self._left_out += 1

    def close(self, timeout_s: float = 5.0) -> None:
        if self._thread is not None:
            with suppress(queue.Full):
                self._waiting.put(None, timeout=timeout_s)
            self._thread.join(timeout_s)
        (self._directory / STATUS).unlink(missing_ok=True)

    def _run(self) -> None:
        due = 0.0
        while True:
            if (now := time.monotonic()) >= due:
                due = now + INTERVAL_S
                self._report()
            try:
                waiting = self._waiting.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                continue
            if waiting is None:
                return
            self._log.add(*waiting)

    def _report(self) -> None:
        if self._jvm is not None and time.monotonic() >= self._jvm_due:
            self._jvm_due = time.monotonic() + JVM_INTERVAL_S
            with suppress(Exception):  # the session was stopped, or the JVM is gone: the query reports that
                self._jvm_figures = self._jvm()
        text = json.dumps(self.status())
        if text != self._written:
            self._written = text
            with suppress(OSError):  # a failed report must not stop the driver
                _replace(self._directory / STATUS, text)

    def status(self) -> dict[str, Any]:
        """Return the driver's current state, as `driver-status.json` has it."""
        sinks = {
            name: {
                "is_connected": sink.is_connected,
                "connects": sink.connects,
                "transaction": sink.transaction,
                "has_voted": sink.voted,
                "is_confirmed": sink.decided_at is None,
                "aborted": sink.aborted,
            }
            for name, sink in list(self.times.sinks.items())
        }
        return {
            "pid": os.getpid(),
            "fence": self._checkpoint.fence,
            "started_s": self._started_s,
            "is_ready": self.is_ready,
            "open": self.times.waits_for() or self._running(),
            "sinks": sinks,
            "jvm": self._jvm_figures,
            "placement": self.placement.as_json(),
            "fetched_bytes": self.fetched_bytes(),
            "epochs_left_out": self._left_out,
        }

    def _running(self) -> dict[str, Any] | None:
        """Return the epoch whose tasks run now. None if Spark waits for records."""
        log = self._checkpoint.log
        epoch = log.offered
        if self.times.last is not None and epoch <= self.times.last.epoch:
            return None
        try:
            offered_s = (log.directory / "offsets" / str(epoch)).stat().st_mtime
        except OSError:
            return None
        if log.is_committed(epoch):
            return None
        return {
            "epoch": epoch,
            "phase": "run",
            "seconds": round(time.time() - offered_s, 3),
            "sinks": [],
            "attempts": 0,
        }


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(text)
    draft.replace(path)


def announce_spare(path: Path) -> None:
    """Write the process id of the spare. Without fsync, because the file is not read after a crash."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"pid": os.getpid()}))
    draft.rename(path)
