"""The participant: one instance's output in two-phase commit, without sockets.

The one rule: a byte becomes part of the output only through a transaction that was voted for, and the vote is given
only if every byte of it is durable, in its place, with none missing. Before it on the walk: sdk/sink_server, which
brings the worker's words. After it: the author's Output keeps the bytes, sdk/transaction_log the votes and decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from procession import faults
from procession.errors import RemoteProtocolError, StorageError
from procession.sdk.output import Done, Output, Wait, refuse_to_wait
from procession.sdk.payloads import Payloads
from procession.sdk.transaction_log import Transaction, TxnLog
from procession.wire.messages import DATA_STREAM
from procession.wire.two_phase_commit import Participant

Where = Sequence[tuple[int, int, int]]

Hear = Callable[[Transaction, bool], None]
"""Is told of each decision once it is carried out: True is commit."""


class Outlet:
    """The participant. `begin` comes first; a RemoteProtocolError is the worker's error, and the session is over.

    An idempotent one takes positions again that are committed: the worker begins where it likes, up to the end, and it
    is for the Output to see that the bytes are the same."""

    def __init__(
        self,
        output: Output,
        txnlog: TxnLog,
        *,
        is_idempotent: bool = False,
        wait: Wait = refuse_to_wait,
        hear: Hear | None = None,
    ) -> None:
        self._output = output
        self._txnlog = txnlog
        self._is_idempotent = is_idempotent
        self._wait = wait
        self._hear = hear
        self._participant = Participant()
        self._start = self._end = 0
        self._has_gap = False

    @property
    def committed_end(self) -> int:
        return self._txnlog.committed_end

    @property
    def uncommitted(self) -> tuple[str, ...]:
        return tuple(transaction.txn_id for transaction in self._txnlog.prepared)

    def list_uncommitted(self) -> tuple[str, ...]:
        """The answer to LIST_UNCOMMITTED."""
        self._participant.listed()
        return self.uncommitted

    def workers_left(self) -> None:
        """The worker told who has left the cluster. An output of one instance has nothing to do about it."""
        self._participant.workers_left()

    def begin(self) -> None:
        """A new session: what is neither committed nor prepared is dropped; what is prepared waits for its decision."""
        prepared = self._prepared()
        faults.point("sink:before-recover")
        self._done(self._output.recover(self.committed_end, prepared))
        faults.point("sink:after-recover")
        self._start = self._end = self.committed_end
        self._has_gap = False
        self._participant = Participant(self.uncommitted)

    def append(self, message_ids: Sequence[int] | npt.NDArray[np.uint64], payloads: Sequence[bytes]) -> None:
        """Take messages of the data stream. After a gap the rest is dropped: the vote can only be abort."""
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

    def phase1(self, txn_id: str, where: Where) -> bool:
        """The vote."""
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
        """The decision. To abort what is not open here changes nothing: it was never voted for, or is gone already."""
        if not commit and txn_id not in self._participant.open_txn_ids:
            return
        self._participant.phase2(txn_id, commit)
        faults.point("sink:before-commit")
        transaction = self._open_transaction(txn_id)
        if commit:
            # Output first: if we die between the two the transaction is listed again, and committed again.
            self._done(self._output.commit(transaction))
            faults.point("sink:after-output-commit")
            self._txnlog.decide(txn_id, commit)
        else:
            self._txnlog.decide(txn_id, commit)
            faults.point("sink:before-output-abort")
            # What was committed before stays, where an idempotent output had begun again below its end.
            transaction = transaction._replace(start=max(transaction.start, self.committed_end))
            self._done(self._output.abort(transaction))
            self._end, self._has_gap = transaction.start, False
        self._start = self.committed_end
        self._end = max(self._end, self._start)
        self._txnlog.compact()
        faults.point("sink:after-commit")
        if self._hear is not None:
            self._hear(transaction, commit)

    def close(self) -> None:
        self._done(self._output.close())
        self._txnlog.close()

    def _done(self, result: Done) -> None:
        if result is not None:
            self._wait(result)

    def _is_here(self, where: Where) -> bool:
        """The worker's range is what came since the last commit; no range at all is said of no bytes."""
        start = self._start
        return list(where) == [(DATA_STREAM, start, self._end)] or (not where and start == self._end)

    def _prepared(self) -> Transaction | None:
        """There is one at most: nothing is voted on before what was prepared earlier is decided."""
        if len(self._txnlog.prepared) > 1:
            raise StorageError(
                f"{self._txnlog.path} has more than one open transaction: {', '.join(self.uncommitted)}.",
                next_step="Restore the file from a copy; no sink of ours writes such a log.",
                path=str(self._txnlog.path),
            )
        return next(iter(self._txnlog.prepared), None)

    def _open_transaction(self, txn_id: str) -> Transaction:
        prepared = self._prepared()
        return prepared if prepared and prepared.txn_id == txn_id else Transaction(txn_id, self._start, self._end)
