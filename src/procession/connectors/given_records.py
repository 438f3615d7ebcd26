"""The source for records from a program: each row of an Arrow file is a record and its stream.

Invariant: the file is written once, before the source starts, so each stream can be read again from any record on.
`jobs/pipeline_run` writes it; `procession source given` sends it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from procession.errors import StorageError
from procession.sdk.source_records import Batch, Stream
from procession.storage.segment import KIND_RECORD

BATCH_RECORDS_MAX = 8192
NAMES = b"streams"
"""Key in the schema's metadata: the names of the streams by their ids, as JSON."""


class GivenRecords:
    """Reads a file that `written` returned. Streams without records end immediately."""

    def __init__(self, path: Path) -> None:
        try:
            with pa.OSFile(str(path)) as file:
                self._rows = pa.ipc.open_file(file).read_all()
            self._names = {int(number): name for number, name in json.loads(self._rows.schema.metadata[NAMES]).items()}
        except (OSError, pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"{path} cannot be read: {error}.", next_step="Run the pipeline again.", path=str(path)
            ) from error

    def streams(self) -> list[Stream]:
        return [Stream(number, name) for number, name in self._names.items()]

    def read(self, stream: Stream, after: int | None) -> Iterator[Batch]:
        is_wanted = pc.and_(
            pc.equal(self._rows["stream_id"], pa.scalar(stream.id, pa.uint64())),
            pc.equal(self._rows["kind"], pa.scalar(KIND_RECORD, pa.uint8())),
        )
        if after is not None:
            is_wanted = pc.and_(is_wanted, pc.greater(self._rows["message_id"], pa.scalar(after, pa.uint64())))
        rows = self._rows.filter(is_wanted).select(["message_id", "event_time", "key", "payload"])
        yield from map(Batch.of, rows.combine_chunks().to_batches(BATCH_RECORDS_MAX))


def written(rows: pa.RecordBatch, names: Mapping[int, str]) -> bytes:
    """Return the bytes of a file for `GivenRecords` with the rows of these streams."""
    described = rows.replace_schema_metadata({NAMES: json.dumps(names).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, described.schema) as writer:
        writer.write_batch(described)
    return bytes(sink.getvalue())
