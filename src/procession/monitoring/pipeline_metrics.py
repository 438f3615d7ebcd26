"""Converts a pipeline's snapshot and the counters of its app to metrics for Prometheus.

Invariant: every metric of a snapshot is in `METRICS`, with its kind, its help text and its labels; tests compare the
Grafana dashboard, the alert rules and the docs with that table. Labels are names of stages, sinks, parts and phases,
so the number of series depends on the plan and not on the records. An app has at most `COUNTERS_MAX` counters
(`commit/epoch_totals`); their values count committed epochs only. The first gateway serves the metrics. If the
checkpoint is missing or cannot be read, it has no metrics, and the gateway's own metrics still work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from procession.commit.epoch_totals import app_counters
from procession.errors import ProcessionError
from procession.metrics import Metric
from procession.monitoring.pipeline_snapshot import PipelineSnapshots
from procession.verify.decisions import DecisionReader

APP_COUNTER = "procession_app_counter"

Values = Iterator[tuple[tuple[str, ...], float | None]]


class Definition(NamedTuple):
    """A metric: its kind, help text, label names, and a function that gets its values from a snapshot."""

    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...]
    values: Callable[[Mapping[str, Any]], Values]


def _one(read: Callable[[Mapping[str, Any]], float | None]) -> Callable[[Mapping[str, Any]], Values]:
    def values(snapshot: Mapping[str, Any]) -> Values:
        yield (), read(snapshot)

    return values


def _each(where: str, label: str, field: str) -> Callable[[Mapping[str, Any]], Values]:
    def values(snapshot: Mapping[str, Any]) -> Values:
        yield from (((str(row[label]),), row[field]) for row in snapshot[where])

    return values


def _phase_seconds(snapshot: Mapping[str, Any]) -> Values:
    for name, figures in snapshot["phases"].items():
        phase, sink = _split(name)
        for quantile, field in (("0.5", "p50_s"), ("0.95", "p95_s"), ("0.99", "p99_s")):
            yield (phase, sink, quantile), figures[field]


def _split(name: str) -> tuple[str, str]:
    for phase in ("phase 1", "phase 2"):
        if name.startswith(f"{phase} "):
            return phase.replace(" ", ""), name.removeprefix(f"{phase} ")
    return name, ""


def _outcomes(snapshot: Mapping[str, Any]) -> Values:
    for outcome in ("clean", "violated", "unknown"):
        yield (outcome,), float(snapshot["verdict"]["outcome"] == outcome)


def _records_written(snapshot: Mapping[str, Any]) -> Values:
    for stage in snapshot["stages"]:
        yield from (((str(stage["name"]), to), rate) for to, rate in stage["out_per_s"].items())


def _restarts(snapshot: Mapping[str, Any]) -> Values:
    yield from (((part,), float(count)) for part, count in snapshot["restarts"].items())


METRICS: dict[str, Definition] = {
    "procession_pipeline_up": Definition(
        "gauge", "1 while `procession run` runs.", (), _one(lambda facts: facts["pid"] is not None)
    ),
    "procession_pipeline_committed_records": Definition(
        "counter", "Records committed in all runs.", (), _one(lambda facts: facts["committed"])
    ),
    "procession_pipeline_written_records": Definition(
        "counter", "Records committed to sinks in all runs.", (), _one(lambda facts: facts["records_out"])
    ),
    "procession_pipeline_late_records": Definition(
        "counter", "Committed records that were late.", (), _one(lambda facts: facts["late"])
    ),
    "procession_pipeline_dead_letters": Definition(
        "counter", "Records that became dead letters.", (), _one(lambda facts: facts["dead_letters"])
    ),
    "procession_pipeline_idle_seconds": Definition(
        "gauge", "Time since the last commit.", (), _one(lambda facts: facts["idle_s"])
    ),
    "procession_pipeline_stalled": Definition(
        "gauge",
        "1 while the pipeline waits for a part and commits nothing; `procession status` names the part.",
        (),
        _one(lambda facts: facts["bottleneck"] is not None and facts["bottleneck"]["is_stalled"]),
    ),
    "procession_verdict": Definition(
        "gauge", "1 for the current verdict on the committed rounds.", ("outcome",), _outcomes
    ),
    "procession_verdict_lost": Definition(
        "gauge", "Rows and bytes that no round covers.", (), _one(lambda facts: facts["verdict"]["lost"])
    ),
    "procession_verdict_doubled": Definition(
        "gauge", "Rows and bytes that two rounds cover.", (), _one(lambda facts: facts["verdict"]["doubled"])
    ),
    "procession_verdict_disordered": Definition(
        "gauge", "Positions that went back.", (), _one(lambda facts: facts["verdict"]["disordered"])
    ),
    "procession_verdict_proved_epoch": Definition(
        "gauge", "Rounds up to this one are compared.", (), _one(lambda facts: facts["verdict"]["proved_epoch"])
    ),
    "procession_driver_epoch": Definition("gauge", "The last committed epoch.", (), _one(lambda facts: facts["epoch"])),
    "procession_driver_fence": Definition(
        "gauge",
        "Number (fence) of the current driver.",
        (),
        _one(lambda facts: (facts["driver"] or {}).get("fence")),
    ),
    "procession_driver_open_seconds": Definition(
        "gauge",
        "How long the open epoch has been in its current phase. 0 if no epoch is open.",
        (),
        _one(lambda facts: ((facts["driver"] or {}).get("open") or {}).get("seconds", 0.0)),
    ),
    "procession_driver_epochs_left_out": Definition(
        "counter",
        "Epochs that are not in the history because its writer fell behind.",
        (),
        _one(lambda facts: (facts["driver"] or {}).get("epochs_left_out")),
    ),
    "procession_driver_state_tasks": Definition(
        "counter",
        "Tasks that began a committed epoch with states.",
        (),
        _one(lambda facts: ((facts["driver"] or {}).get("placement") or {}).get("tasks")),
    ),
    "procession_driver_state_tasks_moved": Definition(
        "counter",
        "Tasks that began a committed epoch with states and had to fetch some of them, because their machine lacked"
        " them.",
        (),
        _one(lambda facts: ((facts["driver"] or {}).get("placement") or {}).get("moved")),
    ),
    "procession_round_phase_seconds": Definition(
        "gauge",
        "Quantiles of the time of a phase over the latest 2,000 epochs.",
        ("phase", "sink", "quantile"),
        _phase_seconds,
    ),
    "procession_stage_busy_ratio": Definition(
        "gauge",
        "Share of the last 10 seconds in which the tasks of a chain worked; `stage` is its first stage.",
        ("stage",),
        _each("stages", "name", "busy_share"),
    ),
    "procession_stage_merge_seconds": Definition(
        "gauge",
        "Seconds in which the tasks of a chain read or merged their input, in the last 10 seconds.",
        ("stage",),
        _each("stages", "name", "read_s"),
    ),
    "procession_stage_output_rate": Definition(
        "gauge", "Records per second from a chain to a sink, over 10 seconds.", ("stage", "sink"), _records_written
    ),
    "procession_sink_connected": Definition(
        "gauge", "1 while the driver is connected to the sink.", ("sink",), _each("sinks", "name", "is_connected")
    ),
    "procession_sink_connects": Definition(
        "counter", "Connections to the sink since the driver started.", ("sink",), _each("sinks", "name", "connects")
    ),
    "procession_sink_aborted_transactions": Definition(
        "counter",
        "Transactions that were aborted, since the driver started.",
        ("sink",),
        _each("sinks", "name", "aborted"),
    ),
    "procession_sink_committed_bytes": Definition(
        "counter", "End of the committed output.", ("sink",), _each("sinks", "name", "committed_end")
    ),
    "procession_state_bytes": Definition(
        "gauge", "Size of the state files of a stage.", ("stage",), _each("states", "stage", "bytes")
    ),
    "procession_state_entries": Definition(
        "gauge",
        "Entries in the state files of a stage; a changed key may have several.",
        ("stage",),
        _each("states", "stage", "entries"),
    ),
    "procession_part_restarts": Definition("counter", "Restarts in the current run.", ("part",), _restarts),
    "procession_jvm_heap_used_bytes": Definition(
        "gauge", "Used heap of the driver's JVM.", (), _one(lambda facts: facts["jvm"].get("heap_used_bytes"))
    ),
    "procession_jvm_heap_max_bytes": Definition(
        "gauge", "Maximum heap of the driver's JVM.", (), _one(lambda facts: facts["jvm"].get("heap_max_bytes"))
    ),
    "procession_jvm_gc_seconds": Definition(
        "counter", "Time in garbage collection.", (), _one(lambda facts: facts["jvm"].get("gc_seconds"))
    ),
    "procession_jvm_gc_runs": Definition(
        "counter", "Garbage collections.", (), _one(lambda facts: facts["jvm"].get("gc_runs"))
    ),
    "procession_jvm_threads": Definition(
        "gauge", "Threads of the driver's JVM.", (), _one(lambda facts: facts["jvm"].get("threads"))
    ),
}


def metrics_of(snapshot: Mapping[str, Any]) -> list[Metric]:
    """Return the metrics of a snapshot. Unknown values are omitted."""
    return [
        Metric(
            name,
            definition.kind,
            definition.help,
            definition.labels,
            [(labels, float(value)) for labels, value in definition.values(snapshot) if value is not None],
        )
        for name, definition in METRICS.items()
    ]


class PipelineFigures:
    """The metrics of the pipeline in a directory, from files only. The pipeline may be created later."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._snapshots: PipelineSnapshots | None = None

    def __call__(self) -> list[Metric]:
        try:
            if self._snapshots is None:
                self._snapshots = PipelineSnapshots(self._directory, is_asking=False)
            return metrics_of(self._snapshots.take())
        except (ProcessionError, OSError):
            return []


def app_metrics(checkpoint: Path) -> list[Metric]:
    """Return the app's counters after the last committed epoch. They are gauges, because an app may subtract."""
    try:
        record = DecisionReader(checkpoint).last()
    except (ProcessionError, OSError):
        return []
    counters = {} if record is None else app_counters(record.counters)
    values = [((name,), float(value)) for name, value in counters.items()]
    return [Metric(APP_COUNTER, "gauge", "A counter of the app, of the committed epochs.", ("counter",), values)]
