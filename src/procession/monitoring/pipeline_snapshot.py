"""Takes snapshots of a pipeline: driver, stages, rounds, sinks, states, JVM, gateways and the verdict.

Invariant: `status --json`, the dashboard and the metrics of a pipeline all come from `take`. This module only reads;
a value that cannot be read is None or empty, never a guess. Lists are bounded. A long-lived reader, such as the
dashboard's, reads only new lines of the epoch log.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from procession.commit.checkpoint import PIPELINE
from procession.commit.round_record import RoundRecord
from procession.deployment.cookies import PIPELINES
from procession.deployment.run_details import read_details, read_events
from procession.driver.driver_reports import EPOCHS, PLAN, STATUS
from procession.driver.epoch_log import EpochTail, older
from procession.errors import ProcessionError
from procession.monitoring.content_check import BYTES_MAX, ContentCheck
from procession.monitoring.epoch_history import RecentEpochs, stages_of
from procession.monitoring.job_status import PATIENCE_S
from procession.monitoring.job_status import status as job_status
from procession.monitoring.progress import PipelineProgress
from procession.monitoring.stall import bottleneck
from procession.sdk.transaction_log import TransactionTail
from procession.storage.driver_claim import CHECKPOINT
from procession.storage.secret import GATEWAY, Secret, find_secret
from procession.tls import ClientTls
from procession.verify.decisions import last_committed
from procession.verify.history_check import HeldInput, HeldOutput, HistoryCheck, RecordedRound
from procession.verify.verdict import Outcome

PREPARED_MAX = 10
"""Maximum number of prepared transactions of a sink in a snapshot."""
JOB_FIELDS = (
    *("pipeline", "directory", "state", "pid", "app", "started_s", "epoch", "committed", "records_out", "late"),
    *("dead_letters", "counters", "records_per_s", "lag", "away", "paused", "disks_low"),
)
"""The fields of a pipeline in `procession jobs`, without the verdict."""
STREAMS_MAX = 200
"""Maximum number of streams in a snapshot: those with the largest lag. Other streams are only counted."""


class PipelineSnapshots:
    """Takes snapshots of the pipeline in a directory. With `is_asking`, also asks its gateways; otherwise only reads
    files."""

    def __init__(
        self,
        directory: Path,
        cookie: bytes = b"",
        tls: ClientTls | None = None,
        *,
        is_asking: bool = True,
        contents_bytes_max: int = BYTES_MAX,
    ) -> None:
        self.directory = directory
        self.recent = RecentEpochs()
        self.check = HistoryCheck()
        self._cookie = cookie
        self._tls = tls
        self._is_asking = is_asking
        self._contents = ContentCheck(directory, contents_bytes_max)
        self._outputs: dict[str, tuple[Path, TransactionTail, int]] = {}
        for line in EpochTail(older(directory / EPOCHS)).new():
            self._epoch(line)
        gateways = Path(read_details(directory).get("gateways") or directory)
        self._progress = PipelineProgress.from_now(directory, cookie, tls, PATIENCE_S, gateways, self._epoch)

    def _epoch(self, line: dict[str, Any]) -> None:
        self.recent.add(line)
        self.check.add(line)

    def take(self) -> dict[str, Any]:
        """Return the snapshot. Raises ConfigError if there is no pipeline in the directory."""
        details = read_details(self.directory)
        outputs = self._held_outputs(details.get("sinks", {}))  # before the round record, which then decides it all
        found = job_status(self.directory, self._cookie, self._tls, self._progress, is_asking=self._is_asking)
        is_running = found["pid"] is not None
        gateways = self._gateways() if is_running else []
        record = last_committed(self.directory)
        self._progress.read_epochs()
        now_s = time.time()
        plan = _read(self.directory / PLAN) or {}
        driver = self._driver() if is_running else None
        recorded = None
        if record is not None:
            recorded = RecordedRound(record.epoch, record.last, {name: part.end for name, part in record.parts.items()})
        found |= {
            "taken_s": round(now_s, 3),
            "idle_s": self.recent.idle_s(now_s),
            "committed_by": self.recent.lines[-1]["fence"] if self.recent.lines else None,
            "order": plan.get("order"),
            "guarantee": plan.get("guarantee"),
            "driver": driver,
            "jvm": {} if driver is None else driver["jvm"],
            "gateways": gateways,
            "phases": self.recent.phases(),
            "stages": stages_of(plan, self.recent.within(now_s)),
            "sinks": self._sinks(record, driver),
            "states": self._states(record),
            "restarts": _restarts(self.directory),
            "latency_ms": {"p50": self._progress.latency_ms(0.5), "p99": self._progress.latency_ms(0.99)},
        }
        unknown = []
        if is_running and self._is_asking:
            away = self._progress.away if self._progress.statuses else (GATEWAY,)
            unknown = [f"{name} does not answer" for name in away]
        held = [HeldInput(gateway["member"], gateway["epoch"], gateway["committed_end"]) for gateway in gateways]
        found["verdict"] = self.check.verdict(
            outputs, [held_input for held_input in held if held_input.epoch >= 0], unknown, recorded
        )
        found["contents"] = self._contents.poll()
        _combine(found["verdict"], found["contents"])
        found["records_in"] = found["committed"] + (found["lag"] or 0)
        stalled = bottleneck(found)
        found["bottleneck"] = None if stalled is None else stalled._asdict()
        return found

    def streams(self) -> dict[str, Any]:
        """Return the streams with the largest lag, and how many there are."""
        rows: list[dict[str, Any]] = []
        for client in self._progress.clients():
            try:
                rows.extend(client.streams())
            except ProcessionError:
                client.close()
        rows.sort(key=lambda row: (-row["lag"], row["id"]))
        return {"streams": rows[:STREAMS_MAX], "streams_total": len(rows)}

    def _driver(self) -> dict[str, Any] | None:
        found = _read(self.directory / STATUS)
        if found is None:
            return None
        try:
            os.kill(int(found["pid"]), 0)
        except ProcessLookupError:
            return None  # the driver was killed, and another one has not started yet
        except PermissionError:
            pass
        return found

    def _gateways(self) -> list[dict[str, Any]]:
        found = []
        for name, status in sorted(self._progress.statuses.items()):
            found.append(
                {
                    "name": name,
                    "member": "gateway-0" if name == GATEWAY else name,
                    "epoch": status["epoch"],
                    "committed_end": status["committed_end"],
                    "next_sequence": status["next_sequence"],
                    "records_in": status["records_in"],
                    "duplicates": status["duplicates"],
                    "sessions": status["sessions"],
                    "streams": status["streams_total"],
                    "buffered": status["buffered"],
                    "lag_bytes": status["lag_bytes"],
                    "credits_owed": status["credits_owed"],
                    "is_over": status["is_over"],
                    "is_paused": status["is_paused"],
                    "is_disk_short": status["is_disk_short"],
                    "waiting_records": status.get("waiting_records", 0),
                }
            )
        return found

    def _held_outputs(self, sinks: Mapping[str, str]) -> list[HeldOutput]:
        held = []
        for name, text in sinks.items():
            path = Path(text)
            if not path.exists():
                continue
            if name not in self._outputs or self._outputs[name][0] != path:
                self._outputs[name] = (path, TransactionTail(path), 0)
            _, tail, end = self._outputs[name]
            try:
                for transaction in tail.poll():
                    end = transaction.end
            except (ProcessionError, OSError):
                continue
            self._outputs[name] = (path, tail, end)
            held.append(HeldOutput(name, end))
        return held

    def _sinks(self, record: RoundRecord | None, driver: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        reports = {} if driver is None else driver["sinks"]
        found = []
        for name in dict.fromkeys([*reports, *(record.parts if record is not None else ())]):
            report, part = reports.get(name, {}), record.parts.get(name) if record is not None else None
            found.append(
                {
                    "name": name,
                    "is_connected": report.get("is_connected"),
                    "connects": report.get("connects"),
                    "transaction": report.get("transaction") or (part.txn if part is not None else None),
                    "has_voted": report.get("has_voted"),
                    "is_confirmed": report.get("is_confirmed"),
                    "aborted": report.get("aborted", 0),
                    "committed_end": None if part is None else part.end,
                    "held_end": self._outputs[name][2] if name in self._outputs else None,
                    "prepared": self._prepared(name),
                }
            )
        return found

    def _prepared(self, sink: str) -> list[str] | None:
        """Return a sink's transactions with a vote and without a decision. None if its log is not on this machine."""
        if sink not in self._outputs:
            return None
        return [transaction.txn_id for transaction in self._outputs[sink][1].prepared][:PREPARED_MAX]

    def _states(self, record: RoundRecord | None) -> list[dict[str, Any]]:
        if record is None or not record.states:
            return []
        folders = list((self.directory / "state").glob("*"))
        found = []
        for name, version in record.states.items():
            files = [file for task in version.tasks for file, _ in task]
            size = 0
            for file in files:
                for folder in folders:
                    try:
                        size += (folder / file).stat().st_size
                    except OSError:
                        continue
            keys = sum(count for task in version.tasks for _, count in task)
            found.append({"stage": name, "kind": version.kind, "files": len(files), "bytes": size, "entries": keys})
        return sorted(found, key=lambda state: -int(state["bytes"]))


def jobs(root: Path = PIPELINES) -> list[dict[str, Any]]:
    """Return the status of every pipeline under this directory, by name, with its verdict. Contents are not compared.
    Figures of gateways are None if this user may not read their secret."""
    found = []
    for directory in sorted({path.parent.parent for path in root.glob(f"*/{CHECKPOINT}/{PIPELINE}")}):
        snapshots = PipelineSnapshots(directory, find_secret(directory, Secret.CONTROL), contents_bytes_max=0)
        snapshot = snapshots.take()
        found.append({name: snapshot[name] for name in (*JOB_FIELDS, "verdict")})
    return found


def _combine(verdict: dict[str, Any], contents: Mapping[str, Any] | None) -> None:
    """Combine the verdicts on rounds and contents. Different contents are a violation, even if positions and counters
    agree."""
    if contents is not None and contents["outcome"] == Outcome.VIOLATED:
        verdict["outcome"] = Outcome.VIOLATED.value
        verdict["why"] = [f"the contents differ: {contents['why']}", *verdict["why"]]
        for kind in ("lost", "doubled", "disordered"):
            verdict[kind] = max(verdict[kind], contents[kind])


def _restarts(directory: Path) -> dict[str, int]:
    """Return how often each part was restarted in the current or last run."""
    counts: dict[str, int] = {}
    for event in read_events(directory):
        if event["event"] == "run.started":
            counts = {}
        elif event["event"] == "part.restarted":
            counts[event["part"]] = counts.get(event["part"], 0) + 1
    return counts


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
        return found if isinstance(found, dict) else None
    except (OSError, ValueError):
        return None
