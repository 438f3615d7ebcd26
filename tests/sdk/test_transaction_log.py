"""The transaction log: votes, commits, and files that are no transaction log."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession.errors import StorageError
from procession.sdk.transaction_log import (
    Transaction,
    TransactionLog,
    TransactionStates,
    TransactionTail,
    committed_ranges,
    compacted,
    uncommitted,
)
from procession.storage.journal import Entry, Journal, read_journal


def test_a_vote_without_a_decision_is_uncommitted_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "out.txnlog"
    log = TransactionLog(path)
    log.open()
    log.vote(Transaction("a", 0, 10), commit=True)
    log.vote(Transaction("b", 10, 12), commit=False)
    log.vote(Transaction("c", 10, 20), commit=True)
    log.decide("a", commit=True)
    log.close()
    again = TransactionLog(path)
    again.open()
    for of in (log, again):
        assert of.committed_end == 10
        assert of.prepared == (Transaction("c", 10, 20),)
    assert uncommitted(path) == (Transaction("c", 10, 20),)
    assert committed_ranges(path) == [(0, 10)]
    again.decide("c", commit=False)
    assert uncommitted(path) == ()
    assert committed_ranges(path) == [(0, 10)]


def test_a_missing_log_has_no_commit(tmp_path: Path) -> None:
    assert committed_ranges(tmp_path / "none") == []
    assert uncommitted(tmp_path / "none") == ()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), max_size=20))
def test_committed_ranges_are_the_bytes_of_committed_transactions(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[tuple[int, bool, bool]]
) -> None:
    path = tmp_path_factory.mktemp("log") / "out.txnlog"
    log = TransactionLog(path)
    log.open()
    expected: list[int] = []
    for number, (length, vote, decision) in enumerate(rounds):
        start = log.committed_end
        log.vote(Transaction(f"{number}", start, start + length), commit=vote)
        log.decide(f"{number}", commit=vote and decision)
        if vote and decision:
            expected += range(start, start + length)
    assert [byte for start, end in committed_ranges(path) for byte in range(start, end)] == expected
    assert len(committed_ranges(path)) <= 1, "adjacent ranges are combined"


def test_a_journal_of_another_kind_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "log")
    journal.open()
    journal.append({"op": "phase1", "txn": 3})
    for read in (committed_ranges, uncommitted, lambda path: TransactionLog(path).open()):
        with pytest.raises(StorageError, match="not an entry"):
            read(tmp_path / "log")


# Compaction

Step = tuple[int, bool, bool, bool]
"""A transaction: its bytes, its vote, its decision, and whether its positions may be repeated."""
steps = st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans(), st.booleans()), max_size=40)


def write(log: TransactionLog, number: int, step: Step) -> None:
    length, vote, commit, is_repeatable = step
    start = max(0, log.committed_end - 3) if is_repeatable else log.committed_end
    log.vote(Transaction(f"{number}", start, start + length), commit=vote, is_repeatable=is_repeatable)
    log.decide(f"{number}", commit=vote and commit)
    log.compact()


def ledger_of(entries: list[Entry]) -> TransactionStates:
    ledger = TransactionStates()
    for entry in entries:
        ledger.take(entry)
    return ledger


@settings(max_examples=100, deadline=None)
@given(steps, st.integers(0, 5), st.booleans())
def test_a_compacted_log_has_the_same_result_and_is_short(
    tmp_path_factory: pytest.TempPathFactory, history: list[Step], kept: int, has_open: bool
) -> None:
    path = tmp_path_factory.mktemp("log") / "out.txnlog"
    log = TransactionLog(path)
    log.open()
    for number, step in enumerate(history):
        write(log, number, step)
    if has_open:
        log.vote(Transaction("open", log.committed_end, log.committed_end + 5), commit=True)
    entries = list(read_journal(path))
    short = compacted(entries, kept)
    assert short is not None
    assert len(short) <= 1 + 2 * kept + has_open
    before, after = ledger_of(entries), ledger_of(short)
    assert (after.committed_end, after.committed_count) == (before.committed_end, before.committed_count)
    assert after.prepared == before.prepared
    again = compacted(short, kept)
    assert again is not None
    assert (again[0]["turn"], again[1:]) == (2, short[1:])


@settings(max_examples=100, deadline=None)
@given(steps, st.integers(0, 3), st.integers(1, 7))
def test_a_reader_gets_each_commit_once_however_often_the_log_is_compacted_while_it_reads(
    tmp_path_factory: pytest.TempPathFactory, history: list[Step], kept: int, every: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "out.txnlog"
    log = TransactionLog(path, entries_max=max(4, 4 * kept), transactions_kept=kept)
    log.open()
    expected: list[Transaction] = []
    eager, lazy = TransactionTail(path), TransactionTail(path)
    seen: list[Transaction] = []
    late: list[Transaction] = []
    for number, step in enumerate(history):
        before = log.committed_end
        write(log, number, step)
        if log.committed_end > before or (step[1] and step[2]):
            expected.append(Transaction(f"{number}", before, log.committed_end))
        seen += eager.poll()
        if number % every == 0:
            late += lazy.poll()
        assert len(list(read_journal(path))) <= max(4, 4 * kept) + 2
    late += lazy.poll()
    if kept:
        assert seen == expected
    for given_to in (seen, late, list(TransactionTail(path).poll())):
        assert [transaction.start for transaction in given_to] == [0, *(one.end for one in given_to)][
            : len(given_to)
        ], "without a gap"
        assert {one.txn_id for one in given_to} <= {one.txn_id for one in expected}
        assert [one.txn_id for one in given_to][-1:] == [one.txn_id for one in expected][-1:]
    assert committed_ranges(path) == ([(0, log.committed_end)] if log.committed_end else [])


def test_a_gap_between_commits_is_not_hidden_by_compacting(tmp_path: Path) -> None:
    path = tmp_path / "out.txnlog"
    log = TransactionLog(path, entries_max=4, transactions_kept=1)
    log.open()
    for number, start in enumerate((0, 10, 30, 40, 50)):
        log.vote(Transaction(f"{number}", start, start + 10), commit=True)
        log.decide(f"{number}", commit=True)
        log.compact()
    assert committed_ranges(path) == [(0, 20), (30, 60)]


def test_a_long_log_is_compacted_and_continues(tmp_path: Path) -> None:
    path = tmp_path / "out.txnlog"
    log = TransactionLog(path, entries_max=8, transactions_kept=2)
    log.open()
    for number in range(100):
        log.vote(Transaction(f"{number}", number, number + 1), commit=True)
        log.decide(f"{number}", commit=True)
        log.compact()
    log.close()
    assert next(read_journal(path)) == {"op": "base", "turn": 49, "count": 98, "txn": "97", "end": 98, "format": 2}
    again = TransactionLog(path, entries_max=8, transactions_kept=2)
    again.open()
    assert (again.committed_end, again.prepared) == (100, ())
    assert list(TransactionTail(path).poll()) == [("97", 0, 98), ("98", 98, 99), ("99", 99, 100)]


def test_a_base_is_only_ever_the_first_entry(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "log")
    journal.open()
    base = {"op": "base", "turn": 1, "count": 1, "txn": "a", "end": 3}
    journal.append(base)
    assert committed_ranges(tmp_path / "log") == [(0, 3)]
    journal.append(base)
    with pytest.raises(StorageError, match="not an entry"):
        committed_ranges(tmp_path / "log")
