"""The driver's files, as executors on other machines read them, and the state files that executors send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from procession.commit.log_locations import LogLocations
from procession.commit.round_files import RoundRecords
from procession.commit.round_record import RoundRecord
from procession.driver.executor_files import OffsetsLayout, SharedRounds
from procession.errors import ConfigError, RoundError, StorageError
from procession.spark.task_state import TaskStateStore
from procession.spark.tasks import TaskTables
from procession.storage.file_service import FileService
from procession.storage.flight_reader import FlightAccess
from procession.storage.host_runs import DIRECTORY_VARIABLE
from procession.storage.log_ranges import LogLocation, LogOffset, LogRange
from procession.storage.shared_files import PIECE_BYTES, Folder, SharedFiles
from procession.storage.state_version import StateVersion, file_prefix
from procession.storage.table_copies import TableCopies
from tests.certificates import Authority
from tests.spark.cluster import Remembered

COOKIE = b"secret"
FENCE = 3


@pytest.fixture
def folders(tmp_path: Path) -> dict[Folder, Path]:
    found = {folder: tmp_path / "driver" / folder for folder in Folder}
    for path in found.values():
        path.mkdir(parents=True)
    return found


@pytest.fixture
def service(folders: dict[Folder, Path]) -> Iterator[FileService]:
    started = FileService(folders, FENCE, COOKIE, "127.0.0.1:0")
    yield started
    started.shutdown()


@pytest.fixture
def files(service: FileService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedFiles:
    """Return the driver's files on a machine with executors."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "host"))
    return SharedFiles(service.location, "0a1b", FlightAccess(COOKIE), patience_s=0.0)


def state_name(fence: int = FENCE, task: int = 0, epoch: int = 5, stage: str = "stage") -> str:
    return f"{file_prefix(fence, stage, task, epoch, 7)}-0.state"


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, 2 * PIECE_BYTES + 1])
def test_a_file_comes_as_it_is_and_only_once(files: SharedFiles, folders: dict[Folder, Path], size: int) -> None:
    data = bytes(number % 251 for number in range(size))
    (folders[Folder.TABLES] / "table").write_bytes(data)
    assert files.read(Folder.TABLES, "table") == data
    copy = files.copied(Folder.TABLES, ["table"]) / "table"
    assert copy.read_bytes() == data
    (folders[Folder.TABLES] / "table").unlink()
    assert files.copied(Folder.TABLES, ["table"]) == copy.parent, "the machine has its own copy"
    assert [path.name for path in copy.parent.iterdir()] == ["table"]


def test_a_state_file_is_on_the_drivers_disk_when_it_was_sent(files: SharedFiles, folders: dict[Folder, Path]) -> None:
    name = state_name()
    written = files.directory(Folder.STATES) / name
    written.write_bytes(b"states" * PIECE_BYTES)
    files.put_state(name)
    files.put_state(name)  # the answer to the first was lost
    assert (folders[Folder.STATES] / name).read_bytes() == written.read_bytes()
    assert [path.name for path in folders[Folder.STATES].iterdir()] == [name]
    written.write_bytes(b"other")
    with pytest.raises(StorageError, match="there is another file"):
        files.put_state(name)


@pytest.mark.parametrize("name", [state_name(fence=2), f"{FENCE:010d}-x.state", "x", f"{state_name()}x"])
def test_only_new_state_files_of_this_driver_are_taken(
    files: SharedFiles, folders: dict[Folder, Path], name: str
) -> None:
    (files.directory(Folder.STATES) / name).write_bytes(b"x")
    with pytest.raises(StorageError, match="is not the name of a new state file of this driver"):
        files.put_state(name)
    assert list(folders[Folder.STATES].iterdir()) == []


def test_only_files_of_the_folders_are_sent_and_only_to_clients_with_the_secret(
    files: SharedFiles, folders: dict[Folder, Path]
) -> None:
    (folders[Folder.ROUNDS].parent / "secret").write_bytes(b"x")
    for name in ("../secret", "..", ".hidden", ""):
        with pytest.raises(StorageError, match="there is no file"):
            files.read(Folder.ROUNDS, name)
    with pytest.raises(StorageError, match="cannot be read: No such file"):
        files.read(Folder.ROUNDS, "none")
    with pytest.raises(StorageError, match="wrong cookie"):
        replace(files, access=FlightAccess(b"other")).read(Folder.ROUNDS, "none")


def test_a_driver_that_does_not_answer_fails_the_task_which_is_tried_again(
    files: SharedFiles, service: FileService
) -> None:
    service.shutdown()
    with pytest.raises(RoundError, match=r"The driver at .* does not answer"):
        files.read(Folder.ROUNDS, "x")


def test_over_tls_a_file_is_the_same(files: SharedFiles, folders: dict[Folder, Path], tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    service = FileService(folders, FENCE, COOKIE, "127.0.0.1:0", authority.server())
    (folders[Folder.TABLES] / "table").write_bytes(b"rows")
    try:
        trusting = replace(files, location=service.location, access=FlightAccess(COOKIE, authority.client()))
        assert trusting.read(Folder.TABLES, "table") == b"rows"
    finally:
        service.shutdown()


def test_a_port_that_is_taken_is_a_sentence(service: FileService, folders: dict[Folder, Path]) -> None:
    with pytest.raises(ConfigError, match="Cannot serve the driver's files at"):
        FileService(folders, FENCE, COOKIE, f"127.0.0.1:{service.port}")


def test_tasks_read_the_round_records_of_the_driver(files: SharedFiles, folders: dict[Folder, Path]) -> None:
    version = StateVersion((((state_name(), 3),),), "kind")
    record = RoundRecord(4, FENCE, "", 0, 0, {}, states={"stage": version}, sides={"table": "copy"})
    RoundRecords(folders[Folder.ROUNDS]).write(record)
    rounds = SharedRounds(files)
    assert (rounds.states(4), rounds.sides(4)) == ({"stage": version}, {"table": "copy"})
    with pytest.raises(StorageError, match="No such file"):
        rounds.states(5)


def test_states_continue_at_another_machine_after_the_first_is_lost(
    files: SharedFiles, folders: dict[Folder, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = Remembered()
    store = TaskStateStore(folders[Folder.STATES], versions, FENCE, shared=files, is_warm=False)
    for epoch in range(4):
        monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / f"host-{epoch % 2}"))
        states = store.open("stage", 0, 1, epoch, 1)
        known = states.take([b"key", b"other"])
        assert known.get(b"key", 0) == epoch
        known[b"key"] = epoch + 1
        states.touch([b"key"])
        files_now = store.finish(states)
        assert all((folders[Folder.STATES] / name).exists() for name, _ in files_now)
        versions.versions[epoch] = {"stage": StateVersion((files_now,), "kind")}
        kept = {path.name for path in files.directory(Folder.STATES).iterdir()}
        before = versions.versions[epoch - 1]["stage"].names if epoch else set()
        assert kept == {name for name, _ in files_now} | before, "no older version is kept"


def test_the_states_of_another_task_are_not_forgotten(files: SharedFiles) -> None:
    names = [state_name(), state_name(task=1), state_name(stage="stage-000000"), state_name(epoch=6)]
    directory = files.directory(Folder.STATES)
    for name in names:
        (directory / name).touch()
    files.forget_states("stage-000000", {names[3]})
    assert {path.name for path in directory.iterdir()} == set(names[1:])


def test_tables_reach_a_machine_that_has_not_the_file(
    files: SharedFiles, folders: dict[Folder, Path], tmp_path: Path
) -> None:
    path = tmp_path / "table.jsonl"
    copies = TableCopies(folders[Folder.TABLES], FENCE)
    names = []
    for text in ("old", "new and longer"):
        path.write_text(text)
        names.append(copies.take(path) or "")
    RoundRecords(folders[Folder.ROUNDS]).write(RoundRecord(0, FENCE, "", 0, 0, {}, sides={str(path): names[1]}))
    tables = TaskTables(tmp_path / "not here", SharedRounds(files), {str(path): names[0]}, files)
    for epoch, text in enumerate(("old", "new and longer")):
        (copy,) = tables.of(epoch).values()
        assert copy.read_text() == text
        assert [found.name for found in files.directory(Folder.TABLES).iterdir()] == [names[epoch]]


def test_a_task_finds_where_the_records_of_an_epoch_are(files: SharedFiles, folders: dict[Folder, Path]) -> None:
    for epoch, ends in ((0, {"gateway": 5}), (1, {"gateway": [9, "a", "c"], "gateway-1": [4, "b", "d"]})):
        (folders[Folder.OFFSETS] / str(epoch)).write_text(f"v1\n{{}}\n{json.dumps(ends)}\n")
    places = {name: LogLocation(f"/{name}/log", name, f"grpc+tcp://{name}:1") for name in ("gateway", "gateway-1")}
    for name, place in places.items():
        LogLocations(folders[Folder.GATEWAYS].parent).keep(name, place)
    layout = OffsetsLayout(files)
    assert layout.ranges(0) == (0, (LogRange("gateway", 0, 5, places["gateway"], LogOffset(5)),))
    first, ranges = layout.ranges(1)
    assert first == 5
    assert [(found.gateway, found.first, found.last, found.place) for found in ranges] == [
        ("gateway", 5, 9, places["gateway"]),
        ("gateway-1", 0, 4, places["gateway-1"]),
    ]
    assert ranges[1].offered == LogOffset(4, "b", "d")
