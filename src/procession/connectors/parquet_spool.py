"""Writes the records of one epoch to one Parquet file while they arrive.

Invariant: memory is bounded: up to `BUFFER_BYTES_MAX` bytes of records as received, and twice `ROW_GROUP_BYTES_MAX`
bytes of rows, of which a thread writes one half while the other half is filled. Until `finish`, the file is not part
of the output and can be dropped at any time. Upstream: `connectors/parquet_output`; downstream:
`connectors/object_store`, which takes the file.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from procession import faults
from procession.connectors.parquet_columns import RowConverter
from procession.errors import ProcessionError
from procession.runtime.host_files import sync
from procession.sdk.payloads import Payloads
from procession.sdk.record_blocks import RecordForm, record_batches
from procession.storage.durable import storage_error

BUFFER_BYTES_MAX = 2 * 1024 * 1024
"""Bytes of records that are converted together."""
ROW_GROUP_BYTES_MIN = 2 * 1024 * 1024
ROW_GROUP_BYTES_MAX = 32 * 1024 * 1024
ROW_GROUP_SHARE = 4
"""A row group has a quarter of the bytes written before it, within the two bounds. So few rows remain to be written
when the last record has arrived, and a large file has few row groups."""
ROW_GROUP_ROWS_MAX = 1_000_000
DICTIONARY_BYTES_MAX = 64 * 1024
"""Maximum bytes of different values in a column with a dictionary. A larger dictionary would cost more than it
saves."""
DICTIONARY_SAMPLE_ROWS = 4096
DICTIONARY_DISTINCT_MAX = 0.9
"""Share of different values in the sample above which a column gets no dictionary, because its values would not
fit."""
DICTIONARY_FILES = 16
"""Number of files after which the columns with a dictionary are chosen again."""
TEXT_BOUND_CHARACTERS_MAX = 32
"""Maximum length of a text as a bound in the statistics. A column with a longer minimum or maximum has no bounds."""

MakeSchema = Callable[[pa.Schema], pa.Schema]
"""Creates the table with a proposed schema if there is none. Returns the table's schema."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The size and the statistics of a finished file."""

    rows: int
    bytes: int
    statistics: str
    """Row count, null counts and bounds of columns, as JSON in the format of Delta's log."""


class ParquetSpool:
    """The file of one epoch at `path`, which exists while there are records."""

    def __init__(self, path: Path, columns: RowConverter, form: RecordForm, make_schema: MakeSchema) -> None:
        self.path = path
        self._columns = columns
        self._form = form
        self._make_schema = make_schema
        self._writer: pq.ParquetWriter | None = None
        self._thread = ThreadPoolExecutor(1, "parquet")
        self._dictionaries: bool | list[str] = True
        self._dictionaries_of: pa.Schema | None = None
        self._files = 0
        self._writing: Future[None] | None = None
        """The current work of the thread: a row group or a sync. Until it ends, no other thread may use the
        writer."""
        self.drop()

    def drop(self) -> None:
        """Drop every record."""
        with suppress(ProcessionError):
            self._close()
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(self.path, "remove", error) from error
        self._waiting: list[tuple[pa.RecordBatch, npt.NDArray[np.int64]]] = []
        self._waiting_bytes = 0
        self._rows: list[pa.Table] = []
        self._rows_bytes = self._rows_count = self._file_bytes = 0

    @property
    def has_records(self) -> bool:
        return bool(self._waiting or self._rows or self._writing or self._writer)

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        """Add messages, the first of which is at `position`. Raises RecordError."""
        messages = Payloads.of(payloads)
        edges = messages.edges + position
        if self._form is RecordForm.MESSAGES:
            [batch] = record_batches(messages, self._form)
            self._wait_with(batch, edges[:-1], int(edges[-1] - edges[0]))
            return
        blocks = record_batches(messages, self._form)
        for (start, end), batch in zip(itertools.pairwise(edges.tolist()), blocks, strict=True):
            self._wait_with(batch, start + np.arange(len(batch)), end - start)

    def finish(self) -> FileFacts:
        """Write the remaining rows and close the file. The thread starts to sync the file; `wait_for_sync` waits for
        it."""
        self._convert()
        self._write_row_group()
        self._wait()
        assert self._writer is not None
        assert self._columns.schema is not None
        try:
            self._writer.close()
            self._writer = None
            facts = _facts(self.path)
        except OSError as error:
            raise storage_error(self.path, "write", error) from error
        self._file_bytes = 0
        self._writing = self._thread.submit(self._sync)
        return facts

    def wait_for_sync(self) -> None:
        """Wait until the finished file is on disk. Raises StorageError."""
        self._wait()

    def close(self) -> None:
        try:
            self._close()
        finally:
            self._thread.shutdown()

    def _wait_with(self, batch: pa.RecordBatch, positions: npt.NDArray[np.int64], size_bytes: int) -> None:
        self._waiting.append((batch, positions))
        self._waiting_bytes += size_bytes
        if self._columns.is_columnar or self._waiting_bytes >= BUFFER_BYTES_MAX:
            self._convert()

    def _convert(self) -> None:
        waiting, self._waiting = self._waiting, []
        received_bytes, self._waiting_bytes = self._waiting_bytes, 0
        if not waiting:
            return
        batch, positions = waiting[0]
        if len(waiting) > 1:
            [batch] = pa.Table.from_batches([batch for batch, _ in waiting]).combine_chunks().to_batches()
            positions = np.concatenate([positions for _, positions in waiting])
        if self._columns.schema is None:
            self._columns.use(self._make_schema(self._columns.propose(batch)))
        rows = self._columns.table(batch, positions)
        self._rows.append(rows)
        # Rows from Arrow records refer to the records, which may have more bytes than their rows.
        self._rows_bytes += max(rows.nbytes, received_bytes) if self._columns.is_columnar else rows.nbytes
        self._rows_count += rows.num_rows
        enough_bytes = min(max(self._file_bytes // ROW_GROUP_SHARE, ROW_GROUP_BYTES_MIN), ROW_GROUP_BYTES_MAX)
        if self._rows_bytes >= enough_bytes or self._rows_count >= ROW_GROUP_ROWS_MAX:
            self._write_row_group()

    def _write_row_group(self) -> None:
        """Let the thread write the rows, after all earlier rows."""
        rows, self._rows = self._rows, []
        self._file_bytes += self._rows_bytes
        self._rows_bytes = self._rows_count = 0
        self._wait()
        self._writing = self._thread.submit(self._write, rows)

    def _write(self, rows: list[pa.Table]) -> None:
        try:
            assert self._columns.schema is not None
            table = pa.concat_tables(rows) if rows else self._columns.schema.empty_table()
            if self._writer is None:
                self._judge_dictionaries(table)
                self._writer = _new_writer(self.path, table.schema, self._dictionaries)
            faults.disk("full")
            if rows:
                self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS_MAX)
        except OSError as error:
            raise storage_error(self.path, "write", error) from error

    def _judge_dictionaries(self, table: pa.Table) -> None:
        if self._files % DICTIONARY_FILES == 0 or self._dictionaries_of != table.schema:
            self._dictionaries, self._dictionaries_of = repeating_columns(table), table.schema
        self._files += 1

    def _sync(self) -> None:
        try:
            with self.path.open("rb") as file:
                sync(file.fileno())
        except OSError as error:
            raise storage_error(self.path, "sync", error) from error

    def _wait(self) -> None:
        """Wait for the thread. Raise its error."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _close(self) -> None:
        try:
            self._wait()
        finally:
            writer, self._writer = self._writer, None
            if writer is not None:
                try:
                    writer.close()
                except OSError as error:
                    raise storage_error(self.path, "write", error) from error


def merge_files(sources: Iterable[pa.NativeFile], schema: pa.Schema, path: Path) -> FileFacts:
    """Write the rows of Parquet files, in this order, to one file at `path`. The file is not synced."""
    rows: list[pa.Table] = []
    try:
        with _new_writer(path, schema) as writer:
            for source in sources:
                with pq.ParquetFile(source) as file:
                    for index in range(file.num_row_groups):
                        rows.append(file.read_row_group(index).cast(schema))
                        if sum(table.nbytes for table in rows) >= ROW_GROUP_BYTES_MAX:
                            writer.write_table(pa.concat_tables(rows), row_group_size=ROW_GROUP_ROWS_MAX)
                            rows = []
            if rows:
                writer.write_table(pa.concat_tables(rows), row_group_size=ROW_GROUP_ROWS_MAX)
        return _facts(path)
    except OSError as error:
        raise storage_error(path, "write", error) from error


def _new_writer(path: Path, schema: pa.Schema, dictionaries: bool | list[str] = True) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        path,
        schema,
        compression="snappy",
        use_dictionary=dictionaries,
        dictionary_pagesize_limit=DICTIONARY_BYTES_MAX,
    )


def repeating_columns(first: pa.Table) -> bool | list[str]:
    """Return the columns that a dictionary may make smaller, judged by the first rows; True: all."""
    sample = first.slice(0, DICTIONARY_SAMPLE_ROWS)
    if len(sample) < DICTIONARY_SAMPLE_ROWS or any(pa.types.is_nested(field.type) for field in first.schema):
        return True
    return [field.name for field in first.schema if not _is_distinct(sample.column(field.name))]


def _is_distinct(values: pa.ChunkedArray) -> bool:
    kind = values.type
    is_counted = pa.types.is_primitive(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind)
    return is_counted and bool(pc.count_distinct(values).as_py() > DICTIONARY_DISTINCT_MAX * len(values))


def _facts(path: Path) -> FileFacts:
    metadata = pq.read_metadata(path)
    return FileFacts(metadata.num_rows, path.stat().st_size, json.dumps(_statistics(metadata)))


def _statistics(metadata: pq.FileMetaData) -> dict[str, Any]:
    """Return the file's number of rows, and the null counts and bounds of its plain columns. Bounds are given only
    for types where they are exact for every reader: integers and short texts."""
    nulls: dict[str, int] = {}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    leaves = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
    for field in metadata.schema.to_arrow_schema():
        column = leaves.get(field.name)
        if column is None or "." in field.name:  # a nested column, or a column whose name looks like a path
            continue
        groups = [metadata.row_group(group).column(column).statistics for group in range(metadata.num_row_groups)]
        if not groups or not all(found is not None and found.has_null_count for found in groups):
            continue
        nulls[field.name] = sum(found.null_count for found in groups)
        bounded = [found for found in groups if found.has_min_max]
        if len(bounded) < len(groups):
            continue
        low, high = min(found.min for found in bounded), max(found.max for found in bounded)
        if _is_exact(field.type, low, high):
            least[field.name], greatest[field.name] = low, high
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}


def _is_exact(kind: pa.DataType, low: Any, high: Any) -> bool:
    if pa.types.is_integer(kind):
        return True
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return is_text and max(len(low), len(high)) <= TEXT_BOUND_CHARACTERS_MAX
