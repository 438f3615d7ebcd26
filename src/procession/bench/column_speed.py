"""Compares pipelines of expressions on columns with the same pipelines of functions of one record.

Two pipelines read JSON: a filter before a count for each key and minute (`window`), and a count for each key until the
input ends (`keys`). Each has three forms: functions on dicts, functions on records with a schema, and expressions on
columns. All run the tasks of their plan in this process, on one core, with runs and states in memory as files. Rounds
are interleaved, and the output of all forms is compared byte for byte. There is no Spark, producer, gateway or sink.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from procession.api.pipeline import Pipeline
from procession.errors import StorageError
from procession.operators import aggregates, windows
from procession.operators.expressions import Expression, col
from procession.planner.rules import make_plan
from procession.storage.segment import INGRESS_SCHEMA, KIND_EOS, KIND_RECORD
from procession.testing.in_process import HostedPlan, scratch_directory

FORMS = ("functions", "functions_with_schema", "columns")
WORKLOADS = ("window", "keys")
STREAM = 1
SINK = "counts"
RECORDS_A_SECOND = 10_000
"""Number of records with the same second of event time, so that a window of a minute has 600,000."""
SCHEMA = pa.schema([("user", pa.string()), ("action", pa.string()), ("cents", pa.int64()), ("second", pa.int64())])
ACTIONS = ("view", "click", "pay", "view", "view")

FUNCTIONS: Mapping[str, tuple[Callable[[Any], Any], Expression]] = {
    "is_view": (lambda record: record["action"] == "view", col("action") == "view"),
    "user": (lambda record: record["user"], col("user")),
    "second": (lambda record: record["second"], col("second")),
}
"""The computations of the pipelines: each as a function and as an expression."""


@dataclass(frozen=True)
class ColumnSpeedSetup:
    """The options of the measurement."""

    records: int
    keys: int
    epochs: int
    rounds: int


@dataclass(frozen=True)
class RunCost:
    """One run of one form: its time, its processor time and its output."""

    seconds: float
    used_s: float
    output: bytes


def measure(setup: ColumnSpeedSetup) -> dict[str, Any]:
    rows = written(setup.records, setup.keys)
    found: dict[tuple[str, str], list[RunCost]] = defaultdict(list)
    for number in range(setup.rounds):
        for workload in WORKLOADS:
            # The order of forms alternates, so that background load affects all of them alike.
            for form in FORMS[number % 3 :] + FORMS[: number % 3]:
                found[workload, form].append(run(workload, form, rows, setup.epochs))
            check_equal(workload, {form: found[workload, form][-1].output for form in FORMS})
    return {
        "records": setup.records,
        "keys": setup.keys,
        **{workload: _figures({form: found[workload, form] for form in FORMS}, setup) for workload in WORKLOADS},
    }


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    for workload in WORKLOADS:
        for form in FORMS:
            rate, used = figures[workload][form]["records_per_second"], figures[workload][form]["cpu_us_per_record"]
            yield f"{workload:7} {form:22} {rate:11,.0f} records/s, {used:5.2f} µs of processor time a record"
        to = ", ".join(f"{figures[workload]['ratio'][form]:.2f} × {form.replace('_', ' ')}" for form in FORMS[:-1])
        yield f"{workload:7} columns: {to}"


def written(records: int, keys: int) -> pa.RecordBatch:
    """Return the rows of a log: every key in turn, in an unpredictable order, and the end of the stream."""
    numbers = np.arange(records, dtype=np.int64)
    users = (numbers * 7_919 % keys).tolist()
    payloads = [
        b'{"user":"user-%d","action":"%s","cents":%d,"second":%d}'
        % (user, ACTIONS[number % len(ACTIONS)].encode(), number % 1_000, number // RECORDS_A_SECOND)
        for number, user in enumerate(users)
    ]
    count = records + 1
    columns = [
        pa.array(np.where(np.arange(count) < records, KIND_RECORD, KIND_EOS).astype(np.uint8)),
        pa.array(np.full(count, STREAM, np.uint64)),
        pa.array(np.minimum(np.arange(count), records - 1).astype(np.uint64) + 1),
        pa.array(np.zeros(count, np.int64)),
        pa.repeat(pa.scalar(b"", pa.binary()), count),
        pa.array([*payloads, b""], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=INGRESS_SCHEMA)


def pipeline_of(workload: str, form: str) -> Pipeline:
    """Return a pipeline in one of its forms."""
    chosen = {name: both[form == "columns"] for name, both in FUNCTIONS.items()}
    pipeline = Pipeline("bench-columns")
    schema = None if form == "functions" else SCHEMA
    records = pipeline.source("records", codec="json", schema=schema, streams=[STREAM])
    if workload == "keys":
        records.aggregate(aggregates.count(), key=chosen["user"]).sink(SINK, to="file:output")
        return pipeline
    views = records.filter(chosen["is_view"])
    counted = views.window(windows.tumbling(60), aggregates.count(), key=chosen["user"], time=chosen["second"])
    counted.sink(SINK, to="file:output")
    return pipeline


def run(workload: str, form: str, rows: pa.RecordBatch, epochs: int) -> RunCost:
    """Run all epochs, and measure them."""
    plan = make_plan(pipeline_of(workload, form).graph().with_inputs(frozenset([STREAM])))
    with scratch_directory(rows.nbytes) as directory:
        hosted = HostedPlan(plan, rows, directory)
        began, used = time.perf_counter(), time.process_time()
        for number in range(epochs):
            hosted.run_epoch(rows.num_rows * (number + 1) // epochs)
        took = time.perf_counter() - began, time.process_time() - used
        return RunCost(*took, hosted.outputs().bytes[SINK])


def check_equal(workload: str, outputs: Mapping[str, bytes]) -> None:
    """Raise StorageError if a form has another output than the first."""
    first, *others = outputs
    for other in others:
        if outputs[other] != outputs[first]:
            raise StorageError(f"the output of {workload!r} as {other!r} differs from that as {first!r}")


def _figures(found: Mapping[str, list[RunCost]], setup: ColumnSpeedSetup) -> dict[str, Any]:
    columns = found["columns"]
    others = {form: runs for form, runs in found.items() if form != "columns"}
    return {
        **{
            form: {
                "records_per_second": setup.records / statistics.median(cost.seconds for cost in runs),
                "cpu_us_per_record": statistics.median(cost.used_s for cost in runs) / setup.records * 1e6,
            }
            for form, runs in found.items()
        },
        "ratio": {
            form: statistics.median(slow.seconds / fast.seconds for slow, fast in zip(runs, columns, strict=True))
            for form, runs in others.items()
        },
        "cpu_ratio": {
            form: statistics.median(slow.used_s / fast.used_s for slow, fast in zip(runs, columns, strict=True))
            for form, runs in others.items()
        },
    }
