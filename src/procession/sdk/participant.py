"""The participant: one instance's output in two-phase commit, without sockets.

Invariant: bytes become part of the output only through a transaction that the sink voted for. It votes yes only if all
bytes of the transaction are durable, at their positions, with no gap. `sdk/sink_server` passes the driver's messages to
the participant. The author's Output stores the bytes; `sdk/transaction_log` stores votes and decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from procession import faults
from procession.errors import RemoteProtocolError
from procession.sdk.output import Done, Output, Wait, refuse_to_wait
from procession.sdk.payloads import Payloads
from procession.sdk.recovery import recover
from procession.sdk.transaction_log import Transaction, TransactionLog
from procession.wire.messages import DATA_STREAM
from procession.wire.two_phase_commit import ParticipantLifecycle

Where = Sequence[tuple[int, int, int]]

OnDecision = Callable[[Transaction, bool], None]
"""Called after each decision is carried out. True means commit."""


class SinkParticipant:
    """Takes part in two-phase commit for one instance. Call `begin` first. A RemoteProtocolError means that the worker
    broke the protocol and the session is over.

    An idempotent participant accepts committed positions again: the worker may begin anywhere up to the end. The Output
    must ensure that the repeated bytes are the same.
    """

    def __init__(
        self,
        output: Output,
        txnlog: TransactionLog,
        *,
        is_idempotent: bool = False,
        wait: Wait = refuse_to_wait,
        on_decision: OnDecision | None = None,
    ) -> None:
        self._output = output
        self._txnlog = txnlog
        self._is_idempotent = is_idempotent
        self._wait = wait
        self._on_decision = on_decision
        self._participant = ParticipantLifecycle()
        self._start = self._end = 0
        self._has_gap = False

    @property
    def committed_end(self) -> int:
        return self._txnlog.committed_end

    @property
    def uncommitted(self) -> tuple[str, ...]:
        return tuple(transaction.txn_id for transaction in self._txnlog.prepared)

    def list_uncommitted(self) -> tuple[str, ...]:
        """Return the ids of uncommitted transactions, the answer to LIST_UNCOMMITTED."""
        self._participant.listed()
        return self.uncommitted

    def workers_left(self) -> None:
        """Note that the worker sent the list of workers that left the cluster. An output of one instance ignores this
        list."""
        self._participant.workers_left()

    def begin(self) -> None:
        """Begin a session. Uncommitted bytes are dropped, except those of a prepared transaction, which waits for its
        decision."""
        found = recover(self._txnlog)
        faults.point("sink:before-recover")
        self._done(self._output.recover(*found))
        faults.point("sink:after-recover")
        self._start = self._end = self.committed_end
        self._has_gap = False
        self._participant = ParticipantLifecycle(self.uncommitted)

    def append(self, message_ids: Sequence[int] | npt.NDArray[np.uint64], payloads: Sequence[bytes]) -> None:
        """Accept messages of the data stream. Messages after a gap are dropped, and the vote is then abort."""
        self._participant.data()
        payloads = Payloads.of(payloads)
        if not len(payloads):
            return
        if self._is_idempotent and self._end == self._start and message_ids[0] < self._end:
            self._start = self._end = int(message_ids[0])
        edges = payloads.edges + self._end
        is_elsewhere = np.asarray(message_ids, np.uint64) != edges[:-1].astype(np.uint64)
        count = int(is_elsewhere.argmax()) if is_elsewhere.any() else len(payloads)
        if count and not self._has_gap:
            self._done(self._output.append(self._end, payloads[:count]))
            faults.point("sink:after-append")
            self._end = int(edges[count])
        if count < len(payloads):
            if message_ids[count] < self._end:
                raise RemoteProtocolError(f"message id {message_ids[count]} is below the position {self._end}")
            self._has_gap = True

    @property
    def committed_note(self) -> Mapping[str, Any] | None:
        """The note of the last committed transaction that has one."""
        return self._txnlog.committed_note

    def attach(self, note: Mapping[str, Any]) -> None:
        """Commit this JSON with the transaction that is voted on next, such as the position of a merger."""
        self._txnlog.next_note = note

    def phase1(self, txn_id: str, where: Where) -> bool:
        """Vote on a transaction. Returns True for commit."""
        self._participant.phase1(txn_id)
        transaction = Transaction(txn_id, self._start, self._end)
        commit = not self._has_gap and self._is_here(where)
        if commit:
            faults.point("sink:before-prepare")
            self._done(self._output.prepare(transaction))
        faults.point("sink:before-vote")
        self._txnlog.vote(transaction, commit, is_repeatable=self._is_idempotent)
        self._participant.vote(commit)
        faults.point("sink:after-vote-before-reply")
        return commit

    def phase2(self, txn_id: str, commit: bool) -> None:
        """Carry out a decision. The abort of a transaction that is not open here changes nothing: it never had a vote,
        or was already removed."""
        if not commit and txn_id not in self._participant.open_txn_ids:
            return
        self._participant.phase2(txn_id, commit)
        faults.point("sink:before-commit")
        transaction = self._open_transaction(txn_id)
        if commit:
            # The output commits first. After a crash between the two, the transaction is listed and committed again.
            self._done(self._output.commit(transaction))
            faults.point("sink:after-output-commit")
            self._txnlog.decide(txn_id, commit)
        else:
            self._txnlog.decide(txn_id, commit)
            faults.point("sink:before-output-abort")
            # An idempotent output may have begun again below its committed end. The abort leaves the committed bytes in
            # place.
            transaction = transaction._replace(start=max(transaction.start, self.committed_end))
            self._done(self._output.abort(transaction))
            self._end, self._has_gap = transaction.start, False
        self._start = self.committed_end
        self._end = max(self._end, self._start)
        self._txnlog.compact()
        faults.point("sink:after-commit")
        if self._on_decision is not None:
            self._on_decision(transaction, commit)

    def close(self) -> None:
        self._done(self._output.close())
        self._txnlog.close()

    def _done(self, result: Done) -> None:
        if result is not None:
            self._wait(result)

    def _is_here(self, where: Where) -> bool:
        """Whether the worker's range matches the bytes since the last commit. If there are no bytes, the worker sends
        no range."""
        start = self._start
        return list(where) == [(DATA_STREAM, start, self._end)] or (not where and start == self._end)

    def _open_transaction(self, txn_id: str) -> Transaction:
        prepared = recover(self._txnlog).prepared
        return prepared if prepared and prepared.txn_id == txn_id else Transaction(txn_id, self._start, self._end)
