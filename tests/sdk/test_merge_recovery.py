"""With what a merger starts, for every state of its files that a crash can leave.

A commit has four entries, each on disk before the next one: the vote of the second output, the vote of the first
output with the position, and the two decisions. The last entry of a log may be cut off.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from procession.sdk.doubles import MemoryOutput
from procession.sdk.lane_merge import MergedBatch
from procession.sdk.merge_output import Lines, MergeOutput
from procession.sdk.transaction_log import Transaction, TransactionLog, committed_ranges, uncommitted

COMMITS = 2
SIZES = {"merged": 10, "letters": 5}
"""The bytes of each transaction."""
HISTORY = [
    entry
    for number in range(1, COMMITS + 1)
    for entry in (
        ("letters", "vote", number),
        ("merged", "vote", number),
        ("merged", "commit", number),
        ("letters", "commit", number),
    )
]


def txn(output: str, number: int) -> str:
    return f"{output}-merge.{number}"


def content(output: str, transactions: int) -> bytes:
    """The bytes of the first transactions of an output."""
    return b"".join(b"%d" % number * SIZES[output] for number in range(1, transactions + 1))


def lay(directory: Path, entries: list[tuple[str, str, int]], cut: bool) -> None:
    """Write the logs with these entries. `cut`: the last of them is written in part."""
    directory.mkdir()
    logs = {name: TransactionLog(directory / f"{name}.txnlog") for name in SIZES}
    for log in logs.values():
        log.open()
    sizes = dict.fromkeys(SIZES, 0)
    for name, what, number in entries:
        log, size = logs[name], SIZES[name]
        sizes = {other: (directory / f"{other}.txnlog").stat().st_size for other in SIZES}
        if what == "commit":
            log.decide(txn(name, number), True)
            continue
        if name == "merged":
            log.next_note = {"position": {"after": number}, "letters": txn("letters", number)}
        log.vote(Transaction(txn(name, number), (number - 1) * size, number * size), True)
    for log in logs.values():
        log.close()
    if cut:
        path = directory / f"{entries[-1][0]}.txnlog"
        whole, before = path.read_bytes(), sizes[entries[-1][0]]
        path.write_bytes(whole[: (before + len(whole)) // 2])


def started(
    directory: Path, bytes_of: dict[str, bytes], *, has_letters: bool = True
) -> tuple[MergeOutput, dict[str, bytes]]:
    """A merger on these files, and what its outputs hold then."""
    outputs = {name: MemoryOutput() for name in SIZES}
    for name, output in outputs.items():
        output.data = bytearray(bytes_of[name])
    letters = ("letters", outputs.__getitem__) if has_letters else None
    merger = MergeOutput(directory, "merged", outputs.__getitem__, Lines(), letters)
    return merger, {name: bytes(output.data) for name, output in outputs.items()}


def states() -> Iterator[tuple[list[tuple[str, str, int]], bool]]:
    for length in range(len(HISTORY) + 1):
        for cut in (False, True) if length else (False,):
            yield HISTORY[:length], cut


@pytest.mark.parametrize("has_unvoted", [False, True])
@pytest.mark.parametrize("has_letters", [False, True])
def test_the_transaction_that_the_first_output_voted_for_is_committed_at_both_and_all_others_are_dropped(
    tmp_path: Path, has_letters: bool, has_unvoted: bool
) -> None:
    for (entries, cut), turn in zip(states(), itertools.count(), strict=False):
        if not has_letters:
            entries = [entry for entry in entries if entry[0] == "merged"]
            if not entries:
                cut = False
        directory = tmp_path / str(turn)
        lay(directory, entries, cut)
        whole = entries[:-1] if cut else entries
        decided = sum(entry[:2] == ("merged", "vote") for entry in whole)
        written = {name: sum(entry[:2] == (name, "vote") for entry in entries) for name in SIZES}
        unvoted = b"unvoted" if has_unvoted else b""
        held = {name: content(name, written[name]) + unvoted for name in SIZES}
        for start in ("first", "second"):
            merger, found = started(directory, held, has_letters=has_letters)
            merger.close()
            assert merger.position == ({"after": decided} if decided else None), (entries, cut, start)
            for name in SIZES if has_letters else ("merged",):
                log = directory / f"{name}.txnlog"
                end = decided * SIZES[name]
                assert committed_ranges(log) == ([(0, end)] if end else []), (name, entries, cut, start)
                assert uncommitted(log) == (), (name, entries, cut, start)
                assert found[name] == content(name, decided), (name, entries, cut, start)
                held[name] = found[name]


def test_a_transaction_that_was_dropped_is_committed_later_under_the_same_name(tmp_path: Path) -> None:
    lay(tmp_path / "out", HISTORY[:5], cut=False)
    merger, _ = started(tmp_path / "out", {"merged": content("merged", 1), "letters": content("letters", 2)})
    assert merger.position == {"after": 1}
    rows = pa.record_batch([[b"2" * 4, b"2" * 9]], ["payload"])
    merger.write(MergedBatch(1, rows, late_rows=1))
    merger.commit({"after": 2}, label="2")
    merger.close()
    again, _ = started(tmp_path / "out", {name: content(name, 2) for name in SIZES})
    assert again.position == {"after": 2}
    assert committed_ranges(tmp_path / "out" / "merged.txnlog") == [(0, 20)]
    assert committed_ranges(tmp_path / "out" / "letters.txnlog") == [(0, 10)]
