"""Where an output continues, for every history of its transaction log and every position where a crash cuts it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from procession.errors import StorageError
from procession.sdk.recovery import RecoveredOutput, recover, remove_drafts
from procession.sdk.transaction_log import Transaction, TransactionLog
from procession.storage.journal import Entry, encode

OUTCOMES = ("refused", "open", "committed", "aborted")
"""The possible outcomes of a transaction."""


def entries_of(outcomes: tuple[str, ...]) -> list[tuple[Entry, RecoveredOutput]]:
    """Return the entries of transactions with these outcomes, each with the state from which an output continues after
    it."""
    entries: list[tuple[Entry, RecoveredOutput]] = []
    end = 0
    for number, outcome in enumerate(outcomes):
        transaction = Transaction(f"t{number}", end, end + 10)
        vote = {"op": "phase1", "txn": transaction.txn_id, "start": end, "end": end + 10, "vote": outcome != "refused"}
        entries.append((vote, RecoveredOutput(end, None if outcome == "refused" else transaction)))
        if outcome in ("committed", "aborted"):
            end += 10 if outcome == "committed" else 0
            decision = {"op": "phase2", "txn": transaction.txn_id, "commit": outcome == "committed"}
            entries.append((decision, RecoveredOutput(end, None)))
    return entries


# Only the last transaction can be open: nothing is voted on before it is decided.
HISTORIES = [
    outcomes
    for length in range(4)
    for outcomes in itertools.product(OUTCOMES, repeat=length)
    if "open" not in outcomes[:-1]
]


@pytest.mark.parametrize("outcomes", HISTORIES, ids="-".join)
def test_every_history_and_every_truncation_has_one_outcome(tmp_path: Path, outcomes: tuple[str, ...]) -> None:
    whole, expected = b"", RecoveredOutput(0, None)
    for entry, after in [*entries_of(outcomes), (None, None)]:
        line = encode(entry) if entry is not None else b""
        for cut in {0, 1, len(line) // 2, len(line) - 1} if line else {0}:
            path = tmp_path / f"{len(whole)}-{cut}.txnlog"
            path.write_bytes(whole + line[:cut])
            txnlog = TransactionLog(path)
            txnlog.open()
            assert recover(txnlog) == expected
            txnlog.close()
        whole, expected = whole + line, after or expected


def test_a_log_with_two_open_transactions_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.txnlog"
    path.write_bytes(b"".join(encode(entry) for entry, _ in entries_of(("open", "open"))))
    txnlog = TransactionLog(path)
    txnlog.open()
    with pytest.raises(StorageError, match="more than one open transaction: t0, t1"):
        recover(txnlog)
    txnlog.close()


def test_only_drafts_of_our_own_files_are_removed(tmp_path: Path) -> None:
    ours = [tmp_path / "out.txnlog.123.draft", tmp_path / "sink.json.123.draft"]
    others = [tmp_path / "out.txnlog", tmp_path / "data.draft", tmp_path / "out.parquet.1.draft"]
    for path in (*ours, *others):
        path.write_text("")
    remove_drafts(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(others)
