"""The journal's records, and the tree of names that follows from them."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.errors import RemoteProtocolError
from procession.sos.file_operations import (
    NOTHING,
    BeginSnapshot,
    EndSnapshot,
    FileOperation,
    FileTree,
    GiveName,
    MakeDirectory,
    RemoveEntry,
    RenameEntry,
    TruncateFile,
    WriteBytes,
    decode_operations,
    encode_operation,
    is_below,
)

NUMBERS = st.integers(0, 2**64 - 1)
NAMES = st.text(min_size=1, max_size=20).filter(is_below)
OPERATIONS = st.one_of(
    st.builds(BeginSnapshot, st.just("") | NAMES, st.booleans()),
    st.builds(EndSnapshot),
    st.builds(MakeDirectory, NAMES),
    st.builds(GiveName, NAMES, NUMBERS),
    st.builds(WriteBytes, NUMBERS, NUMBERS, st.binary(max_size=50)),
    st.builds(TruncateFile, NUMBERS, NUMBERS),
    st.builds(RenameEntry, NAMES, NAMES),
    st.builds(RemoveEntry, NAMES),
)


def encoded(*operations: FileOperation) -> bytes:
    return b"".join(part for operation in operations for part in encode_operation(operation))


@given(st.lists(OPERATIONS, max_size=8))
def test_operations_decode_to_what_was_encoded(operations: list[FileOperation]) -> None:
    assert list(decode_operations(NOTHING + encoded(*operations) + NOTHING)) == operations


@given(st.binary(max_size=60))
def test_any_bytes_are_operations_or_an_error_of_the_peer(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        for operation in decode_operations(data):
            encode_operation(operation)


@pytest.mark.parametrize("name", ["", "/etc", "a/../b", "..", ".", "a//b", "a/", "a\0b", "a/./b", "x" * 5000])
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    for data in (encoded(MakeDirectory(name)), encoded(GiveName(name, 1)), encoded(RenameEntry("a", name))):
        with pytest.raises(RemoteProtocolError, match="leads out of the directory"):
            list(decode_operations(data))


def test_an_unknown_format_or_tag_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="format 2"):
        list(decode_operations(encoded(BeginSnapshot("", is_reset=True, format=2))))
    with pytest.raises(RemoteProtocolError, match="unknown tag 200"):
        list(decode_operations(bytes([200])))


@pytest.mark.parametrize("seed", range(20))
def test_the_tree_is_what_the_disk_has(seed: int, tmp_path: Path) -> None:
    """Runs random operations on a disk and on the tree."""
    chance, tree, numbers = random.Random(seed), FileTree(), iter(range(1, 10_000))
    folders = ["", "a/", "b/", "a/c/"]
    for _ in range(300):
        names = [chance.choice(folders) + chance.choice("acfgh") for _ in range(2)]
        first, second = (tmp_path / name for name in names)
        operation: FileOperation
        with suppress(OSError):
            match chance.randrange(5):
                case 0:
                    first.mkdir()
                    operation = MakeDirectory(names[0])
                case 1:
                    first.open("xb").close()
                    operation = GiveName(names[0], next(numbers))
                case 2:
                    second.hardlink_to(first)
                    operation = GiveName(names[1], tree.files[names[0]])
                case 3:
                    first.rename(second)
                    operation = RenameEntry(*names)
                case _:
                    first.unlink()
                    operation = RemoveEntry(names[0])
            lost = tree.apply(operation)
            assert not set(lost) & set(tree.files.values())
        found = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*")}
        assert set(tree.files) == {name for name, path in found.items() if path.is_file()}
        assert set(tree.directories) == {name for name, path in found.items() if path.is_dir()}
        inodes = {name: found[name].stat().st_ino for name in tree.files}
        assert len(set(inodes.values())) == len(set(tree.files.values())) == len(tree.sizes)


def test_a_file_keeps_its_size_over_its_names() -> None:
    tree = FileTree()
    for operation in (
        GiveName("a", 1),
        WriteBytes(1, 10, b"xy"),
        RenameEntry("a", "b"),
        GiveName("c", 1),
        RemoveEntry("b"),
        TruncateFile(1, 5),
        WriteBytes(2, 0, b"a file without a name"),
    ):
        assert tree.apply(operation) == []
    assert (tree.files, tree.sizes) == ({"c": 1}, {1: 5})
    assert tree.apply(GiveName("c", 2)) == [1]
