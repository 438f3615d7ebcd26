"""Reports a sink to the oracle: its votes, its commits, and what of its output is durable.

Invariant: the participant, the transaction log and the output are the shipped ones, on the simulated disk; nothing here
changes what they do. The log is made to compact often. `simulated_sink` and `foreign_sink` use them.
"""

from __future__ import annotations

import json
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from procession.sdk.output import Output
from procession.sdk.participant import SinkParticipant, Where
from procession.sdk.transaction_log import Transaction, TransactionLog, TransactionStates
from procession.sim.disk import Disk, SimulatedPath
from procession.sim.environment import Environment
from procession.sim.oracle import MEMORY, Oracle
from procession.sim.simulated_files import SimulatedFileSystem
from procession.storage.journal import Entry, read_journal

# So few that even a short run compacts several times.
ENTRIES_MAX = 4
TRANSACTIONS_KEPT = 1
NOT_ARRIVED: Where = [(-1, 0, 0)]
"""A range that no worker can have sent: there is no such stream."""


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
        output, ledger = self._output(), TransactionStates()
        for entry in read_journal(self.path, self._files):
            transaction = ledger.take(entry)
            if transaction is not None and transaction.end > len(self._oracle.outputs[self._sink]):
                self._oracle.visible(self._sink, transaction.txn_id, output[: transaction.end])
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
        """Whether a vote on this transaction, and its bytes, would survive a power cut now."""
        entries = self._disk.durable_file(str(self.path)) or b""
        prepared = self._ledger.prepared.get(txn_id)
        output = self._disk.durable_file(str(output_path(self._sink))) or b""
        is_whole = prepared is None or output[: prepared.end] == self._output()[: prepared.end]
        return is_whole and f'"txn":"{txn_id}"'.encode() in entries

    def _output(self) -> bytes:
        file = self._disk.file(str(output_path(self._sink)))
        return b"" if file is None else file.data


class RefusingSink(Protocol):
    """The process of a sink."""

    part: str
    site: Environment
    refusals: int
    """Above 0, the simulation makes it refuse the next transaction."""

    def voted(self) -> None:
        """It has voted, and has not sent the vote yet."""


class ObservedParticipant(SinkParticipant):
    """The shipped participant, but for the transactions that the simulation makes it refuse. Reports its votes."""

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
        # It votes no on a range that did not arrive.
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


@lru_cache(MEMORY)
def _entry(line: bytes) -> Entry:
    """What a line says: to be read only, for it is remembered."""
    entry: Entry = json.loads(line[9:])
    return entry


def durable_output(disk: Disk, sink: str) -> bytes:
    """What of the sink's output is committed, and would survive a power cut now."""
    ledger = TransactionStates()
    for line in (disk.durable_file(str(log_path(sink))) or b"").splitlines(keepends=True):
        if not line.endswith(b"\n") or line[:8] != b"%08x" % zlib.crc32(line[9:-1]):
            break  # a power cut has torn it, or has scattered its sectors
        ledger.take(_entry(line))
    return (disk.durable_file(str(output_path(sink))) or b"")[: ledger.committed_end]
