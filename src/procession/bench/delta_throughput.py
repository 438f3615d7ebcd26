"""Compares the speed of the Delta sink, which writes each record once, with plain deltalake writes of the same rows.

Both append the same epochs to tables on the same disk, in turn, one file with the same compression for each epoch; the
result is the median of the ratios, and the ratio of processor time. There are two forms. `json`: both get JSON records,
and the plain writer parses them with pyarrow. `arrow`: both get Arrow rows, and the plain writer passes them to
`write_deltalake` unchanged. The sink is the real process: it receives blocks over TCP, as `procession run` sends them,
syncs its files, votes and commits. The plain writer does none of that.
"""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from procession.bench.measured_sink import MeasuredSink, SinkRounds, WriteEpoch, compare
from procession.errors import StorageError

FORMS = ("json", "arrow")
ARROW_ROWS = 4096
"""Rows of one Arrow record."""
NOTE = "x" * 40


def measure(setup: SinkRounds) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="procession-bench-") as directory:
        return asyncio.run(_measure(setup, Path(directory)))


async def _measure(setup: SinkRounds, directory: Path) -> dict[str, Any]:
    count = setup.records // setup.epochs
    tables = [rows_of(epoch * count, count) for epoch in range(setup.epochs)]
    records = {form: [records_of(table, form) for table in tables] for form in FORMS}
    sinks = {form: _sink(form, directory / form, records[form]) for form in FORMS}

    async def plain_json(epoch: int) -> float:
        return write_plain(directory / "plain-json", records["json"][epoch])

    async def plain_arrow(epoch: int) -> float:
        return write_plain(directory / "plain-arrow", tables[epoch])

    writers: dict[str, WriteEpoch] = {"plain json": plain_json, "plain arrow": plain_arrow}
    try:
        for form, sink in sinks.items():
            await sink.start()
            writers[f"sink {form}"] = sink.write
        timings = await compare(writers, setup.epochs, setup.rounds, lambda: None)
        for form in FORMS:
            _compare(directory / f"plain-{form}", directory / form / "table")
    finally:
        for sink in sinks.values():
            sink.close()
    return {
        "rows_per_s": {name: found.rate(count) for name, found in timings.items()},
        "ratio": {form: timings[f"sink {form}"].ratio(timings[f"plain {form}"]) for form in FORMS},
        "cpu_us": {name: found.cpu_us(count) for name, found in timings.items()},
        "cpu_ratio": {form: timings[f"plain {form}"].cpu_us(1) / timings[f"sink {form}"].cpu_us(1) for form in FORMS},
    }


def _sink(form: str, directory: Path, payloads: list[pa.Array]) -> MeasuredSink:
    return MeasuredSink(form, ["delta", str(directory / "table"), "{dir}", "--format", form], directory, payloads)


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    for form in FORMS:
        plain, ours = (figures["rows_per_s"][f"{variant} {form}"] for variant in ("plain", "sink"))
        cpu = [figures["cpu_us"][f"{variant} {form}"] for variant in ("plain", "sink")]
        yield (
            f"{form} records: deltalake {plain:,.0f} rows/s, our sink {ours:,.0f}, {figures['ratio'][form]:.2f} of it;"
            f" processor time a row {cpu[0]:.2f} and {cpu[1]:.2f} µs, {figures['cpu_ratio'][form]:.2f}"
        )


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
    """Return the rows as records of about 100 bytes of JSON, or as Arrow IPC streams."""
    if form == "json":
        return pa.array([json.dumps(row).encode() for row in table.to_pylist()], pa.binary())
    streams = []
    for batch in table.to_batches(max_chunksize=ARROW_ROWS):
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_batch(batch)
        streams.append(stream.getvalue().to_pybytes())
    return pa.array(streams, pa.binary())


def write_plain(path: Path, rows: pa.Table | pa.Array) -> float:
    """Return a function that writes an epoch in one commit and returns the seconds."""
    began = time.perf_counter()
    table = rows if isinstance(rows, pa.Table) else pa_json.read_json(io.BytesIO(b"\n".join(rows.to_pylist())))
    write_deltalake(path, table, mode="append")
    return time.perf_counter() - began


def _compare(plain: Path, ours: Path) -> None:
    """Raise an error unless both tables have the same rows, files and compression, so that the figures are
    comparable."""
    found = [DeltaTable(path) for path in (plain, ours)]
    ids = [table.to_pyarrow_table(columns=["id"]).column("id").combine_chunks().sort() for table in found]
    files = [[pq.read_metadata(uri) for uri in table.file_uris()] for table in found]
    compressions = [
        {file.row_group(0).column(index).compression for file in some for index in range(file.num_columns)}
        for some in files
    ]
    if not ids[0].equals(ids[1]) or len(files[0]) != len(files[1]) or compressions[0] != compressions[1]:
        raise StorageError(
            f"{plain} and {ours} have different rows, files or compressions.", next_step="Report it: this is a bug."
        )
