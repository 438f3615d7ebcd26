"""A journal restores the last complete snapshot and every operation after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession.runtime.host_files import HOST_FILES
from procession.sos.directory_restore import JournalReplay
from procession.sos.file_operations import (
    BeginSnapshot,
    EndSnapshot,
    FileOperation,
    GiveName,
    MakeDirectory,
    RemoveEntry,
    TruncateFile,
    WriteBytes,
)

RESET, AGAIN, END = BeginSnapshot("", is_reset=True), BeginSnapshot("", is_reset=False), EndSnapshot()


def replayed(place: Path, *operations: FileOperation) -> dict[str, bytes]:
    replay = JournalReplay(place / "restoring", HOST_FILES)
    for operation in operations:
        replay.apply(operation)
    replay.finish(place / "made")
    made = place / "made"
    return {str(path.relative_to(made)): path.read_bytes() for path in made.rglob("*") if path.is_file()}


def written(name: str, file: int, data: bytes) -> tuple[FileOperation, ...]:
    return GiveName(name, file), WriteBytes(file, 0, data)


OLD = (RESET, *written("a", 1, b"old"), END, WriteBytes(1, 3, b"er"))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ((), {"a": b"older"}),
        ((RESET, *written("b", 1, b"new"), END), {"b": b"new"}),
        ((RESET, *written("b", 1, b"new")), {"a": b"older"}),
        ((RESET, *written("b", 1, b"lost"), RESET, *written("c", 1, b"new"), END), {"c": b"new"}),
        ((AGAIN, *written("a", 1, b"older"), RemoveEntry("a"), END), {}),
        ((AGAIN, *written("a", 1, b"older"), TruncateFile(1, 2)), {"a": b"ol"}),
    ],
)
def test_an_incomplete_snapshot_does_not_count(
    tmp_path: Path, more: tuple[FileOperation, ...], expected: dict[str, bytes]
) -> None:
    (tmp_path / "made").mkdir()
    assert replayed(tmp_path, *OLD, *more) == expected


def test_operations_before_the_first_snapshot_are_not_needed(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    before = (WriteBytes(1, 0, b"x"), *written("gone", 2, b"y"), MakeDirectory("d"))
    assert replayed(tmp_path, *before, AGAIN, *written("a", 1, b"z"), WriteBytes(1, 1, b"z"), END) == {"a": b"zz"}


def test_a_journal_without_a_complete_snapshot_is_that_of_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    assert replayed(tmp_path, RESET, *written("a", 1, b"never synced")) == {}
