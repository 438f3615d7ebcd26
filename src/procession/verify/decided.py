"""Checks that everything that a sink shows was decided as committed.

The one rule: a transaction may be visible only if `commits/N` exists and `rounds/N` names it, with its positions. Round
records are kept only for a while; of older epochs it is only checked, by the reader of the ranges, that later ones
begin where they end. Pure. Takes a sink's transaction log and a checkpoint; gives a `verify/verdict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from procession.commit.round_record import Part, Round
from procession.commit.transaction_id import Transaction
from procession.verify.verdict import Offender, Verdict


@dataclass(frozen=True, slots=True)
class Decisions:
    """What a checkpoint has decided: every epoch up to `committed`; `rounds` are the records that are still there."""

    checkpoint: str
    committed: int
    rounds: Mapping[int, Round]


@dataclass
class Undecided:
    """The visible transactions of one sink that no decision names, added up as they come."""

    transactions: int = 0
    bytes: int = 0
    named: int = 0
    """So many were found in a round record."""
    first: Offender | None = None

    def take(self, visible: Iterable[tuple[str, int, int]], decisions: Decisions) -> None:
        """Judge the transactions (id, start, end) that have become visible, in their order."""
        for txn, start, end in visible:
            if is_decided(txn, start, end, decisions):
                self.named += is_named(txn, decisions)
            else:
                self.bytes += end - start
                self.first = self.first or Offender("transaction log", self.transactions, repr(txn))
            self.transactions += 1

    def judge(self, verdict: Verdict) -> Verdict:
        return verdict.with_uncommitted(self.bytes, self.first) if self.first is not None else verdict


def is_decided(txn: str, start: int, end: int, decisions: Decisions) -> bool:
    transaction = Transaction.parse(txn)
    if transaction is None or transaction.checkpoint != decisions.checkpoint:
        return False
    if transaction.epoch > decisions.committed:
        return False
    record = decisions.rounds.get(transaction.epoch)
    return record is None or Part(txn, start, end) in record.parts.values()


def is_named(txn: str, decisions: Decisions) -> bool:
    """Whether the record of its epoch is still there to name it."""
    transaction = Transaction.parse(txn)
    return transaction is not None and transaction.epoch in decisions.rounds
