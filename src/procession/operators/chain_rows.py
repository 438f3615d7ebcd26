"""The input rows of a chain, and its output rows for each sink and each exchange.

Invariant: rows are in order, and carry their order key if the order has to be restored later. Read from `storage/log`
and `storage/run_store`; used by `operators/chain`. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from procession.operators.column_unpack import unpacked_records
from procession.operators.stage_rows import Numbers
from procession.operators.value_codec import VALUE, Forms, ValueCodec
from procession.record import COLUMNS, ORDER

TIME = "time"
"""The column of the event times that advance a watermark."""

INPUT = "input"
"""The column with the input of each row, if the next stage has several inputs."""

TICK = 3
"""The form of a row that only advances a watermark. The other forms are in `operators/value_codec`."""


@dataclass(frozen=True)
class ChainRows:
    """Rows in order. `order` is their order key, with the sequence first. `columns` are the ingress records. For rows
    that arrived over an exchange, they are COLUMNS, if the exchange carries them."""

    payload: pa.Array
    order: tuple[Numbers, ...]
    forms: Forms | None = None
    """How values that arrived over an exchange are encoded. None: these are payloads as they were received."""
    columns: pa.RecordBatch | None = None
    keys: pa.Array | None = None
    """The keys of rows that arrived over an exchange to a stage with state."""
    times: Numbers | None = None
    """The event times of the rows, if that stage has a watermark."""
    inputs: npt.NDArray[np.uint64] | None = None
    """The inputs of the rows, if that stage has several (`planner/inputs`)."""
    are_late: npt.NDArray[np.bool_] | None = None
    """Which rows are late for the watermark of their stream. None: no row is late."""

    @classmethod
    def of_ingress(
        cls, records: pa.RecordBatch, sequence: Numbers, are_late: npt.NDArray[np.bool_] | None = None
    ) -> ChainRows:
        """Create rows from the records of a range of the log."""
        return cls(records.column("payload"), (sequence,), columns=records, are_late=are_late)

    @classmethod
    def of_exchange(cls, batch: pa.RecordBatch) -> ChainRows:
        """Create rows from a batch that arrived over an exchange, as `batch_of` packed it."""
        names = batch.schema.names
        order = tuple(batch.column(name).to_numpy() for name in names if name.startswith(ORDER))
        columns = batch.select(COLUMNS) if COLUMNS[-1] in names else None
        keys = batch.column("key") if "key" in names else None
        times = batch.column(TIME).to_numpy() if TIME in names else None
        inputs = batch.column(INPUT).to_numpy() if INPUT in names else None
        return cls(batch.column("payload"), order, batch.column("form").to_numpy(), columns, keys, times, inputs)

    def __len__(self) -> int:
        return len(self.payload)

    @property
    def is_ingress(self) -> bool:
        """Whether these are records as they were received, whose keys are plain bytes. Other rows have encoded keys."""
        return self.forms is None

    @property
    def are_ticks(self) -> npt.NDArray[np.bool_]:
        """Which rows only advance a watermark."""
        assert self.forms is not None
        are_ticks: npt.NDArray[np.bool_] = self.forms == TICK
        return are_ticks

    def decoded(self, codec: ValueCodec, kind: pa.StructType | None = None) -> pa.Array | list[Any]:
        """Decode the values that arrived over an exchange. The value of a tick is None. With `kind`, records of this
        type become a column, if all of them were in columns before the exchange."""
        assert self.forms is not None
        if kind is not None and (records := self._in_columns(kind)) is not None:
            return records
        if self.times is None:  # without a watermark there are no ticks
            return codec.unpack(self.payload, self.forms)
        read, rows = codec.read, zip(self.forms.tolist(), self.payload.to_pylist(), strict=True)
        return [None if form == TICK else read[form](data) for form, data in rows]

    def _in_columns(self, kind: pa.StructType) -> pa.StructArray | None:
        """The records as a column. None if they were not in columns before the exchange. A tick, which has no record,
        gets that of another row."""
        assert self.forms is not None
        are_records = np.equal(self.forms, VALUE)
        if are_records.all():
            return unpacked_records(self.payload, kind)
        if not np.logical_or(are_records, self.are_ticks).all() or not are_records.any():
            return None
        found = unpacked_records(self.payload.filter(pa.array(are_records)), kind)
        return None if found is None else found.take(pa.array(np.maximum(np.cumsum(are_records) - 1, 0)))

    def slice(self, start: int, count: int) -> ChainRows:
        end = start + count
        return ChainRows(
            self.payload.slice(start, count),
            tuple(column[start:end] for column in self.order),
            None if self.forms is None else self.forms[start:end],
            None if self.columns is None else self.columns.slice(start, count),
            None if self.keys is None else self.keys.slice(start, count),
            None if self.times is None else self.times[start:end],
            None if self.inputs is None else self.inputs[start:end],
            None if self.are_late is None else self.are_late[start:end],
        )


@dataclass(frozen=True)
class ChainOutput:
    """Rows for a sink or an exchange. A bucket of an exchange is a task of the next stage. Dead letters that are merged
    have a bucket for each stage, because they are in order only within a stage."""

    to: int
    bucket: int
    rows: pa.RecordBatch


def batch_of(payload: pa.Array, order: Sequence[Numbers], more: Sequence[tuple[str, pa.Array]] = ()) -> pa.RecordBatch:
    """Return rows for a run: the payload, a column for each part of the order key, and further columns."""
    columns = {"payload": payload, **{f"{ORDER}{place}": pa.array(column) for place, column in enumerate(order)}}
    return pa.record_batch({**columns, **dict(more)})
