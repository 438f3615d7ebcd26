"""Reports a sink to the oracle: its votes, its commits and its durable output.

Invariant: the participant, the transaction log and the output are the shipped ones, on the simulated disk; this
module does not change their behaviour. The log is configured to compact often. `simulated_sink` and `foreign_sink`
use them.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Protocol

from procession.sdk.output import Output
from procession.sdk.participant import SinkParticipant, Where
from procession.sdk.transaction_log import Transaction, TransactionLog
from procession.sim.disk import Disk, SimulatedPath
from procession.sim.environment import Environment
from procession.sim.file_formats import read_transactions
from procession.sim.oracle import MEMORY, Oracle
from procession.sim.simulated_files import SimulatedFileSystem

# A low limit, so that even a short run compacts several times.
ENTRIES_MAX = 4
TRANSACTIONS_KEPT = 1
transactions = lru_cache(MEMORY)(read_transactions)
NOT_ARRIVED: Where = [(-1, 0, 0)]
"""A range that no worker can have sent, because the stream does not exist."""


def output_path(sink: str) -> Path:
    return SimulatedPath(sink) / "out.data"


def log_path(sink: str) -> Path:
    return SimulatedPath(sink) / "out.txnlog"


class ObservedTransactionLog(TransactionLog):
    """The shipped transaction log. Reports votes and visible output to the oracle."""

    def __init__(self, files: SimulatedFileSystem, oracle: Oracle, sink: str) -> None:
        super().__init__(log_path(sink), entries_max=ENTRIES_MAX, transactions_kept=TRANSACTIONS_KEPT, files=files)
        self._disk = files.disk
        self._oracle = oracle
        self._sink = sink

    def open(self) -> None:
        super().open()
        # Output that the last process wrote before it died becomes visible now.
        output, log = self._output(), self._disk.file(str(self.path))
        for transaction in transactions(b"" if log is None else log.data).committed:
            if transaction.end > len(self._oracle.outputs[self._sink]):
                self._oracle.visible(self._sink, transaction.txn, output[: transaction.end])
        self._oracle.recovered(self._sink, output[: self.committed_end])

    def vote(self, transaction: Transaction, commit: bool, *, is_repeatable: bool = False) -> None:
        content = self._output()[transaction.start : transaction.end] if commit else b""
        self._oracle.voted(self._sink, transaction.txn_id, commit, content)
        super().vote(transaction, commit, is_repeatable=is_repeatable)

    def decide(self, txn_id: str, commit: bool) -> None:
        if commit:
            self._oracle.about_to_commit(self._sink, txn_id, "the sink")
        super().decide(txn_id, commit)
        if commit:
            self._oracle.visible(self._sink, txn_id, self._output()[: self.committed_end])

    def is_durable(self, txn_id: str) -> bool:
        """Return whether a vote on this transaction, and its bytes, would survive a power cut now."""
        durable = transactions(self._disk.durable_file(str(self.path)) or b"")
        prepared = durable.prepared.get(txn_id)
        output = self._disk.durable_file(str(output_path(self._sink))) or b""
        is_whole = prepared is None or output[: prepared.end] == self._output()[: prepared.end]
        return is_whole and txn_id in durable.accepted

    def _output(self) -> bytes:
        file = self._disk.file(str(output_path(self._sink)))
        return b"" if file is None else file.data


class RefusingSink(Protocol):
    """The process of a sink."""

    part: str
    site: Environment
    refusals: int
    """Number of the next transactions that the simulation makes the sink refuse."""

    def voted(self) -> None:
        """Handle a vote that is made but not sent yet."""


class ObservedParticipant(SinkParticipant):
    """The shipped participant, which also refuses the transactions that the simulation chooses. Reports its votes."""

    last_refused: str | None = None

    def __init__(self, output: Output, txnlog: ObservedTransactionLog, sink: RefusingSink) -> None:
        super().__init__(output, txnlog)
        self._observed_log = txnlog
        self._sink = sink

    def begin(self) -> None:
        super().begin()
        sink = self._sink
        sink.site.log_event(sink.part, "= session, committed %s, prepared %s", self.committed_end, self.uncommitted)

    def phase1(self, txn_id: str, where: Where) -> bool:
        sink = self._sink
        sink.site.oracle.attempted(sink.part, txn_id)
        # The participant votes abort because this range has not arrived.
        vote = super().phase1(txn_id, NOT_ARRIVED if sink.refusals else where)
        sink.refusals = 0
        if not vote:
            self.last_refused = txn_id
        sink.site.log_event(sink.part, "= votes %s on %s", vote, txn_id)
        sink.site.oracle.replied(sink.part, txn_id, not vote or self._observed_log.is_durable(txn_id))
        sink.voted()
        return vote

    def phase2(self, txn_id: str, commit: bool) -> None:
        super().phase2(txn_id, commit)
        sink = self._sink
        sink.site.log_event(sink.part, "= phase 2 %s of %s, committed %s", commit, txn_id, self.committed_end)


def durable_output(disk: Disk, sink: str) -> bytes:
    """Return what of the sink's output is committed, and would survive a power cut now."""
    end = transactions(disk.durable_file(str(log_path(sink))) or b"").committed_end
    return (disk.durable_file(str(output_path(sink))) or b"")[:end]
