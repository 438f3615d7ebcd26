"""The transaction log of a sink: the ranges of its output that had a vote, and those that are committed.

    {"op": "base", "turn": 1, "count": committed transactions before, "txn": the last of them, "end": position}
    {"op": "phase1", "txn": id, "start": position, "end": position, "vote": true}
    {"op": "phase2", "txn": id, "commit": true}

The first entry also has the format number of the log: `"format": 2`. A vote may have a `note`, which is committed with
the transaction.

Invariant: a vote or a decision is on disk when its method returns, so this file alone defines which bytes of an output
are visible. The log is bounded: when it is long, a shorter file with the same meaning replaces it. Older committed
transactions without a gap become one *base*: the bytes [0, end) are committed. The latest transactions stay, because
the verifier compares them with the round records. Each base has a number (`turn`), so no two files begin with the same
bytes and a reader notices that the file was replaced. `sdk/participant` writes it through `storage/journal`; the
verifier reads it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from procession import faults
from procession.errors import StorageError
from procession.format_number import check_format
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.storage.journal import Entry, Journal, JournalTail, read_journal

FORMAT = 2
"""Format number, stored in the first entry of a log. A log without a format number has format 1, otherwise the same."""
ENTRIES_MAX = 8192
"""Number of entries above which the log is compacted. An epoch has two."""
TRANSACTIONS_KEPT = 1000
"""Number of latest commits that compaction keeps: ten times the number of round records."""

log = structlog.get_logger()


class Transaction(NamedTuple):
    """A transaction of one output: the bytes from `start` up to, but not including, `end`.

    Args:
        txn_id: Id of the transaction.
        start: Position of its first byte.
        end: Position after its last byte.
    """

    txn_id: str
    start: int
    end: int


class TransactionStates:
    """The transactions after a number of entries of a transaction log."""

    def __init__(self) -> None:
        self.committed_end = 0
        self.committed_count = 0
        self.entries = 0
        self.prepared: dict[str, Transaction] = {}
        self.committed_note: Mapping[str, Any] | None = None
        """The note of the last committed transaction that has a note."""
        self._notes: dict[str, Mapping[str, Any]] = {}
        self._repeatable: set[str] = set()

    def take(self, entry: Entry) -> Transaction | None:
        """Add one entry. Returns the transaction that the entry commits, if any. A base counts as one transaction that
        starts at the first byte."""
        self.entries += 1
        match entry:
            case {"op": "phase1", "txn": str(txn_id), "start": int(start), "end": int(end), "vote": bool(vote)}:
                if vote:
                    self.prepared[txn_id] = Transaction(txn_id, start, end)
                    if entry.get("idempotent"):
                        self._repeatable.add(txn_id)
                    if isinstance(note := entry.get("note"), dict):
                        self._notes[txn_id] = note
                return None
            case {"op": "phase2", "txn": str(txn_id), "commit": bool(commit)}:
                transaction = self.prepared.pop(txn_id, None)
                is_repeatable = txn_id in self._repeatable
                self._repeatable.discard(txn_id)
                note = self._notes.pop(txn_id, None)
                if transaction is None or not commit:
                    return None
                self.committed_note = note if note is not None else self.committed_note
                if is_repeatable:
                    # Only the new part of repeated positions counts: the rest is already there, with the same bytes.
                    start = max(transaction.start, self.committed_end)
                    transaction = transaction._replace(start=start, end=max(start, transaction.end))
                return self._committed(transaction, 1)
            case {"op": "base", "count": int(count), "txn": str(txn_id), "end": int(end)} if self.entries == 1:
                return self._committed(Transaction(txn_id, 0, end), count) if count else None
        raise ValueError(f"not an entry of a transaction log: {entry}")

    def _committed(self, transaction: Transaction, count: int) -> Transaction:
        self.committed_end = transaction.end
        self.committed_count += count
        return transaction


class TransactionLog:
    """The log that a sink writes. Call `open` first."""

    def __init__(
        self,
        path: Path,
        *,
        entries_max: int = ENTRIES_MAX,
        transactions_kept: int = TRANSACTIONS_KEPT,
        files: FileSystem = HOST_FILES,
    ) -> None:
        if entries_max < 4 * transactions_kept:
            raise ValueError("entries_max is too small for the number of transactions to keep")
        self.path = path
        self._entries_max = entries_max
        self._transactions_kept = transactions_kept
        self._files = files
        self._journal = Journal(path, files)
        self._ledger = TransactionStates()
        self.next_note: Mapping[str, Any] | None = None
        """JSON that is committed with the transaction of the next vote."""

    @property
    def committed_end(self) -> int:
        return self._ledger.committed_end

    @property
    def prepared(self) -> tuple[Transaction, ...]:
        """The transactions with a vote and without a decision, which is the answer to LIST_UNCOMMITTED."""
        return tuple(self._ledger.prepared.values())

    @property
    def committed_note(self) -> Mapping[str, Any] | None:
        """The note of the last committed transaction that has one."""
        return self._ledger.committed_note

    def open(self) -> None:
        # Entry by entry, because a log may be long. The ledger that remains is small.
        self._ledger = ledger = TransactionStates()
        self._journal.open(lambda entry: _taken(ledger, entry, self.path))

    def vote(self, transaction: Transaction, commit: bool, *, is_repeatable: bool = False) -> None:
        """Write a vote. `is_repeatable` marks an idempotent output, whose positions may be sent again."""
        txn_id, start, end = transaction
        entry: Entry = {"op": "phase1", "txn": txn_id, "start": start, "end": end, "vote": commit}
        if self.next_note is not None:
            entry |= {"note": dict(self.next_note)}
            self.next_note = None
        self._append(entry | {"idempotent": True} if is_repeatable else entry)

    def decide(self, txn_id: str, commit: bool) -> None:
        self._append({"op": "phase2", "txn": txn_id, "commit": commit})

    def compact(self) -> None:
        """Replace the log, if it is long, by a shorter one with the same content. Called between two transactions."""
        if self._ledger.entries < self._entries_max:
            return
        entries = compacted(read_journal(self.path, self._files), self._transactions_kept)
        faults.point("sink:before-compact")
        if entries is None:
            log.warning("sink.log_gap", path=str(self.path))
        else:
            self._journal.replace(entries)
        faults.point("sink:after-compact")
        # If nothing was gained, do not try again at every turn.
        self._ledger.entries = 0 if entries is None else len(entries)

    def roll_back(self, end: int, txn_id: str) -> None:
        """Roll back all bytes after the end of this committed transaction, and prepared transactions. The number of
        commits still increases, so a reader that stays open notices."""
        entries = list(read_journal(self.path, self._files))
        if self.committed_end == end and not self.prepared:
            return
        turn = int(entries[0]["turn"]) if entries and entries[0]["op"] == "base" else 0
        count = self._ledger.committed_count + 1
        base: Entry = {"op": "base", "turn": turn + 1, "count": count, "txn": txn_id, "end": end, "format": FORMAT}
        self._journal.replace([base])
        self._ledger = TransactionStates()
        self._ledger.take(base)

    def close(self) -> None:
        self._journal.close()

    def _append(self, entry: Entry) -> None:
        if not self._ledger.entries:
            entry = {**entry, "format": FORMAT}
        self._journal.append(entry)
        self._ledger.take(entry)


def compacted(entries: Iterable[Entry], commits_kept: int) -> list[Entry] | None:
    """Return fewer entries with the same meaning: the base has all commits but the last `commits_kept`. None: the
    commits for the base have a gap, and a base would hide it."""
    ledger = TransactionStates()
    votes: dict[str, Entry] = {}
    latest: deque[tuple[Transaction, list[Entry]]] = deque()
    base: Entry = {"op": "base", "turn": 0, "count": 0, "txn": "", "end": 0}
    for entry in entries:
        transaction = ledger.take(entry)
        if entry["op"] == "base":
            base = dict(entry)
        elif entry["op"] == "phase1":
            if entry["vote"]:
                votes[entry["txn"]] = entry
        elif (vote := votes.pop(entry["txn"], None)) and transaction:
            latest.append((transaction, [vote, entry]))
            if len(latest) > commits_kept:
                (txn_id, start, end), _ = latest.popleft()
                if start != base["end"]:
                    return None
                base |= {"count": base["count"] + 1, "txn": txn_id, "end": end}
    base |= {"turn": base["turn"] + 1, "format": FORMAT}
    return [base, *(entry for _, pair in latest for entry in pair), *votes.values()]


class TransactionTail:
    """Reads a log that another process writes. Each `poll` yields the transactions committed since the previous poll. A
    reader that is far behind gets all transactions of the base as one transaction."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._journal = JournalTail(path)
        self._generation = 0
        self._ledger = TransactionStates()
        self._given_count = self._given_end = 0

    @property
    def prepared(self) -> tuple[Transaction, ...]:
        """The transactions with a vote and without a decision, as of the last poll."""
        return tuple(self._ledger.prepared.values())

    def poll(self) -> Iterator[Transaction]:
        for entry in self._journal.poll():
            if self._journal.generation != self._generation:
                self._generation = self._journal.generation
                self._ledger = TransactionStates()
            transaction = _taken(self._ledger, entry, self.path)
            if transaction is None or self._ledger.committed_count <= self._given_count:
                continue
            if entry["op"] == "base":
                transaction = transaction._replace(start=self._given_end)
            self._given_count, self._given_end = self._ledger.committed_count, transaction.end
            yield transaction


def joined(transactions: Iterable[Transaction]) -> list[tuple[int, int]]:
    """Return the byte ranges of the transactions in their order, with adjacent ranges joined."""
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
    """Return the committed byte ranges of an output from its transaction log, in commit order, with adjacent ranges
    joined."""
    return joined(TransactionTail(path).poll())


def uncommitted(path: Path) -> tuple[Transaction, ...]:
    """Return the transactions of a log that have a vote and no decision."""
    return tuple(_ledger_of(path, read_journal(path)).prepared.values())


def _ledger_of(path: Path, entries: Iterable[Entry]) -> TransactionStates:
    ledger = TransactionStates()
    for entry in entries:
        _taken(ledger, entry, path)
    return ledger


def _taken(ledger: TransactionStates, entry: Entry, path: Path) -> Transaction | None:
    if "format" in entry:
        check_format(path, entry["format"], FORMAT)
    try:
        return ledger.take(entry)
    except ValueError as error:
        raise StorageError(
            f"{path} is {error}.", next_step="Give the sink a directory of its own.", path=str(path)
        ) from error
