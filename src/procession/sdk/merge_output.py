"""The output of a merger: its records and its position, committed in one transaction.

Invariant: the merger is the only participant of its own two-phase commit, so its durable vote is the decision. The vote
carries the position as its note, so output and position are committed together. After a crash, a transaction with a
vote is committed and later bytes are dropped; then the merger continues at the position. Late records may go to a
second output. The vote on the first output names the second's transaction, so both are committed or none. Any Output of
a sink can be used (`sdk/output`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow.compute as pc

from procession import faults
from procession.errors import StorageError
from procession.sdk.lane_merge import LaneMerge, MergedBatch
from procession.sdk.output import OpenOutput, refuse_to_wait
from procession.sdk.participant import SinkParticipant
from procession.sdk.payloads import Payloads
from procession.sdk.record_blocks import BLOCK_BYTES_MAX, block_batch, encode_blocks
from procession.sdk.sink_directory import SinkDirectory
from procession.wire.lane_blocks import Frontier, encode_frontier, encode_records
from procession.wire.messages import DATA_STREAM

TRANSACTION_BYTES = 8 * 1024 * 1024
"""Default transaction size in bytes. A transaction that reaches it ends with the current epoch, even if more epochs can
be read at once."""

_END = 2**31 - 1
"""An offset beyond the end of every payload."""


class MergedForm(Protocol):
    """Converts records to messages of an Output."""

    def messages(self, batch: MergedBatch) -> Sequence[bytes]:
        """Return the messages of these records."""

    def end_of_epoch(self, epoch: int, merge: LaneMerge) -> Sequence[bytes]:
        """Return the messages that follow the last record of an epoch."""


class Lines(NamedTuple):
    """Writes each payload, with or without a newline after it."""

    has_newlines: bool = True

    def messages(self, batch: MergedBatch) -> Payloads:
        payload = batch.rows.column("payload")
        if self.has_newlines:
            payload = pc.binary_replace_slice(payload, start=_END, stop=_END, replacement=b"\n")
        return Payloads(payload)

    def end_of_epoch(self, epoch: int, merge: LaneMerge) -> Sequence[bytes]:
        return ()


class Blocks(NamedTuple):
    """Writes record blocks, for sinks of records such as topics."""

    bytes_max: int = BLOCK_BYTES_MAX

    def messages(self, batch: MergedBatch) -> Sequence[bytes]:
        rows = batch.rows
        return list(encode_blocks(block_batch(*(rows.column(place) for place in range(3))), self.bytes_max))

    def end_of_epoch(self, epoch: int, merge: LaneMerge) -> Sequence[bytes]:
        return ()


class LaneBlocks:
    """Writes lane blocks: a lane with the records of several lanes, for another merger."""

    def __init__(self) -> None:
        self._records = 0

    def messages(self, batch: MergedBatch) -> Sequence[bytes]:
        self._records += batch.rows.num_rows
        return [encode_records(batch.epoch, batch.rows)]

    def end_of_epoch(self, epoch: int, merge: LaneMerge) -> Sequence[bytes]:
        assert merge.identity is not None
        identity = merge.identity.covering(merge.covers)
        frontier, self._records = Frontier(epoch, identity, self._records, merge.total), 0
        return [encode_frontier(frontier)]


class MergeOutput:
    """The output of a merger in a directory, which it locks.

    Args:
        directory: The directory, with the transaction log.
        instance: Name of the output there.
        open_output: Opens the output by its name.
        form: Converts records to messages.
        letters: Name of the output for late records, and its opener. None: late records go to the same output.
    """

    def __init__(
        self,
        directory: Path,
        instance: str,
        open_output: OpenOutput,
        form: MergedForm,
        letters: tuple[str, OpenOutput] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        openers = {instance: open_output}
        self._letters_name = ""
        if letters is not None:
            self._letters_name, openers[self._letters_name] = letters
        self._form = form
        self._directory = SinkDirectory(directory, lambda name: openers[name](name))
        self._name = instance
        self._main = self._directory.open_participant(instance, refuse_to_wait)
        self._letters = self._directory.open_participant(self._letters_name, refuse_to_wait) if letters else None
        self._pending: dict[int, int] = {}
        self._recover()

    @property
    def position(self) -> Mapping[str, Any] | None:
        """The position of the last commit. None: nothing was committed."""
        note = self._main.committed_note
        return None if note is None else note["position"]

    @property
    def pending_bytes(self) -> int:
        return sum(self._pending.values())

    def write(self, batch: MergedBatch) -> None:
        """Append records. Late records go to the second output, if there is one."""
        late_rows = batch.late_rows if self._letters is not None else 0
        if late_rows:
            assert self._letters is not None
            late = batch._replace(rows=batch.rows.slice(0, late_rows))
            self._append(self._letters, Lines().messages(late))
        if late_rows < batch.rows.num_rows:
            self._append(self._main, self._form.messages(batch._replace(rows=batch.rows.slice(late_rows))))

    def end_of_epoch(self, epoch: int, merge: LaneMerge) -> None:
        self._append(self._main, self._form.end_of_epoch(epoch, merge))

    def commit(self, position: Mapping[str, Any], label: str = "") -> None:
        """Commit all records since the last commit, together with the position after them. The label is unique in this
        output; by default it is made from the position of a merger of lanes."""
        suffix = f"merge.{label}" if label else f"merge.e{position['merged']}.t{position['turns']}"
        letters_txn = f"{self._letters_name}-{suffix}"
        if self._letters is not None:
            self._vote(self._letters, letters_txn, None)
        faults.point("merge:before-vote")
        txn = f"{self._name}-{suffix}"
        self._vote(self._main, txn, {"position": dict(position), "letters": letters_txn})
        faults.point("merge:after-vote")
        self._main.phase2(txn, commit=True)
        faults.point("merge:between-commits")
        if self._letters is not None:
            self._letters.phase2(letters_txn, commit=True)
        self._pending.clear()

    def close(self) -> None:
        """Close without a commit. Uncommitted records are dropped at the next start."""
        self._main.close()
        if self._letters is not None:
            self._letters.close()
        self._directory.close()

    def _recover(self) -> None:
        self._main.begin()
        for txn in self._main.uncommitted:
            self._main.phase2(txn, commit=True)  # there is no other participant, so the vote was the decision
        if self._letters is not None:
            self._letters.begin()
            note = self._main.committed_note or {}
            for txn in self._letters.uncommitted:
                self._letters.phase2(txn, commit=txn == note.get("letters"))

    def _append(self, participant: SinkParticipant, messages: Sequence[bytes]) -> None:
        if not len(messages):
            return
        payloads = Payloads.of(messages)
        edges = payloads.edges
        start = participant.committed_end + self._pending.get(id(participant), 0)
        participant.append((edges[:-1] + start).astype(np.uint64), payloads)
        self._pending[id(participant)] = self._pending.get(id(participant), 0) + int(edges[-1])

    def _vote(self, participant: SinkParticipant, txn: str, note: Mapping[str, Any] | None) -> None:
        start = participant.committed_end
        end = start + self._pending.get(id(participant), 0)
        if note is not None:
            participant.attach(note)
        if not participant.phase1(txn, [(DATA_STREAM, start, end)]):
            raise StorageError(f"The output {self._name} has lost records of the merger's transaction.")


def merge_into(
    merge: LaneMerge,
    output: MergeOutput,
    *,
    transaction_bytes: int = TRANSACTION_BYTES,
    on_commit: Callable[[LaneMerge], None] | None = None,
) -> None:
    """Merge until the lanes end or the merger is stopped. Commits whole epochs with the position after them.

    Args:
        merge: The merger, at the output's position.
        output: The output.
        transaction_bytes: Bytes after which a transaction ends, even if more epochs can be read at once.
        on_commit: Called after each commit.
    """
    is_open = False
    for turn in merge.turns():
        for batch in turn:
            output.write(batch)
        output.end_of_epoch(merge.merged, merge)
        is_open = True
        if output.pending_bytes >= transaction_bytes or not merge.is_ready:
            output.commit(merge.position)
            is_open = False
            if on_commit is not None:
                on_commit(merge)
    if is_open:
        output.commit(merge.position)
        if on_commit is not None:
            on_commit(merge)
