"""The files port: its guarantees hold on the operating system, on the simulated disk, and with a journal."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.runtime.files import FileSystem, OpenMode
from procession.runtime.host_files import HOST_FILES
from procession.sim.blocking_calls import ProcessKilled
from procession.sim.environment import Machine
from procession.sim.runner import plan_of
from procession.sim.simulated_files import SimulatedFileSystem
from procession.sim.simulated_process import SimulatedProcess
from procession.sim.world import World
from procession.sos.directory_restore import JournalReplay
from procession.sos.file_operations import decode_operations
from procession.sos.replicated_files import ReplicatedFiles


def simulated(part: str = "p", machine: Machine | None = None) -> SimulatedFileSystem:
    machine = machine or Machine("m")
    return SimulatedFileSystem(SimulatedProcess(World(plan_of(0), random.Random(0)).site, part, machine), machine.disk)


class JournalInMemory:
    """A journal whose quorum has every record at once."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.bytes_added = 0

    def add(self, parts: tuple[bytes, ...]) -> None:
        self.records.append(b"".join(parts))

    def room(self) -> None: ...

    def barrier(self) -> int:
        return len(self.records)

    def wait(self, barrier: int) -> None: ...


@pytest.fixture(params=["host", "simulated", "journalled", "simulated and journalled"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FileSystem]:
    before = Path.cwd()
    here = tmp_path / "here"
    here.mkdir()
    os.chdir(here)
    is_simulated = request.param.startswith("simulated")
    inner = simulated() if is_simulated else HOST_FILES
    if "journalled" in request.param:
        journal = JournalInMemory()
        made = ReplicatedFiles(inner, Path() if is_simulated else here, journal)
        made.begin()
        yield made
        check_journal(journal, inner, tmp_path / "there")
    else:
        yield inner
    os.chdir(before)


def check_journal(journal: JournalInMemory, inner: FileSystem, there: Path) -> None:
    """Check that replaying the journal gives the same files."""
    replay = JournalReplay(there / "restoring", HOST_FILES)
    for record in journal.records:
        for operation in decode_operations(record):
            replay.apply(operation)
    replay.finish(there)
    (there / "restoring" / "1").rmdir()
    (there / "restoring").rmdir()
    assert contents(HOST_FILES, there) == contents(inner, Path())


def contents(files: FileSystem, directory: Path) -> dict[str, object]:
    return {
        name: contents(files, path) if files.is_directory(path := directory / name) else files.read(path)
        for name in files.names(directory)
    }


def put(files: FileSystem, path: Path, data: bytes) -> Path:
    with files.open(path, OpenMode.REPLACE) as file:
        file.write(0, data)
    return path


A, B, FOLDER = Path("a"), Path("b"), Path("folder")


def test_a_mutex_is_free_again_after_its_block(files: FileSystem) -> None:
    mutex, other = files.mutex(), files.mutex()
    with mutex, other:
        pass
    with mutex:
        pass


def test_written_bytes_are_read_back(files: FileSystem) -> None:
    with files.open(A, OpenMode.NEW) as file:
        file.write(0, b"0123", memoryview(b"45"), b"", b"6")
        file.write(2, b"xy")
        assert file.size == 7
        assert file.read(3, 1) == b"1xy"
        assert file.read(100, 5) == b"56"
        assert file.read(1, 7) == b""
        file.sync()
        file.sync(is_data_only=True)
    assert files.read(A) == b"01xy456"
    assert bytes(files.map(A)) == b"01xy456"


def test_a_file_can_be_cut_off_and_extended(files: FileSystem) -> None:
    put(files, A, b"012345")
    with files.open(A, OpenMode.WRITE) as file:
        file.truncate(2)
        file.truncate(4)
        file.write(6, b"!")
        assert file.read(10, 0) == b"01\0\0\0\0!"


def test_the_open_mode_decides_whether_a_file_must_exist_and_is_kept(files: FileSystem) -> None:
    for mode in (OpenMode.READ, OpenMode.WRITE):
        with pytest.raises(FileNotFoundError):
            files.open(A, mode)
    put(files, A, b"old")
    with pytest.raises(FileExistsError):
        files.open(A, OpenMode.NEW)
    for mode in (OpenMode.READ, OpenMode.WRITE, OpenMode.CREATE):
        files.open(A, mode).close()
        assert files.read(A) == b"old"
    files.open(A, OpenMode.REPLACE).close()
    assert files.read(A) == b""
    files.open(B, OpenMode.CREATE).close()
    assert files.read(B) == b""
    with pytest.raises(FileNotFoundError):
        files.open(FOLDER / "a", OpenMode.NEW)
    files.make_directory(FOLDER)
    with pytest.raises(IsADirectoryError):
        files.open(FOLDER, OpenMode.WRITE)


def test_an_empty_file_can_be_mapped_and_one_that_grows_keeps_what_was_mapped(files: FileSystem) -> None:
    put(files, A, b"")
    assert files.map(A).size == 0
    with files.open(A, OpenMode.WRITE) as file:
        file.write(0, b"first")
        mapped = files.map(A)
        file.write(5, b" second")
    assert bytes(mapped) == b"first"
    with pytest.raises(FileNotFoundError):
        files.map(B)


def test_a_rename_replaces_the_file_and_an_open_file_stays(files: FileSystem) -> None:
    put(files, A, b"new")
    put(files, B, b"old")
    with files.open(B) as old, files.open(A, OpenMode.WRITE) as new:
        files.rename(A, B)
        assert old.read(9, 0) == b"old"
        new.write(3, b"er")
    assert not files.exists(A)
    assert files.read(B) == b"newer"
    with pytest.raises(FileNotFoundError):
        files.rename(A, B)


def test_a_directory_is_moved_with_its_content(files: FileSystem) -> None:
    files.make_directory(FOLDER)
    put(files, FOLDER / "a", b"x")
    files.rename(FOLDER, B)
    assert files.read(B / "a") == b"x"
    with pytest.raises(FileNotFoundError):
        files.read(FOLDER / "a")
    files.make_directory(FOLDER)
    with pytest.raises(OSError, match="not empty"):
        files.rename(FOLDER, B)
    files.rename(FOLDER, Path("empty"))
    files.rename(B, Path("empty"))
    assert files.names(Path("empty")) == ["a"]


def test_a_file_can_be_moved_to_another_directory(files: FileSystem) -> None:
    files.make_directory(FOLDER)
    put(files, A, b"x")
    files.rename(A, FOLDER / "b")
    assert files.read(FOLDER / "b") == b"x"
    assert not files.exists(A)


def test_a_link_is_a_second_name_of_the_same_file(files: FileSystem) -> None:
    put(files, A, b"x")
    files.link(A, B)
    with files.open(B, OpenMode.WRITE) as file:
        file.write(1, b"y")
    files.remove(B)
    assert files.read(A) == b"xy"
    put(files, B, b"")
    with pytest.raises(FileExistsError):
        files.link(A, B)


def test_names_are_listed_and_tell_files_from_directories(files: FileSystem) -> None:
    files.make_directory(FOLDER)
    put(files, FOLDER / "a", b"")
    files.make_directory(FOLDER / "b")
    assert sorted(files.names(FOLDER)) == ["a", "b"]
    assert [files.is_directory(FOLDER / name) for name in ("a", "b", "c")] == [False, True, False]
    assert [files.exists(FOLDER / name) for name in ("a", "b", "c")] == [True, True, False]
    assert files.is_directory(Path())
    with pytest.raises(FileNotFoundError):
        files.names(Path("nowhere"))
    with pytest.raises(NotADirectoryError):
        files.names(FOLDER / "a")


def test_a_directory_is_made_once_and_in_one_that_exists(files: FileSystem) -> None:
    files.make_directory(FOLDER)
    with pytest.raises(FileExistsError):
        files.make_directory(FOLDER)
    with pytest.raises(FileNotFoundError):
        files.make_directory(Path("nowhere") / "folder")
    files.sync_directory(FOLDER)
    files.sync_directory(Path())
    with pytest.raises(FileNotFoundError):
        files.sync_directory(Path("nowhere"))


def test_a_removed_file_stays_readable_only_where_it_is_open(files: FileSystem) -> None:
    put(files, A, b"x")
    with files.open(A) as file:
        files.remove(A)
        assert file.read(9, 0) == b"x"
    with pytest.raises(FileNotFoundError):
        files.remove(A)
    files.make_directory(FOLDER)
    with pytest.raises(OSError, match=r"directory|permitted"):
        files.remove(FOLDER)
    put(files, FOLDER / "a", b"")
    files.remove_tree(FOLDER)
    files.remove_tree(FOLDER)
    assert not files.exists(FOLDER)


def test_the_free_space_and_a_process_name_are_returned(files: FileSystem) -> None:
    assert files.free_bytes(Path()) > 0
    assert files.owner == files.owner
    assert "/" not in files.owner


def test_a_lock_is_held_until_it_is_released(files: FileSystem) -> None:
    files.make_directory(FOLDER)
    lock = files.lock(FOLDER)
    inner = files.inner if isinstance(files, ReplicatedFiles) else files
    other = HOST_FILES if inner is HOST_FILES else other_process(inner)
    with pytest.raises(BlockingIOError):
        other.lock(FOLDER)
    lock.close()
    other.lock(FOLDER, waits=True).close()
    with pytest.raises(FileNotFoundError):
        files.lock(A)


def other_process(files: FileSystem) -> SimulatedFileSystem:
    assert isinstance(files, SimulatedFileSystem)
    process = SimulatedProcess(files.process.site, "other", files.process.machine)
    return SimulatedFileSystem(process, files.disk)


def test_a_dead_process_reads_and_writes_nothing_and_its_lock_is_free() -> None:
    files = simulated()
    files.process.site.gone = lambda process: None
    put(files, A, b"x")
    file = files.open(A, OpenMode.WRITE)
    files.lock(A)
    other = other_process(files)
    files.process.kill()
    with pytest.raises(ProcessKilled):
        file.write(0, b"y")
    with pytest.raises(ProcessKilled):
        files.read(A)
    with pytest.raises(ProcessKilled):
        files.rename(A, B)
    assert other.read(A) == b"x"
    other.lock(A)
