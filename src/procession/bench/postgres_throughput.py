"""How fast records reach a PostgreSQL table: our sink, each record once, against plain COPY of the same rows.

Both write the same rows to the same server, alternately, for several rounds; the result is the median of the ratios.
Plain COPY sends rows that are encoded beforehand, in one transaction, with no token and no second phase. The sink is
the real process: it receives JSON records in blocks over TCP, as `procession run` sends them, converts them to columns
and takes part in two-phase commit. The server syncs, and the table has a primary key.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa

from procession.bench.measured_sink import MeasuredSink
from procession.chaos.postgres_server import PostgresServer
from procession.connectors.postgres_rows import FieldMapping, RecordEncoder, TableRecords
from procession.connectors.postgres_types import BINARY_HEADER, BINARY_TRAILER, Column
from procession.sdk.payloads import Payloads

TABLE = "CREATE TABLE {} (id bigint PRIMARY KEY, price double precision, at timestamptz, name text, note text)"
COLUMNS = tuple(
    Column(name, kind, kind)
    for name, kind in {"id": "int8", "price": "float8", "at": "timestamptz", "name": "text", "note": "text"}.items()
)
NOTE = "x" * 40


@dataclass(frozen=True, slots=True)
class PostgresSetup:
    """What is measured.

    Args:
        records: Records per round.
        epochs: Epochs, and transactions, that they are divided into.
        rounds: Number of rounds.
    """

    records: int
    epochs: int
    rounds: int


def measure(setup: PostgresSetup) -> dict[str, Any]:
    per_epoch = setup.records // setup.epochs
    with (
        PostgresServer() as server,
        tempfile.TemporaryDirectory(prefix="procession-bench-") as directory,
        psycopg.connect(server.url(), autocommit=True) as session,
    ):
        for table in ("plain", "sink_prepared", "sink_token"):
            session.execute(TABLE.format(table))
        return asyncio.run(_rounds(setup, per_epoch, server, session, Path(directory)))


async def _rounds(
    setup: PostgresSetup, per_epoch: int, server: PostgresServer, session: psycopg.Connection[Any], directory: Path
) -> dict[str, Any]:
    sinks = {mode: measured(server, mode, directory / mode) for mode in ("prepared", "token")}
    rates: dict[str, list[float]] = {"copy": [], **{mode: [] for mode in sinks}}
    try:
        for sink in sinks.values():
            await sink.start()
        # One round to warm up: the sinks compile what they decode with.
        for number in range(setup.rounds + 1):
            payloads = [records_of(number, epoch, per_epoch) for epoch in range(setup.epochs)]
            rows = [rows_of(array) for array in payloads]
            spent_s = {"copy": plain_copy(session, rows)}
            for mode, sink in sinks.items():
                spent_s[mode] = await sink.write(payloads)
            for table in ("plain", "sink_prepared", "sink_token"):
                session.execute(f"TRUNCATE {table}")
            if number:
                for name, seconds in spent_s.items():
                    rates[name].append(per_epoch * setup.epochs / seconds)
    finally:
        for sink in sinks.values():
            sink.close()
    return {
        "rows_per_s": {name: statistics.median(found) for name, found in rates.items()},
        "ratio": {
            mode: statistics.median(ours / plain for ours, plain in zip(rates[mode], rates["copy"], strict=True))
            for mode in sinks
        },
    }


def measured(server: PostgresServer, mode: str, directory: Path) -> MeasuredSink:
    words = ["postgres", server.url(), "{dir}", "--table", f"sink_{mode}", "--mode", mode]
    return MeasuredSink(mode, words, directory)


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    for name, rate in figures["rows_per_s"].items():
        ratio = f", {figures['ratio'][name]:.2f} of plain COPY" if name in figures["ratio"] else ""
        what = "plain COPY" if name == "copy" else f"sink, mode {name}"
        yield f"{what}: {rate:,.0f} rows/s{ratio}"


def records_of(number: int, epoch: int, count: int) -> pa.Array:
    """Records of about 130 bytes of JSON, no two of a round with the same id."""
    first = epoch * count
    return pa.array(
        [
            json.dumps(
                {
                    "id": row,
                    "price": row / 4,
                    "at": "2026-11-17T09:00:00.250Z",
                    "name": f"round {number} row {row}",
                    "note": NOTE,
                }
            ).encode()
            for row in range(first, first + count)
        ],
        pa.binary(),
    )


def rows_of(payloads: pa.Array) -> memoryview:
    """The same rows as COPY BINARY takes them."""
    encoder = RecordEncoder([FieldMapping(column, column.name) for column in COLUMNS], "bench")
    return Payloads(encoder.rows(TableRecords(payloads, np.arange(len(payloads))))).joined


def plain_copy(session: psycopg.Connection[Any], rows: list[memoryview]) -> float:
    names = ", ".join(column.name for column in COLUMNS)
    began = time.perf_counter()
    for data in rows:
        with session.cursor() as cursor, cursor.copy(f"COPY plain ({names}) FROM STDIN (FORMAT binary)") as copy:
            copy.write(BINARY_HEADER)
            copy.write(data)
            copy.write(BINARY_TRAILER)
    return time.perf_counter() - began
