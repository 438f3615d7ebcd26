"""The journal keeps appended entries, cuts off a torn tail, and reports every other damage as an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession.errors import StorageError
from procession.storage.durable import write_durably
from procession.storage.journal import ENTRY_BYTES_MAX, Entry, Journal, JournalTail, encode, read_journal
from tests.storage.disks import file_size_limit, tiny_disk

ENTRIES: list[dict[str, object]] = [
    {"op": "phase1", "txn": "a:c_id=1", "start": 0, "end": 42},
    {"n": None},
    {"text": "zwölf\n\u0000 {}"},
]


def written(path: Path, entries: list[dict[str, object]]) -> bytes:
    journal = Journal(path)
    journal.open()
    for entry in entries:
        journal.append(entry)
    journal.close()
    return path.read_bytes()


def reopened(path: Path) -> list[dict[str, object]]:
    journal = Journal(path)
    try:
        entries: list[Entry] = []
        journal.open(entries.append)
        return entries
    finally:
        journal.close()


def test_a_journal_gives_back_its_entries_in_order(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    written(path, ENTRIES)
    assert reopened(path) == ENTRIES == list(read_journal(path))


def test_a_missing_journal_is_empty(tmp_path: Path) -> None:
    assert list(read_journal(tmp_path / "none")) == []
    assert reopened(tmp_path / "none") == []


def test_a_journal_truncated_at_any_byte_recovers_to_complete_entries_and_continues(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    data = written(path, ENTRIES)
    ends = [0]
    for entry in ENTRIES:
        ends.append(ends[-1] + len(encode(entry)))
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends) - 1
        assert list(read_journal(path)) == ENTRIES[:whole]
        assert path.stat().st_size == cut, "reading changes nothing"
        journal = Journal(path)
        entries: list[Entry] = []
        journal.open(entries.append)
        assert entries == ENTRIES[:whole]
        journal.append({"after": cut})
        journal.close()
        assert reopened(path) == [*ENTRIES[:whole], {"after": cut}]


def test_zeros_after_the_last_entry_are_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    data = written(path, ENTRIES)
    path.write_bytes(data + encode(ENTRIES[0])[:12] + bytes(500))
    assert reopened(path) == ENTRIES
    assert path.read_bytes() == data


@pytest.mark.parametrize("sector_bytes", [16, 64])
def test_a_last_entry_of_which_any_sectors_are_missing_is_a_torn_tail(tmp_path: Path, sector_bytes: int) -> None:
    path = tmp_path / "journal"
    data, last = written(path, ENTRIES), encode({"sectors": "x" * 100})
    start, end = len(data), len(data) + len(last)
    for first in range(start - start % sector_bytes, end - 1, sector_bytes):
        missing = range(max(start, first), min(end, first + sector_bytes))
        torn = bytearray(data + last)
        torn[missing.start : missing.stop] = bytes(len(missing))
        path.write_bytes(torn)
        assert reopened(path) == ENTRIES
        assert path.read_bytes() == data
        if missing.stop < end:
            path.write_bytes(bytes(torn) + last)
            with pytest.raises(StorageError, match=f"damaged at byte {start}"):
                reopened(path)


def test_every_flipped_bit_is_found_and_its_position_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    data = written(path, ENTRIES)
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            path.write_bytes(flipped)
            with pytest.raises(StorageError, match="damaged at byte") as caught:
                reopened(path)
            assert str(path) in caught.value.sentence
            assert caught.value.position <= position
            assert path.read_bytes() == flipped, "a damaged journal is not changed"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.dictionaries(st.text(), json_values, max_size=4), max_size=4), max_size=4))
def test_a_journal_is_a_list_however_often_it_is_opened(
    tmp_path_factory: pytest.TempPathFactory, sessions: list[list[dict[str, object]]]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal"
    expected: list[dict[str, object]] = []
    for session in sessions:
        assert reopened(path) == expected
        journal = Journal(path)
        journal.open()
        for entry in session:
            journal.append(entry, is_synced=False)
        journal.close()
        expected += session
    assert list(read_journal(path)) == expected


def test_a_failed_append_is_a_storage_error_and_the_journal_recovers_without_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.open()
    journal.append(ENTRIES[0])
    with file_size_limit(path.stat().st_size + 5), pytest.raises(StorageError, match=str(path)) as caught:
        journal.append(ENTRIES[1])
    assert caught.value.next_step
    with pytest.raises(StorageError, match="closed"):
        journal.append(ENTRIES[1])
    assert reopened(path) == ENTRIES[:1]


def fill(journal: Journal, appended: list[dict[str, object]]) -> None:
    while True:
        entry: dict[str, object] = {"filler": "x" * 1000, "number": len(appended)}
        journal.append(entry)
        appended.append(entry)


def test_a_full_disk_is_a_storage_error_with_a_next_step() -> None:
    with tiny_disk() as disk:
        path = disk / "journal"
        journal = Journal(path)
        journal.open()
        appended: list[dict[str, object]] = []
        with pytest.raises(StorageError, match="No space left") as caught:
            fill(journal, appended)
        assert "Free space" in caught.value.next_step
        with pytest.raises(StorageError, match="No space left"):
            reopened(path)  # a start needs space for a copy
        assert list(read_journal(path)) == appended
        with pytest.raises(StorageError, match="No space left"):
            write_durably(disk / "snapshot", bytes(1 << 20))
        assert [entry.name for entry in disk.iterdir()] == ["journal"]


def test_an_entry_over_the_limit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.open()
    with pytest.raises(ValueError, match="over the limit"):
        journal.append({"text": "x" * ENTRY_BYTES_MAX})
    journal.append(ENTRIES[0])
    journal.close()
    assert reopened(path) == ENTRIES[:1]


def test_the_error_for_a_journal_that_cannot_be_created_names_it(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        Journal(tmp_path / "nowhere" / "journal").open()


def test_write_durably_replaces_the_whole_file_or_leaves_it(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    write_durably(path, b"old")
    with file_size_limit(10), pytest.raises(StorageError, match="snapshot"):
        write_durably(path, b"new" * 100)
    assert path.read_bytes() == b"old"
    write_durably(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_journal_can_be_replaced_by_another_and_continues(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    written(path, ENTRIES)
    journal = Journal(path)
    journal.open()
    journal.replace([{"turn": 1}, ENTRIES[2]])
    journal.append({"n": 1})
    journal.close()
    assert reopened(path) == [{"turn": 1}, ENTRIES[2], {"n": 1}]
    assert [one.name for one in tmp_path.iterdir()] == ["journal"], "no draft is left"


def test_a_replacement_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    written(path, ENTRIES)
    journal = Journal(path)
    journal.open()
    with file_size_limit(5), pytest.raises(StorageError, match="Cannot write"):
        journal.replace([{"turn": 1}])
    with pytest.raises(StorageError, match="closed"):
        journal.append({"n": 1})
    assert reopened(path) == ENTRIES


def test_a_tail_returns_new_entries_and_starts_again_in_a_replaced_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    tail = JournalTail(path)
    assert list(tail.poll()) == []
    journal = Journal(path)
    journal.open()
    journal.append(ENTRIES[0])
    assert list(tail.poll()) == [ENTRIES[0]]
    with path.open("ab") as file:
        file.write(encode(ENTRIES[1])[:-1])
    assert list(tail.poll()) == [], "an incomplete entry is not returned"
    journal.append(ENTRIES[1])
    assert list(tail.poll()) == [ENTRIES[1]]
    for turn in range(1, 4):
        # Longer than what was read before: the position alone would not show it.
        journal.replace([{"turn": turn}, *ENTRIES * 3])
        assert list(tail.poll()) == [{"turn": turn}, *ENTRIES * 3]
        assert tail.generation == turn
        assert list(tail.poll()) == []
    journal.close()
