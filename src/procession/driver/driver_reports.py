"""What a driver reports about itself: its epoch log, and a file with what it does now.

Invariant: reports are written by a thread of their own, so a slow disk does not slow a commit. At most `QUEUE_MAX`
epochs wait for it; if it falls behind further, epochs are left out of the log and counted. `driver-status.json` is
replaced as a whole and never synced: it is about the present. Read by `supervisor/pipeline_snapshot`.
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
    """The reports of one driver. `start` begins to write them, `close` writes what is left."""

    def __init__(self, directory: Path, plan: Plan, checkpoint: Checkpoint, history_bytes_max: int) -> None:
        names = {node.id: node.name for node in plan.graph.nodes}
        self.times = RoundTimes()
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
        """Whether Spark takes epochs."""
        self._written = ""
        self._thread: threading.Thread | None = None

    def start(self, found: RecoveredRounds) -> None:
        """Complete the history from the checkpoint, and begin to report."""
        with suppress(OSError):
            _replace(self._directory / PLAN, json.dumps(as_dict(self._plan), ensure_ascii=False))
        self._log.fill(found.rounds.values())
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self._thread.start()

    def watch_jvm(self, ask: Callable[[], dict[str, float]]) -> None:
        """Report what `ask` returns, at intervals. It may block, and may raise any error."""
        self._jvm = ask

    def committed(self, outcome: CommittedEpoch) -> None:
        """An epoch is committed. Called by the commit, and never waits."""
        times = self.times.last
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
            with suppress(OSError):  # a report is not worth a failure
                _replace(self._directory / STATUS, text)

    def status(self) -> dict[str, Any]:
        """What the driver does now."""
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
            "epochs_left_out": self._left_out,
        }

    def _running(self) -> dict[str, Any] | None:
        """The epoch whose tasks run. None if Spark waits for records."""
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
    """Write the process id of the spare. Without fsync, because nobody reads the file after a crash."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"pid": os.getpid()}))
    draft.rename(path)
