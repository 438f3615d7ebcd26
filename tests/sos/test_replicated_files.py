"""Files with a journal on replicas: synced data survives the loss of the machine, and other files are not changed."""

from __future__ import annotations

import asyncio
import pickle
import shutil
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from procession.errors import ConfigError, FencedError, ProcessionError
from procession.runtime.files import FileSystem, OpenMode
from procession.runtime.host_files import HOST_FILES
from procession.sos.adopted_folder import AdoptedFolder
from procession.sos.directory_restore import STAGING, restore_directory
from procession.sos.replicated_files import MARKER
from procession.sos.replicated_host import replicated_host
from procession.sos.replicated_volume import ReplicaOptions
from procession.storage.durable import make_directory, write_durably
from tests.sos.test_replicated_volume import Services


class ServiceThread:
    """Object services in their own thread."""

    def __init__(self, place: Path, count: int = 3) -> None:
        self.place = place
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.services = Services(place, count)
        for number in range(count):
            self.start(number)

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in the thread of the services."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def start(self, number: int) -> None:
        self.run(self.services.start(number))

    def stop(self, number: int, *, is_lost: bool = False) -> None:
        self.run(self.services.stop(number, is_lost=is_lost))

    def close(self) -> None:
        self.run(self.services.stop_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def options(self, **more: float) -> ReplicaOptions:
        return self.services.options(**more)


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[ServiceThread]:
    made = ServiceThread(tmp_path / "replicas")
    yield made
    made.close()


@contextmanager
def replicated(
    replicas: ServiceThread, directory: Path, *, roll_bytes: int = 1 << 26, snapshot_bytes_min: int = 1 << 26
) -> Iterator[FileSystem]:
    options = replicas.options(roll_bytes=roll_bytes)
    with replicated_host(directory, "v", options, snapshot_bytes_min=snapshot_bytes_min) as host:
        yield host.files


def restored(replicas: ServiceThread, directory: Path) -> dict[str, bytes]:
    asyncio.run(restore_directory("v", replicas.options(), directory))
    return contents(directory)


def contents(directory: Path) -> dict[str, bytes]:
    """Return all files and directories, directories with a slash."""
    return {
        str(path.relative_to(directory)) + "/" * path.is_dir(): b"" if path.is_dir() else path.read_bytes()
        for path in directory.rglob("*")
        if path.name != MARKER
    }


def test_a_lost_directory_is_restored_as_it_was_synced(replicas: ServiceThread, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    with replicated(replicas, here) as files:
        make_directory(here / "a" / "b", files)
        write_durably(here / "a" / "b" / "file", b"first", files)
        write_durably(here / "a" / "b" / "file", b"second", files)
        with files.open(here / "log", OpenMode.NEW) as log:
            for number in range(100):
                log.write(4 * number, b"%04d" % number)
            log.truncate(200)
            log.write(200, memoryview(b"0123456789"), b"", b"x" * 5_000_000)
            log.sync()
        files.rename(here / "a", here / "c")
        files.link(here / "log", here / "c" / "log")
        write_durably(here / "gone", b"", files)
        files.remove(here / "gone")
        write_durably(here / "empty", b"", files)
        files.make_directory(here / "tree")
        write_durably(here / "tree" / "file", b"x", files)
        files.remove_tree(here / "tree")
        files.sync_directory(here)
        expected = contents(here)
    shutil.rmtree(here)
    replicas.stop(1, is_lost=True)
    assert restored(replicas, there) == expected
    assert len(expected["log"]) == 210 + 5_000_000
    assert (there / "log").stat().st_nlink == 2
    assert not (there / STAGING).exists()


def test_files_from_before_the_replicas_are_replicated_too(replicas: ServiceThread, tmp_path: Path) -> None:
    here = tmp_path / "here"
    make_directory(here / "folder" / "empty")
    make_directory(here / "secrets")
    (here / "secrets" / "control").write_bytes(b"not for others")
    (here / "folder" / "file").write_bytes(b"x" * 3_000_000)
    with replicated(replicas, here):
        pass
    found = restored(replicas, tmp_path / "there")
    assert found == {"folder/": b"", "folder/empty/": b"", "folder/file": b"x" * 3_000_000}


def test_a_restarted_process_continues_with_its_own_files(replicas: ServiceThread, tmp_path: Path) -> None:
    here = tmp_path / "here"
    for number in range(3):
        with replicated(replicas, here) as files:
            write_durably(here / str(number), b"%d" % number, files)
    # An unsynced tail: the disk of this machine counts, not the journal.
    (here / "0").unlink()
    with replicated(replicas, here):
        pass
    assert restored(replicas, tmp_path / "there") == {"1": b"1", "2": b"2"}
    objects = list((replicas.place / "0" / "volumes" / "v").glob("*.object"))
    assert len(objects) <= 2, "what a new journal replaces is deleted"


def test_the_directory_of_a_lost_machine_is_not_used_again(replicas: ServiceThread, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    with replicated(replicas, here) as files:
        write_durably(here / "file", b"old", files)
        restored(replicas, there)
        # The process that was assumed lost still runs.
        with pytest.raises(ProcessionError, match="claimed the volume"):
            write_durably(here / "file", b"zombie", files)
    with replicated(replicas, there) as files:
        write_durably(there / "file", b"new", files)
        with pytest.raises(FencedError, match="another directory"), replicated(replicas, here):
            raise AssertionError("it must not start")
        write_durably(there / "file", b"newer", files)
    assert restored(replicas, tmp_path / "third") == {"file": b"newer"}


def test_a_new_directory_does_not_replace_a_history(replicas: ServiceThread, tmp_path: Path) -> None:
    with replicated(replicas, tmp_path / "here") as files:
        write_durably(tmp_path / "here" / "file", b"x", files)
    with pytest.raises(FencedError, match="another directory") as error, replicated(replicas, tmp_path / "new"):
        raise AssertionError("it must not start")
    assert "procession restore" in error.value.explain()


def test_a_restore_needs_an_empty_directory_and_one_that_was_interrupted_is_done_again(
    replicas: ServiceThread, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    with replicated(replicas, here) as files:
        write_durably(here / "file", b"x", files)
    with pytest.raises(ConfigError, match="not empty"):
        restored(replicas, here)
    make_directory(there / STAGING / "1")
    (there / "file").write_bytes(b"half")
    (there / "folder").mkdir()
    assert restored(replicas, there) == {"file": b"x"}


def test_secrets_that_exist_before_a_restore_are_kept(replicas: ServiceThread, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    with replicated(replicas, here) as files:
        write_durably(here / "file", b"x", files)
    for name in ("secrets", STAGING):
        (there / name).mkdir(parents=True)
    (there / "secrets" / "control").write_bytes(b"secret")
    assert restored(replicas, there) == {"file": b"x", "secrets/": b"", "secrets/control": b"secret"}


def test_a_sync_waits_for_the_quorum(replicas: ServiceThread, tmp_path: Path) -> None:
    here = tmp_path / "here"
    with replicated(replicas, here) as files, files.open(here / "file", OpenMode.NEW) as file:
        files.sync_directory(here)
        for number in (0, 1):
            replicas.stop(number)
        file.write(0, b"x")
        is_synced = threading.Event()

        def sync(call: Callable[[], None]) -> threading.Thread:
            def work() -> None:
                call()
                is_synced.set()

            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            return thread

        for call in (file.sync, lambda: files.sync_directory(here)):
            thread = sync(call)
            assert not is_synced.wait(0.3)
            replicas.start(1)
            thread.join(20)
            assert is_synced.is_set()
            is_synced.clear()
            replicas.stop(1)
            write_or_fail(files, here / "other")
        replicas.start(1)


def write_or_fail(files: FileSystem, path: Path) -> None:
    with files.open(path, OpenMode.REPLACE) as file:
        file.write(0, b"y")


def test_a_snapshot_replaces_the_journal_while_others_write(replicas: ServiceThread, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    volume = replicas.place / "0" / "volumes" / "v"
    with replicated(replicas, here, roll_bytes=200_000, snapshot_bytes_min=500_000) as files:
        with files.open(here / "log", OpenMode.NEW) as log, files.open(here / "old", OpenMode.NEW) as old:
            old.write(0, b"kept" * 50_000)
            for number in range(400):
                log.write(number % 50 * 4096, bytes([number % 256]) * 4096)
                if number % 20 == 0:
                    write_durably(here / "state", b"%d" % number, files)
                    files.rename(here / "state", here / f"state-{number % 3}")
            log.sync()
        expected = contents(here)
        while min(int(path.stem) for path in volume.glob("*.object")) == 1:
            time.sleep(0.01)  # the snapshot goes on
    shutil.rmtree(here)
    assert restored(replicas, there) == expected


def test_files_outside_are_passed_on(replicas: ServiceThread, tmp_path: Path) -> None:
    here, outside = tmp_path / "here", tmp_path / "outside"
    outside.mkdir()
    with replicated(replicas, here) as files:
        write_durably(outside / "file", b"x", files)
        with pytest.raises(OSError, match="Only one"):
            files.rename(outside / "file", here / "file")
        with pytest.raises(OSError, match="Only one"):
            files.link(outside / "file", here / "file")
        assert files.names(here) == [MARKER]
    assert HOST_FILES.read(outside / "file") == b"x"


def test_files_of_other_processes_in_an_adopted_folder_are_journalled_when_its_names_are_synced(
    replicas: ServiceThread, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    adopted = {"rounds": (AdoptedFolder("state"), AdoptedFolder("rounds/places", is_rewritten=True))}
    state, places = here / "state" / "task", here / "rounds" / "places"
    with replicated_host(here, "v", replicas.options(), only=("rounds", "state"), adopted=adopted) as host:
        files = host.files
        make_directory(here / "rounds", files)
        make_directory(here / "logs", files)
        write_durably(here / "logs" / "other", b"not replicated", files)
        state.mkdir(parents=True)
        places.mkdir()
        (state / "whole").write_bytes(b"x" * 3_000_000)
        (state / "begun").write_bytes(b"beg")
        (places / "a.json").write_bytes(b"1")
        write_durably(here / "rounds" / "1", b"names them", files)
        (state / "begun").write_bytes(b"begun")
        (state / "gone").write_bytes(b"")
        write_durably(here / "rounds" / "2", b"names them", files)
        (state / "gone").unlink()
        (places / "a.json").write_bytes(b"2")
        write_durably(here / "rounds" / "3", b"names them", files)
        (state / "later").write_bytes(b"of an epoch that is not decided")
        assert pickle.loads(pickle.dumps(files)) is not files
    found = restored(replicas, there)
    assert {name: data for name, data in found.items() if not name.endswith("/")} == {
        "rounds/1": b"names them",
        "rounds/2": b"names them",
        "rounds/3": b"names them",
        "rounds/places/a.json": b"2",
        "state/task/whole": b"x" * 3_000_000,
        "state/task/begun": b"begun",
    }
