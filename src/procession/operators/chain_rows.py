"""The rows that go into a chain, and those that come out of it for each sink and each exchange.

The one rule: rows are in order, and carry their order key wherever somebody has to restore the order. Read from
`storage/log` and `storage/run_store`; used by `operators/chain`. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from procession.operators.stage_rows import Numbers
from procession.operators.value_codec import Forms
from procession.record import COLUMNS, ORDER

TIME = "time"
"""The column of the times that move a watermark."""

INPUT = "input"
"""The column that says which input a row is of, where the stage behind has several."""


@dataclass(frozen=True)
class Rows:
    """Rows in order. `order` is their order key, the sequence first. `columns` are the ingress records themselves, or
    COLUMNS of rows that came over an exchange, if it carries them."""

    payload: pa.Array
    order: tuple[Numbers, ...]
    forms: Forms | None = None
    """How values that came over an exchange are to be read; None: payloads, as they came in."""
    columns: pa.RecordBatch | None = None
    keys: pa.Array | None = None
    """The keys by which rows came over an exchange to a stage that keeps something about each."""
    times: Numbers | None = None
    """Their times, where a watermark moves that stage."""
    inputs: npt.NDArray[np.uint64] | None = None
    """The inputs that they are of, where that stage has several: see `planner/inputs`."""
    are_late: npt.NDArray[np.bool_] | None = None
    """Which of them came behind the watermark of their stream; None: none did."""

    @classmethod
    def of_ingress(
        cls, records: pa.RecordBatch, sequence: Numbers, are_late: npt.NDArray[np.bool_] | None = None
    ) -> Rows:
        """The records of a range of the log."""
        return cls(records.column("payload"), (sequence,), columns=records, are_late=are_late)

    @classmethod
    def of_exchange(cls, batch: pa.RecordBatch) -> Rows:
        """Rows as `batch_of` packed them, and an exchange brought them."""
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
        """Whether these are records as they came in. Their keys are plain bytes; those of other rows are encoded."""
        return self.forms is None

    def slice(self, start: int, count: int) -> Rows:
        end = start + count
        return Rows(
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
class Output:
    """Rows for a sink or an exchange. A bucket of an exchange is a task behind it; dead letters that must be merged
    have a bucket for each stage, because they are in order only among those of their stage."""

    to: int
    bucket: int
    rows: pa.RecordBatch


def batch_of(payload: pa.Array, order: Sequence[Numbers], more: Sequence[tuple[str, pa.Array]] = ()) -> pa.RecordBatch:
    """Rows for a run: the payload, the order key a column for each part, and whatever more there is."""
    columns = {"payload": payload, **{f"{ORDER}{place}": pa.array(column) for place, column in enumerate(order)}}
    return pa.record_batch({**columns, **dict(more)})
