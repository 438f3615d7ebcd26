"""Dead letters: handles records on which a function raised, and late records.

Invariant: an error names its record. It stops the epoch, or becomes a dead letter in the record's place, after the dead
letters of earlier stages. `operators/chain` catches the exceptions; dead letters go to the dead-letter sink. Pure.
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
from procession.operators.chain_rows import ChainRows, batch_of
from procession.operators.stage_rows import Numbers, StageRows
from procession.planner.event_order import LateRecord, LateRule
from procession.planner.graph import Kind, OnError
from procession.planner.plan import Plan


@dataclass(frozen=True)
class DeadLetter:
    """A record on which a function raised. `place` orders the dead letters of one pass: by the input row, by the stage,
    then by the numbers of the row. `key` orders the dead letters of several chains."""

    stage: int
    place: tuple[int, ...]
    key: tuple[int, ...]
    line: bytes


class DeadLetters:
    """The dead letters of one pass of a chain over these rows."""

    def __init__(self, plan: Plan, rows: ChainRows, find: Callable[[int], dict[str, Any]]) -> None:
        self._plan = plan
        self._rows = rows
        self._find = find
        self._letters: list[DeadLetter] = []
        # Dead letters of several chains are merged by sequence, by stage, then by the rest of the order key.
        self._key_length = 1 + max(map(len, plan.keys)) if plan.are_dead_letters_merged else 0

    def add(self, stage: int, flow: StageRows, row: int, error: Exception) -> None:
        """Add a dead letter for this row, on which the function of this stage raised, or stop."""
        name = self._plan.node(stage).name
        origin = flow.origin(row)
        record = self._record(origin)
        reason = f"{type(error).__name__}: {error}"
        if self._plan.graph.on_error is OnError.STOP:
            raise RecordError(
                f"stage {name!r} raised on message {record['message_id']} of stream {record['stream_id']}: {reason}",
                next_step=f'{self._remedy(stage)}, or keep such records with Pipeline(…, dead_letter="file:DIR");'
                " nothing of this epoch is committed, and it runs again at the next start",
                stage=name,
                stream_id=record["stream_id"],
                message_id=record["message_id"],
                trace="".join(traceback.format_exception(error)),
            ) from error
        letter = {
            "stream_id": record["stream_id"],
            "message_id": record["message_id"],
            "stage": name,
            "error": reason,
            **({"event_time": record["event_time"]} if record["event_time"] else {}),
            **({"key": base64.b64encode(record["key"]).decode()} if record["key"] else {}),
            "payload": base64.b64encode(record["payload"]).decode(),
        }
        tail = tuple(int(column[row]) for column in flow.tail)
        sequence, *rest = (int(column[origin]) for column in self._rows.order)
        key = (sequence, stage, *rest, *tail)
        key += (0,) * (self._key_length - len(key))
        self._letters.append(DeadLetter(stage, (origin, stage, *tail), key, json.dumps(letter).encode() + b"\n"))

    def late(self, source: int, flow: StageRows, row: int) -> None:
        """Handle a row that came after the watermark of its stream: drop it, make it a dead letter, or stop."""
        event_time = self._plan.graph.event_time
        assert event_time is not None, "a record is late only if streams are merged by event time"
        if event_time.late is LateRule.DROP:
            return
        record = self._record(flow.origin(row))
        reason = f"its event time {record['event_time']} is behind its stream's watermark"
        if event_time.late is LateRule.DEAD_LETTER:
            self.add(source, flow, row, LateRecord(reason))
            return
        raise RecordError(
            f"message {record['message_id']} of stream {record['stream_id']} is late: {reason}",
            next_step="allow more lateness with Pipeline(…, lateness_s=…) in a new directory, or continue in this one"
            ' with late="drop" or late="dead-letter"; nothing of this epoch is committed, and it runs again at the next'
            " start",
            stage=self._plan.node(source).name,
            stream_id=record["stream_id"],
            message_id=record["message_id"],
        )

    def failed_call(self, stage: int, flow: StageRows, row: int, error: BaseException) -> RoundError:
        """Return the error for a failed asynchronous call. It is not an error of the record, so there is no dead
        letter."""
        name = self._plan.node(stage).name
        record = self._record(flow.origin(row))
        return RoundError(
            f"stage {name!r}: the call for message {record['message_id']} of stream {record['stream_id']} failed:"
            f" {type(error).__name__}: {error}; the epoch runs again",
            stage=name,
            stream_id=record["stream_id"],
            message_id=record["message_id"],
            trace="".join(traceback.format_exception(error)),
        )

    def _remedy(self, stage: int) -> str:
        """Return what the user can do about the error. A source only decodes, and has no function of the user."""
        is_source = self._plan.node(stage).kind is Kind.SOURCE
        return "let the producer send what the codec of the source reads" if is_source else "correct the function"

    def _record(self, origin: int) -> dict[str, Any]:
        columns = self._rows.columns
        if columns is not None and "payload" in columns.schema.names:
            record: dict[str, Any] = columns.slice(origin, 1).to_pylist()[0]
            return record
        return self._find(int(self._rows.order[0][origin]))

    def batches(self) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Yield the dead letters as rows for the dead-letter sink: (sink, bucket, rows)."""
        if not self._letters:
            return
        sink = next(index for index, node in enumerate(self._plan.graph.nodes) if node is self._plan.graph.dead_letter)
        if not self._key_length:
            yield sink, 0, self._lines(sorted(self._letters, key=lambda letter: letter.place), [])
            return
        by_stage = sorted(self._letters, key=lambda letter: (letter.stage, letter.key))
        for stage, found in groupby(by_stage, key=lambda letter: letter.stage):
            letters = list(found)
            keys = np.array([letter.key for letter in letters], np.int64)
            yield sink, stage, self._lines(letters, [np.ascontiguousarray(column) for column in keys.T])

    def _lines(self, letters: list[DeadLetter], order: list[Numbers]) -> pa.RecordBatch:
        sink = self._plan.graph.dead_letter
        assert sink is not None
        if not sink.is_in_blocks:
            return batch_of(pa.array([letter.line for letter in letters], pa.binary()), order)
        lines = pa.array([letter.line.removesuffix(b"\n") for letter in letters], pa.binary())
        beside = [("key", pa.nulls(len(letters), pa.binary())), ("event_time", pa.nulls(len(letters), pa.int64()))]
        return batch_of(lines, order, beside)
