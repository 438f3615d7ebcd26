"""Dead letters: what happens to records on which a function raised, and to late records.

The one rule: an error names its record. It stops the epoch, or becomes a dead letter in the record's place, after the
dead letters of earlier stages. `operators/chain` catches what functions raise; dead letters go to the dead-letter sink.
Pure.
"""

from __future__ import annotations

import base64
import json
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from procession.errors import RecordError, RoundError
from procession.operators.chain_rows import Rows, batch_of
from procession.operators.stage_rows import Flow, Numbers
from procession.planner.event_order import Late, LateRecord
from procession.planner.graph import OnError
from procession.planner.plan import Plan


@dataclass(frozen=True)
class Letter:
    """A record on which a function raised. `place` is the input row, the stage, then the row's own numbers."""

    place: tuple[int, ...]
    key: tuple[int, ...]
    line: bytes


class Letters:
    """The letters of one pass of a chain over these rows."""

    def __init__(self, plan: Plan, rows: Rows, find: Callable[[int], dict[str, Any]]) -> None:
        self._plan = plan
        self._rows = rows
        self._find = find
        self._letters: list[Letter] = []
        # Where several chains have letters they are merged: by sequence, stage, and what else tells rows apart.
        self._key_length = 1 + max(map(len, plan.keys)) if plan.are_letters_merged else 0

    def add(self, stage: int, flow: Flow, row: int, error: Exception) -> None:
        """The function of this stage raised on this row."""
        name = self._plan.node(stage).name
        origin = flow.origin(row)
        record = self._record(origin)
        told = f"{type(error).__name__}: {error}"
        if self._plan.graph.on_error is OnError.STOP:
            raise RecordError(
                f"stage {name!r} raised on message {record['message_id']} of stream {record['stream_id']}: {told}",
                next_step='mend the function, or give the Pipeline dead_letter="file:DIR" to set such records aside;'
                " nothing of this epoch was committed, and it is run again when you start again",
                stage=name,
                stream_id=record["stream_id"],
                message_id=record["message_id"],
                trace="".join(traceback.format_exception(error)),
            ) from error
        letter = {
            "stream_id": record["stream_id"],
            "message_id": record["message_id"],
            "stage": name,
            "error": told,
            "payload": base64.b64encode(record["payload"]).decode(),
        }
        tail = tuple(int(column[row]) for column in flow.tail)
        sequence, *rest = (int(column[origin]) for column in self._rows.order)
        key = (sequence, stage, *rest, *tail)
        key += (0,) * (self._key_length - len(key))
        self._letters.append(Letter((origin, stage, *tail), key, json.dumps(letter).encode() + b"\n"))

    def late(self, source: int, flow: Flow, row: int) -> None:
        """This row came behind the watermark of its stream: drop it, make it a letter, or stop."""
        asked = self._plan.graph.event_time
        assert asked is not None, "only where streams are merged by event time is a record late"
        if asked.late is Late.DROP:
            return
        record = self._record(flow.origin(row))
        told = f"its event time {record['event_time']} is behind its stream's watermark"
        if asked.late is Late.DEAD_LETTER:
            self.add(source, flow, row, LateRecord(told))
            return
        raise RecordError(
            f"message {record['message_id']} of stream {record['stream_id']} is late: {told}",
            next_step="allow for it with Pipeline(…, lateness_s=…) in a new directory, or go on in this one with"
            ' late="drop" or late="dead-letter"; nothing of this epoch was committed, and it is run again when you'
            " start again",
            stage=self._plan.node(source).name,
            stream_id=record["stream_id"],
            message_id=record["message_id"],
        )

    def failed_call(self, stage: int, flow: Flow, row: int, error: BaseException) -> RoundError:
        """What to raise when an asynchronous call failed: it is not the record's fault, so it is no dead letter."""
        name = self._plan.node(stage).name
        record = self._record(flow.origin(row))
        return RoundError(
            f"stage {name!r}: the call for message {record['message_id']} of stream {record['stream_id']} failed:"
            f" {type(error).__name__}: {error}; the epoch is run again",
            stage=name,
            stream_id=record["stream_id"],
            message_id=record["message_id"],
            trace="".join(traceback.format_exception(error)),
        )

    def _record(self, origin: int) -> dict[str, Any]:
        columns = self._rows.columns
        if columns is not None and "payload" in columns.schema.names:
            record: dict[str, Any] = columns.slice(origin, 1).to_pylist()[0]
            return record
        return self._find(int(self._rows.order[0][origin]))

    def batches(self) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """The letters as rows for the dead-letter sink: (sink, bucket, rows)."""
        if not self._letters:
            return
        sink = next(index for index, node in enumerate(self._plan.graph.nodes) if node is self._plan.graph.dead_letter)
        if not self._key_length:
            yield sink, 0, _lines(sorted(self._letters, key=lambda one: one.place), [])
            return
        by_stage = sorted(self._letters, key=lambda one: (one.key[1], one.key))
        for stage, found in groupby(by_stage, key=lambda one: one.key[1]):
            letters = list(found)
            keys = np.array([letter.key for letter in letters], np.int64)
            yield sink, stage, _lines(letters, [np.ascontiguousarray(column) for column in keys.T])


def _lines(letters: list[Letter], order: list[Numbers]) -> pa.RecordBatch:
    return batch_of(pa.array([letter.line for letter in letters], pa.binary()), order)
