"""The snapshot file: there and back, absent, and damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from procession.errors import StorageError
from procession.gateway import snapshot
from procession.gateway.gateway_directory import SNAPSHOT as FILE_NAME
from procession.gateway.gateway_directory import load_snapshot, save_snapshot
from procession.gateway.snapshot import Position, Snapshot
from tests.gateway.gateway_rig import recovered

SNAPSHOT = Snapshot(3, 17, 100, 120, {7: Position("a name, ünïcödé", 49), 2**64 - 1: Position("", 0)})


def test_a_snapshot_is_read_as_it_was_written(tmp_path: Path) -> None:
    save_snapshot(tmp_path, SNAPSHOT)
    assert load_snapshot(tmp_path) == SNAPSHOT
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_a_snapshot_that_is_found_is_in_a_new_file_before_it_is_relied_on(tmp_path: Path) -> None:
    """Its writer may have been killed before its name was on disk, or may have failed to sync it: then a second sync
    of the same file says that all is well, and writes nothing."""
    save_snapshot(tmp_path, SNAPSHOT)
    path = tmp_path / FILE_NAME
    with path.open() as before:  # or the number of its inode may be used again
        assert recovered(tmp_path) == (SNAPSHOT, b"")
        assert path.stat().st_ino != os.fstat(before.fileno()).st_ino
    assert load_snapshot(tmp_path) == SNAPSHOT


def test_a_snapshot_of_a_later_format_is_refused_with_a_sentence(tmp_path: Path) -> None:
    save_snapshot(tmp_path, SNAPSHOT)
    path = tmp_path / FILE_NAME
    path.write_text(path.read_text().replace(f'"format":{snapshot.FORMAT}', '"format":99'))
    with pytest.raises(StorageError, match="has format 99"):
        load_snapshot(tmp_path)


def test_without_a_snapshot_nothing_is_committed(tmp_path: Path) -> None:
    assert load_snapshot(tmp_path) is None
    assert recovered(tmp_path) == (Snapshot(0, -1, 0, 0, {}), b"")


def test_every_cut_of_a_snapshot_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    save_snapshot(tmp_path, SNAPSHOT)
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(StorageError, match=FILE_NAME):
            load_snapshot(tmp_path)


@pytest.mark.parametrize("text", ["[]", "3", '{"fence":1}', '{"fence":[],"epoch":0}'])
def test_a_snapshot_that_says_something_else_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(StorageError, match=FILE_NAME):
        load_snapshot(tmp_path)
