"""How fast records reach a Delta table: our sink, each record once, against plain deltalake writes of the same rows.

Both append the same rows to tables on the same disk, alternately, for several rounds; the result is the median of the
ratios. There are two forms. `json`: both get JSON records, and the plain writer parses them with pyarrow. `arrow`: both
get Arrow rows, and the plain writer passes them to `write_deltalake` unchanged. The sink is the real process: it
receives blocks over TCP, as `procession run` sends them, syncs its files, votes and commits. The plain writer does none
of that.
"""

from __future__ import annotations

import asyncio
import io
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pa_json
from deltalake import DeltaTable, write_deltalake

from procession.bench.measured_sink import MeasuredSink
from procession.errors import StorageError

FORMS = ("json", "arrow")
ARROW_ROWS = 4096
"""Rows of one Arrow record."""
NOTE = "x" * 40


@dataclass(frozen=True, slots=True)
class DeltaSetup:
    """What is measured.

    Args:
        records: Records per round.
        epochs: Epochs, and commits of the table, that they are divided into.
        rounds: Number of rounds.
    """

    records: int
    epochs: int
    rounds: int


def measure(setup: DeltaSetup) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="procession-bench-") as directory:
        return asyncio.run(_rounds(setup, setup.records // setup.epochs, Path(directory)))


async def _rounds(setup: DeltaSetup, per_epoch: int, directory: Path) -> dict[str, Any]:
    sinks = {form: measured(form, directory / form) for form in FORMS}
    rates: dict[str, list[float]] = {f"{who} {form}": [] for form in FORMS for who in ("plain", "sink")}
    try:
        for sink in sinks.values():
            await sink.start()
        # One round to warm up: the sinks compile what they decode with.
        for number in range(setup.rounds + 1):
            tables = [rows_of(number * setup.records + epoch * per_epoch, per_epoch) for epoch in range(setup.epochs)]
            for form, sink in sinks.items():
                records = [records_of(table, form) for table in tables]
                plain_s = write_plain(directory / f"plain-{form}", tables if form == "arrow" else records)
                sink_s = await sink.write(records)
                if number:
                    rates[f"plain {form}"].append(per_epoch * setup.epochs / plain_s)
                    rates[f"sink {form}"].append(per_epoch * setup.epochs / sink_s)
        for form in FORMS:
            _compare(directory / f"plain-{form}", directory / form / "table")
    finally:
        for sink in sinks.values():
            sink.close()
    ratios = {
        form: statistics.median(
            ours / plain for ours, plain in zip(rates[f"sink {form}"], rates[f"plain {form}"], strict=True)
        )
        for form in FORMS
    }
    return {"rows_per_s": {name: statistics.median(found) for name, found in rates.items()}, "ratio": ratios}


def measured(form: str, directory: Path) -> MeasuredSink:
    return MeasuredSink(form, ["delta", str(directory / "table"), "{dir}", "--format", form], directory)


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    for form in FORMS:
        plain, ours = (figures["rows_per_s"][f"{who} {form}"] for who in ("plain", "sink"))
        yield f"{form} records: deltalake {plain:,.0f} rows/s, our sink {ours:,.0f}, {figures['ratio'][form]:.2f} of it"


def rows_of(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "price": pa.array([number / 4 for number in numbers], pa.float64()),
            "name": pa.array([f"row {number}" for number in numbers]),
            "note": pa.array([NOTE] * count),
        }
    )


def records_of(table: pa.Table, form: str) -> pa.Array:
    """The rows as records of about 100 bytes of JSON, or as Arrow IPC streams."""
    if form == "json":
        return pa.array([json.dumps(row).encode() for row in table.to_pylist()], pa.binary())
    streams = []
    for batch in table.to_batches(max_chunksize=ARROW_ROWS):
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_batch(batch)
        streams.append(stream.getvalue().to_pybytes())
    return pa.array(streams, pa.binary())


def write_plain(path: Path, epochs: list[pa.Table] | list[pa.Array]) -> float:
    """Seconds for all epochs, each in a commit of its own."""
    began = time.perf_counter()
    for rows in epochs:
        table = rows if isinstance(rows, pa.Table) else pa_json.read_json(io.BytesIO(b"\n".join(rows.to_pylist())))
        write_deltalake(path, table, mode="append")
    return time.perf_counter() - began


def _compare(plain: Path, ours: Path) -> None:
    """Both tables have the same rows, or the figures mean nothing."""
    found = [DeltaTable(path).to_pyarrow_table(columns=["id"]).column("id").combine_chunks() for path in (plain, ours)]
    if not found[0].sort().equals(found[1].sort()):
        raise StorageError(f"{plain} and {ours} have different rows.", next_step="Report it: this is a bug.")
