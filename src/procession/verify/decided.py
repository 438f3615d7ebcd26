"""Checks that all visible output of a sink was decided as committed. Pure.

Invariant: a transaction may be visible only if `commits/N` exists and `rounds/N` names it, with its positions. Old
round records are deleted; for their epochs only gaps are checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from procession.commit.round_record import RoundRecord, SinkShare
from procession.commit.transaction_id import TransactionId
from procession.verify.verdict import BadRecord, Verdict


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions of a checkpoint: every epoch up to `committed`. `rounds` has the records that still exist."""

    checkpoint: str
    committed: int
    rounds: Mapping[int, RoundRecord]


@dataclass
class Undecided:
    """Counts the visible transactions of a sink that have no decision."""

    transactions: int = 0
    bytes: int = 0
    named: int = 0
    """Number of transactions found in a round record."""
    first: BadRecord | None = None

    def take(self, visible: Iterable[tuple[str, int, int]], decisions: Decisions) -> None:
        """Check newly visible transactions (id, start, end), in order."""
        for txn, start, end in visible:
            if is_decided(txn, start, end, decisions):
                self.named += is_named(txn, decisions)
            else:
                self.bytes += end - start
                self.first = self.first or BadRecord("transaction log", self.transactions, repr(txn))
            self.transactions += 1

    def judge(self, verdict: Verdict) -> Verdict:
        return verdict.with_uncommitted(self.bytes, self.first) if self.first is not None else verdict


def is_decided(txn: str, start: int, end: int, decisions: Decisions) -> bool:
    transaction = TransactionId.parse(txn)
    if transaction is None or transaction.checkpoint != decisions.checkpoint:
        return False
    if transaction.epoch > decisions.committed:
        return False
    record = decisions.rounds.get(transaction.epoch)
    return record is None or SinkShare(txn, start, end) in record.parts.values()


def is_named(txn: str, decisions: Decisions) -> bool:
    """Return whether the round record of its epoch still exists."""
    transaction = TransactionId.parse(txn)
    return transaction is not None and transaction.epoch in decisions.rounds
