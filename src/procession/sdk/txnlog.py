"""The transaction log of a sink: which ranges of its output were voted for, and which of them are committed.

    {"op": "phase1", "txn": id, "start": position, "end": position, "vote": true}
    {"op": "phase2", "txn": id, "commit": true}

The one rule: a vote or a decision is on disk when its method returns, so what is visible of an output is what this
file says and nothing else. Before it on the walk: sdk/outlet. After it: storage/journal; the verifier reads it to
tell what is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from procession.errors import StorageError
from procession.storage.journal import Entry, Journal, read_journal, read_journal_from


class Transaction(NamedTuple):
    """One transaction's part of this output: bytes [start, end)."""

    txn_id: str
    start: int
    end: int


class Ledger:
    """What the entries of a transaction log add up to."""

    def __init__(self) -> None:
        self.committed_end = 0
        self.prepared: dict[str, Transaction] = {}
        self._repeatable: set[str] = set()

    def take(self, entry: Entry) -> Transaction | None:
        """Add one entry; the transaction, if the entry commits one."""
        match entry:
            case {"op": "phase1", "txn": str(txn_id), "start": int(start), "end": int(end), "vote": bool(vote)}:
                if vote:
                    self.prepared[txn_id] = Transaction(txn_id, start, end)
                    if entry.get("idempotent"):
                        self._repeatable.add(txn_id)
                return None
            case {"op": "phase2", "txn": str(txn_id), "commit": bool(commit)}:
                transaction = self.prepared.pop(txn_id, None)
                is_repeatable = txn_id in self._repeatable
                self._repeatable.discard(txn_id)
                if transaction is None or not commit:
                    return None
                if is_repeatable:
                    # Of positions that came again only what is new counts: the rest is there, with the same bytes.
                    start = max(transaction.start, self.committed_end)
                    transaction = transaction._replace(start=start, end=max(start, transaction.end))
                self.committed_end = transaction.end
                return transaction
        raise ValueError(f"not an entry of a transaction log: {entry}")


class TxnLog:
    """The sink's own log. `open` it before anything else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._journal = Journal(path)
        self._ledger = Ledger()

    @property
    def committed_end(self) -> int:
        return self._ledger.committed_end

    @property
    def prepared(self) -> tuple[Transaction, ...]:
        """Voted for and not decided: what LIST_UNCOMMITTED is answered with."""
        return tuple(self._ledger.prepared.values())

    def open(self) -> None:
        # Entry by entry: a log of years is long, what it leaves in the ledger is not.
        self._ledger = ledger = Ledger()
        self._journal.open(lambda entry: _taken(ledger, entry, self.path))

    def vote(self, transaction: Transaction, commit: bool, *, is_repeatable: bool = False) -> None:
        """`is_repeatable`: of an idempotent output, whose positions may come again."""
        txn_id, start, end = transaction
        entry: Entry = {"op": "phase1", "txn": txn_id, "start": start, "end": end, "vote": commit}
        self._append(entry | {"idempotent": True} if is_repeatable else entry)

    def decide(self, txn_id: str, commit: bool) -> None:
        self._append({"op": "phase2", "txn": txn_id, "commit": commit})

    def close(self) -> None:
        self._journal.close()

    def _append(self, entry: Entry) -> None:
        self._journal.append(entry)
        self._ledger.take(entry)


class TxnTail:
    """Reads a log that somebody else writes: each look gives what was committed since the last one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ledger = Ledger()
        self._position = 0

    def look(self) -> Iterator[Transaction]:
        for entry, end in read_journal_from(self.path, self._position):
            self._position = end
            transaction = _taken(self._ledger, entry, self.path)
            if transaction is not None:
                yield transaction


def joined(transactions: Iterable[Transaction]) -> list[tuple[int, int]]:
    """Their byte ranges, neighbours joined, in the same order."""
    ranges: list[tuple[int, int]] = []
    for _, start, end in transactions:
        if start == end:
            continue
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((start, end))
    return ranges


def committed_ranges(path: Path) -> list[tuple[int, int]]:
    """The committed byte ranges of the output whose transaction log this is, neighbours joined, in order of commit."""
    return joined(TxnTail(path).look())


def uncommitted(path: Path) -> tuple[Transaction, ...]:
    """The transactions of a log that are voted for and not decided."""
    return tuple(_ledger_of(path, read_journal(path)).prepared.values())


def _ledger_of(path: Path, entries: Iterable[Entry]) -> Ledger:
    ledger = Ledger()
    for entry in entries:
        _taken(ledger, entry, path)
    return ledger


def _taken(ledger: Ledger, entry: Entry, path: Path) -> Transaction | None:
    try:
        return ledger.take(entry)
    except ValueError as error:
        raise StorageError(
            f"{path} is {error}.", next_step="Give the sink a directory of its own.", path=str(path)
        ) from error
