"""Determines the status of a pipeline on this machine, for `procession jobs` and `procession status`.

Invariant: this module only reads: the claim of `run`, the checkpoint, the epoch log and the gateways' answers. A
value that cannot be read is None, never a guess. Figures count all runs of the pipeline, not only the current one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from procession.commit.checkpoint import read_pipeline
from procession.commit.epoch_totals import app_counters
from procession.deployment.run_claim import DRAINED, running
from procession.driver.epoch_log import TAIL_BYTES, EpochTail
from procession.errors import ConfigError
from procession.monitoring.progress import PipelineProgress
from procession.storage.driver_claim import checkpoint_of
from procession.tls import ClientTls
from procession.verify.decisions import last_committed

PATIENCE_S = 2.0
"""Seconds that a gateway has to answer."""

RATE_WINDOW_S = 10.0
"""The rate is the average over the epochs that were committed within this time."""


def status(
    directory: Path,
    cookie: bytes = b"",
    tls: ClientTls | None = None,
    progress: PipelineProgress | None = None,
    *,
    is_asking: bool = True,
) -> dict[str, Any]:
    """Return the status of the pipeline in this directory. With `progress`, continue the counts of this reader. With
    `is_asking`, also ask the gateways. Raises ConfigError if there is no pipeline."""
    at = running(directory)
    name = pipeline_name(directory) if at is None else at.pipeline
    last = last_committed(directory)
    found: dict[str, Any] = {
        "pipeline": name,
        "directory": str(directory),
        "state": _stopped(directory) if at is None else "running",
        "pid": None if at is None else at.pid,
        "app": None if at is None else at.app,
        "started_s": None if at is None else at.started_s,
        "epoch": None if last is None else last.epoch,
        "committed": 0 if last is None else last.counters.get("records_in", 0),
        "records_out": 0 if last is None else last.counters.get("records_out", 0),
        "late": 0 if last is None else last.counters.get("late", 0),
        "dead_letters": 0 if last is None else last.counters.get("dead_letters", 0),
        "counters": {} if last is None else app_counters(last.counters),
        "records_per_s": None if at is None else _rate(directory),
        "lag": None,
        "away": [],
        "paused": [],
        "disks_low": [],
    }
    if at is None or not is_asking:
        return found
    return found | _progress(progress or PipelineProgress.from_now(directory, cookie, tls, PATIENCE_S))


def pipeline_name(directory: Path) -> str:
    """Return the name of the pipeline whose checkpoint is in this directory. Raises ConfigError if there is none."""
    try:
        return str(read_pipeline(checkpoint_of(directory))["name"])
    except PermissionError:
        raise
    except OSError as error:
        raise ConfigError(f"There is no pipeline in {directory}.", next_step="Give the --dir of a pipeline.") from error


def _stopped(directory: Path) -> str:
    return "drained" if (directory / DRAINED).exists() else "stopped"


def _rate(directory: Path) -> float:
    """Committed records per second. 0 if none was committed recently."""
    since_ns = time.time_ns() - int(RATE_WINDOW_S * 1e9)
    recent = [
        line for line in EpochTail(directory / "epochs.jsonl", TAIL_BYTES).new() if line["committed_ns"] >= since_ns
    ]
    records: int = sum(line["records"] for line in recent)
    return round(records / RATE_WINDOW_S, 1)


def _progress(progress: PipelineProgress) -> dict[str, Any]:
    progress.poll()
    return {
        "lag": progress.records_in - progress.committed if progress.is_answered else None,
        "away": list(progress.away),
        "paused": list(progress.paused),
        "state": "paused" if progress.paused else "running",
        "disks_low": [str(path) for path in progress.disks_low],
    }


def sentences(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the status as text."""
    if status["pid"] is not None:
        since = datetime.fromtimestamp(status["started_s"]).astimezone().isoformat(" ", "seconds")
        yield f"pipeline {status['pipeline']!r} runs since {since}, in process {status['pid']}"
    else:
        drained = "; it was drained: everything received is committed" if status["state"] == "drained" else ""
        yield f"pipeline {status['pipeline']!r} does not run{drained}"
    epoch = "no epoch is committed" if status["epoch"] is None else f"last committed epoch {status['epoch']:,}"
    yield f"{epoch}; {status['committed']:,} records in, {status['records_out']:,} out"
    if status["late"] or status["dead_letters"]:
        yield f"{status['late']:,} late records, {status['dead_letters']:,} dead letters"
    if status["pid"] is not None:
        lag = "its gateway does not answer" if status["lag"] is None else f"{status['lag']:,} received, not committed"
        yield f"{status['records_per_s']:,.0f} records/s; {lag}"
    if status["paused"]:
        yield f"paused: {', '.join(status['paused'])}; producers wait until `procession resume`"
    if (verdict := status.get("verdict")) is not None:
        proved = "" if verdict["proved_epoch"] is None else f", compared up to epoch {verdict['proved_epoch']:,}"
        why = f": {verdict['why'][0]}" if verdict["why"] else ""
        counts = f"{verdict['lost']:,} lost, {verdict['doubled']:,} doubled, {verdict['disordered']:,} out of order"
        yield f"verdict {verdict['outcome']}{why}; {counts}{proved}"
    if (bottleneck := status.get("bottleneck")) is not None:
        yield f"{'waits for' if bottleneck['is_stalled'] else 'slowed by'} {bottleneck['part']}: {bottleneck['why']}"
    if status["away"]:
        yield f"gateways that do not answer: {', '.join(status['away'])}"
    for path in status["disks_low"]:
        yield f"the disk of {path} is nearly full: producers wait"
