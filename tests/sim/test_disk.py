"""The simulated disk fails as real ones do: it writes sectors in any order, and its file system becomes read-only."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from procession.errors import StorageError
from procession.runtime.files import OpenMode
from procession.sim.disk import SECTOR_BYTES, File
from procession.sim.environment import Machine
from procession.sim.runner import plan_of
from procession.sim.simulated_files import InjectedDiskError, SimulatedFileSystem
from procession.sim.simulated_process import SimulatedProcess
from procession.sim.world import World
from procession.storage.durable import write_durably

SYNCED, APPENDED = b"s" * (SECTOR_BYTES + 10), b"a" * (3 * SECTOR_BYTES)


@pytest.fixture
def files() -> SimulatedFileSystem:
    machine = Machine("m")
    process = SimulatedProcess(World(plan_of(0), random.Random(0)).site, "p", machine)
    return SimulatedFileSystem(process, machine.disk)


def after_cut(seed: int) -> bytes:
    file = File(SYNCED)
    file.sync()
    file.write_at(len(SYNCED), APPENDED)
    file.cut_power(random.Random(seed), is_scattered=True)
    assert file.data == file.durable
    return file.data


def test_a_scattered_power_cut_keeps_synced_data_and_any_later_sectors() -> None:
    found = {after_cut(seed) for seed in range(200)}
    assert all(data.startswith(SYNCED) and set(data[len(SYNCED) :]) <= {0, ord("a")} for data in found)
    later_only = [data for data in found if b"\0a" in data]
    assert later_only, "a later sector is there, and one before it is not"
    assert {SYNCED, SYNCED + APPENDED} <= found


CHANGES: dict[str, Callable[[SimulatedFileSystem], object]] = {
    "open": lambda files: files.open(Path("new"), OpenMode.CREATE),
    "open to write": lambda files: files.open(Path("there"), OpenMode.WRITE),
    "make": lambda files: files.make_directory(Path("new")),
    "rename": lambda files: files.rename(Path("there"), Path("new")),
    "link": lambda files: files.link(Path("there"), Path("new")),
    "remove": lambda files: files.remove(Path("there")),
    "sync": lambda files: files.sync_directory(Path(".")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_read_only_disk_refuses_every_change(
    files: SimulatedFileSystem, change: Callable[[SimulatedFileSystem], object]
) -> None:
    with files.open(Path("there"), OpenMode.NEW) as file:
        file.write(0, b"x")
        files.disk.is_read_only = True
        for call in (lambda: file.write(1, b"y"), lambda: file.truncate(0), file.sync, lambda: change(files)):
            with pytest.raises(InjectedDiskError) as caught:
                call()
            assert caught.value.errno == errno.EROFS
    assert files.names(Path(".")) == ["there"]
    assert files.read(Path("there")) == b"x"


def test_a_durable_write_on_a_read_only_disk_names_the_file_and_a_next_step(files: SimulatedFileSystem) -> None:
    write_durably(Path("there"), b"old", files)
    files.disk.is_read_only = True
    with pytest.raises(StorageError, match=r"Cannot write there: Read-only file system\.") as caught:
        write_durably(Path("there"), b"new", files)
    assert caught.value.next_step.startswith("Mount its file system writable")
    assert files.read(Path("there")) == b"old"
