"""The transaction log: what is voted for, what is committed, and a file that is something else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession.errors import StorageError
from procession.sdk.txnlog import Transaction, TxnLog, committed_ranges, uncommitted
from procession.storage.journal import Journal


def test_what_is_voted_for_and_not_decided_is_uncommitted_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "out.txnlog"
    log = TxnLog(path)
    log.open()
    log.vote(Transaction("a", 0, 10), commit=True)
    log.vote(Transaction("b", 10, 12), commit=False)
    log.vote(Transaction("c", 10, 20), commit=True)
    log.decide("a", commit=True)
    log.close()
    again = TxnLog(path)
    again.open()
    for of in (log, again):
        assert of.committed_end == 10
        assert of.prepared == (Transaction("c", 10, 20),)
    assert uncommitted(path) == (Transaction("c", 10, 20),)
    assert committed_ranges(path) == [(0, 10)]
    again.decide("c", commit=False)
    assert uncommitted(path) == ()
    assert committed_ranges(path) == [(0, 10)]


def test_a_log_that_is_not_there_says_that_nothing_is_committed(tmp_path: Path) -> None:
    assert committed_ranges(tmp_path / "none") == []
    assert uncommitted(tmp_path / "none") == ()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), max_size=20))
def test_committed_ranges_are_the_bytes_of_the_transactions_that_were_voted_for_and_committed(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[tuple[int, bool, bool]]
) -> None:
    path = tmp_path_factory.mktemp("log") / "out.txnlog"
    log = TxnLog(path)
    log.open()
    expected: list[int] = []
    for number, (length, vote, decision) in enumerate(rounds):
        start = log.committed_end
        log.vote(Transaction(f"{number}", start, start + length), commit=vote)
        log.decide(f"{number}", commit=vote and decision)
        if vote and decision:
            expected += range(start, start + length)
    assert [byte for start, end in committed_ranges(path) for byte in range(start, end)] == expected
    assert len(committed_ranges(path)) <= 1, "neighbours are joined"


def test_a_journal_of_something_else_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "log")
    journal.open()
    journal.append({"op": "phase1", "txn": 3})
    for read in (committed_ranges, uncommitted, lambda path: TxnLog(path).open()):
        with pytest.raises(StorageError, match="not an entry"):
            read(tmp_path / "log")
