"""Compares the speed of the PostgreSQL sink, which writes each record once, with plain COPY of the same rows.

Both write the same epochs to the same server, in turn; the result is the median of the ratios. Plain COPY sends rows
that are encoded beforehand, a transaction for each epoch, without a token or a second phase. The sink is the real
process: it receives records in blocks over TCP, as `procession run` sends them, converts them to rows and takes part
in two-phase commit. In mode `prepared` it gets JSON records and, a second time, Arrow tables. The server syncs, and
each table has a primary key.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa

from procession.bench.measured_sink import MeasuredSink, SinkRounds, WriteEpoch, compare
from procession.chaos.postgres_server import PostgresServer
from procession.connectors.postgres_rows import FieldMapping, RecordEncoder, TableRecords
from procession.connectors.postgres_types import BINARY_HEADER, BINARY_TRAILER, Column
from procession.operators.codecs import to_arrow
from procession.sdk.payloads import Payloads

TABLE = "CREATE TABLE {} (id bigint PRIMARY KEY, price double precision, at timestamptz, name text, note text)"
COLUMNS = tuple(
    Column(name, kind, kind)
    for name, kind in {"id": "int8", "price": "float8", "at": "timestamptz", "name": "text", "note": "text"}.items()
)
NOTE = "x" * 40
AT = datetime.datetime(2026, 11, 17, 9, tzinfo=datetime.UTC)
ARROW_ROWS = 4096
"""Rows of one Arrow record."""
SINKS = {"prepared": ("prepared", "json"), "prepared_arrow": ("prepared", "arrow"), "token": ("token", "json")}
"""The measured sinks: mode, and form of the records. Each sink has a table with its name."""


def measure(setup: SinkRounds) -> dict[str, Any]:
    with (
        PostgresServer() as server,
        tempfile.TemporaryDirectory(prefix="procession-bench-") as directory,
        psycopg.connect(server.url(), autocommit=True) as session,
    ):
        return asyncio.run(_measure(setup, server, session, Path(directory)))


async def _measure(
    setup: SinkRounds, server: PostgresServer, session: psycopg.Connection[Any], directory: Path
) -> dict[str, Any]:
    count = setup.records // setup.epochs
    tables = [table_of(epoch * count, count) for epoch in range(setup.epochs)]
    records = {form: [records_of(table, form) for table in tables] for form in ("json", "arrow")}
    rows = [rows_of(payloads) for payloads in records["json"]]
    for name in ("copy", *SINKS):
        session.execute(TABLE.format(name))

    async def plain(epoch: int) -> float:
        return plain_copy(session, rows[epoch])

    def truncate() -> None:
        for name in ("copy", *SINKS):
            session.execute(f"TRUNCATE {name}")

    sinks = {name: _sink(name, server, directory / name, records[form]) for name, (_, form) in SINKS.items()}
    try:
        for sink in sinks.values():
            await sink.start()
        writers: dict[str, WriteEpoch] = {"copy": plain, **{name: sink.write for name, sink in sinks.items()}}
        timings = await compare(writers, setup.epochs, setup.rounds, truncate)
    finally:
        for sink in sinks.values():
            sink.close()
    return {
        "rows_per_s": {name: found.rate(count) for name, found in timings.items()},
        "ratio": {name: timings[name].ratio(timings["copy"]) for name in SINKS},
        "cpu_us": {name: found.cpu_us(count) for name, found in timings.items()},
    }


def _sink(name: str, server: PostgresServer, directory: Path, payloads: list[pa.Array]) -> MeasuredSink:
    mode, form = SINKS[name]
    arguments = ["postgres", server.url(), "{dir}", "--table", name, "--mode", mode, "--format", form]
    return MeasuredSink(name, arguments, directory, payloads)


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    for name, rate in figures["rows_per_s"].items():
        ratio = f", {figures['ratio'][name]:.2f} of plain COPY" if name in figures["ratio"] else ""
        label = "plain COPY" if name == "copy" else "sink, mode {}, {} records".format(*SINKS[name])
        yield f"{label}: {rate:,.0f} rows/s{ratio}, {figures['cpu_us'][name]:.1f} µs of processor time a row"


def table_of(first: int, count: int) -> pa.Table:
    """Return rows with unique ids within a round."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "price": pa.array([number / 4 for number in numbers]),
            "at": pa.array([AT] * count, pa.timestamp("us", "UTC")),
            "name": pa.array([f"row {number}" for number in numbers]),
            "note": pa.array([NOTE] * count),
        }
    )


def records_of(table: pa.Table, form: str) -> pa.Array:
    """Return the rows as records of about 130 bytes of JSON, or as Arrow tables of `ARROW_ROWS` rows."""
    if form == "arrow":
        return pa.array(
            [to_arrow(table.slice(first, ARROW_ROWS)) for first in range(0, len(table), ARROW_ROWS)], pa.binary()
        )
    rows = table.set_column(2, "at", pa.array([AT.isoformat()] * len(table))).to_pylist()
    return pa.array([json.dumps(row).encode() for row in rows], pa.binary())


def rows_of(payloads: pa.Array) -> memoryview:
    """Return the rows in the format of COPY BINARY."""
    encoder = RecordEncoder([FieldMapping(column, column.name) for column in COLUMNS], "bench")
    return Payloads(encoder.rows(TableRecords(payloads, np.arange(len(payloads))))).joined


def plain_copy(session: psycopg.Connection[Any], rows: memoryview) -> float:
    names = ", ".join(column.name for column in COLUMNS)
    began = time.perf_counter()
    with session.cursor() as cursor, cursor.copy(f"COPY copy ({names}) FROM STDIN (FORMAT binary)") as copy:
        copy.write(BINARY_HEADER)
        copy.write(rows)
        copy.write(BINARY_TRAILER)
    return time.perf_counter() - began
