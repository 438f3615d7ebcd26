"""Tables that change under a running pipeline: all tasks of an epoch read one version, and a repeated epoch reads the
same one, even if the file has changed."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from procession import Pipeline, tables
from procession.commit.round_files import RoundRecords
from procession.commit.round_record import RoundRecord
from procession.driver.table_versions import FIRST, TableRefresh
from procession.errors import StorageError
from procession.planner.graph import Graph
from procession.planner.rules import make_plan
from procession.runtime.host_files import HOST_FILES
from procession.sos.replicated_files import ReplicatedFiles
from procession.spark.tasks import Task, TaskTables
from procession.storage.table_copies import TableCopies, check_copy
from tests.commit.test_replicated_checkpoint import FakeQuorum
from tests.operators.reference import batch_of
from tests.spark.cluster import run_epoch, write_log, written


def write(path: Path, *words: str) -> None:
    """Write a version that differs from the one before in its size, or at least in its time."""
    path.write_text("".join(json.dumps({"id": "k", "word": word}) + "\n" for word in words))


@dataclass
class World:
    """A pipeline's directory, without processes."""

    directory: Path
    graph: Graph
    refresh: TableRefresh
    said: list[str]
    fence: int = 0

    @property
    def table(self) -> Path:
        return self.directory / "table.jsonl"

    def restarted(self) -> World:
        refresh = TableRefresh.of(self.graph, self.directory / "sides", self.said.append, self.fence + 1)
        last = RoundRecords(self.directory / "rounds").read_all()
        refresh.begin(last[max(last)].sides if last else {})
        return World(self.directory, self.graph, refresh, self.said, self.fence + 1)

    def run(self, epoch: int, attempt: int = 0) -> set[bytes]:
        """Run an epoch of ten records and four tasks, and return the table rows that the records were joined with."""
        plan = make_plan(self.graph)
        rounds = RoundRecords(self.directory / "rounds")
        runs = self.directory / f"runs-{attempt}"
        tables = TaskTables(self.refresh.copies.directory, rounds, self.refresh.first)
        task = Task(plan, self.directory / "log", runs, tables=tables)
        manifests = run_epoch(task, epoch, 10 * epoch, 10 * epoch + 10, random.Random(epoch))
        assert [manifest.failure for manifest in manifests if manifest.failure] == []
        return set(written(plan, runs, [manifests])["out"].splitlines())

    def commit(self, epoch: int) -> None:
        rounds = RoundRecords(self.directory / "rounds")
        before = rounds.read(epoch - 1)
        known = before.sides if before is not None else {}
        record = RoundRecord(epoch, 1, "", 0, 0, {}, sides=self.refresh.current(known))
        rounds.write(record)
        self.refresh.drop(known, record.sides)


@pytest.fixture
def world(tmp_path: Path) -> World:
    write(tmp_path / "table.jsonl", "one")
    write_log(tmp_path / "log", batch_of([b"k"] * 100))
    side = tables.of_json_lines(tmp_path / "table.jsonl", by="id", refresh=True)
    pipeline = Pipeline("p", parallelism=4)
    joined = pipeline.source().hash_join(side, key=bytes.decode, join=lambda value, row: row["word"].encode())
    joined.sink("out", to="file:out")
    graph = pipeline.graph()
    sentences: list[str] = []
    return World(tmp_path, graph, TableRefresh.of(graph, tmp_path / "sides", sentences.append), sentences).restarted()


def test_i5_an_epoch_that_is_run_again_reads_the_table_that_it_read_before(world: World) -> None:
    assert world.run(0) == {b"one"}
    write(world.table, "two!")
    assert world.run(0, attempt=1) == {b"one"}
    world.commit(0)
    assert world.run(1) == {b"two!"}
    write(world.table, "three")
    again = world.restarted()
    assert again.run(1, attempt=2) == {b"two!"}
    again.commit(1)
    assert again.run(2) == {b"three"}


def test_the_first_version_is_kept_when_the_driver_is_replaced(world: World) -> None:
    write(world.table, "two!")
    assert world.restarted().run(0) == {b"one"}


def test_a_version_that_cannot_be_read_is_reported_once_and_the_previous_one_stays_in_use(world: World) -> None:
    world.commit(0)
    world.table.write_text("{")
    world.commit(1)
    world.commit(2)
    assert world.run(2) == world.run(3) == {b"one"}
    (message,) = world.said
    assert "the previous version stays in use" in message
    world.table.unlink()
    world.commit(3)
    assert world.run(4) == {b"one"}
    write(world.table, "whole again")
    world.commit(4)
    assert world.run(5) == {b"whole again"}


def test_copies_that_no_epoch_needs_are_removed(world: World) -> None:
    for epoch in range(5):
        write(world.table, *["more"] * (epoch + 2))
        world.commit(epoch)
    world = world.restarted()
    assert (
        len(list(world.refresh.copies.directory.iterdir())) == 2
    )  # the last version, and the note of which was the first
    assert (world.refresh.copies.directory / FIRST).exists()
    assert world.run(5) == {b"more"}


def test_a_table_that_never_existed_is_an_error(tmp_path: Path, world: World) -> None:
    world.table.unlink()
    gone = TableRefresh.of(world.graph, tmp_path / "elsewhere", print)
    with pytest.raises(StorageError, match="is missing"):
        gone.begin({})


def test_a_file_that_changes_while_it_is_copied_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "table", "one")
    fsync = os.fsync

    def changing(descriptor: int) -> None:
        fsync(descriptor)
        with (tmp_path / "table").open("a") as file:
            file.write("more")

    copies = TableCopies(tmp_path / "copies")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", changing)
        assert copies.take(tmp_path / "table") is None
    assert list(copies.directory.iterdir()) == []
    name = copies.take(tmp_path / "table")
    assert name is not None
    assert (copies.directory / name).read_bytes() == (tmp_path / "table").read_bytes()
    assert copies.take(tmp_path / "table") == name


def test_a_damaged_copy_of_a_table_is_found_and_named(tmp_path: Path) -> None:
    (tmp_path / "table.jsonl").write_bytes(b'{"id": "a"}' * 100)
    copies = TableCopies(tmp_path / "copies")
    name = copies.take(tmp_path / "table.jsonl")
    assert name is not None
    assert copies.take(tmp_path / "table.jsonl") == name
    check_copy(copies.directory / name)
    check_copy.cache_clear()
    with open(copies.directory / name, "r+b") as file:
        file.seek(500)
        file.write(b"?")
    with pytest.raises(StorageError, match=f"{name} is damaged") as caught:
        check_copy(copies.directory / name)
    assert "restore" in caught.value.next_step
    (copies.directory / name).unlink()
    with pytest.raises(StorageError, match="Cannot read the copy of a table"):
        check_copy(copies.directory / name)
    check_copy(copies.directory / "0a1b2c3d-17-1100.jsonl")  # named by a version without checksums


def test_a_driver_neither_removes_nor_uses_copies_of_a_later_driver(tmp_path: Path) -> None:
    table = tmp_path / "table"
    table.write_bytes(b"one")
    older, later = TableCopies(tmp_path / "copies", 4), TableCopies(tmp_path / "copies", 5)
    before, made = older.take(table), later.take(table)
    assert before is not None
    assert made is not None
    assert before != made, "a replaced driver may remove its own copies"
    assert later.take(table, before) == before, (
        "the version in a round record is valid as long as the table is the same"
    )
    older.sweep([])
    assert {path.name for path in (tmp_path / "copies").iterdir()} == {before, made}
    later.sweep([])
    assert {path.name for path in (tmp_path / "copies").iterdir()} == {made}


def test_with_replicas_a_changed_choice_for_the_first_epoch_is_stored_too(world: World) -> None:
    quorum, sides = FakeQuorum(), world.directory / "sides"
    files = ReplicatedFiles(HOST_FILES, world.directory, quorum, only=("sides",))
    files.begin()
    write(world.table, "two!")
    (sides / FIRST).unlink()  # as for a table that is new in the program
    refresh = TableRefresh.of(world.graph, sides, world.said.append, 2, files)
    refresh.begin({})
    files.sync_directory(sides)
    restored = quorum.restore(world.directory / "there") / "sides" / FIRST
    assert restored.read_bytes() == (sides / FIRST).read_bytes()
    assert json.loads(restored.read_text())["tables"] == refresh.first
