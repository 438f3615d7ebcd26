"""Savepoints are complete, pinned against every cleanup, verified, and restored into another directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from procession.cli.savepoint_command import savepoint_app
from procession.commit.checkpoint import Checkpoint, read_pipeline
from procession.commit.recovery import recover
from procession.errors import ConfigError, ProcessionError, StorageError, UsageError
from procession.gateway.gateway_directory import load_snapshot, save_snapshot
from procession.gateway.input_pins import InputPin, InputPins
from procession.gateway.snapshot import Position, Snapshot
from procession.planner.keys import PLAIN_KEYS
from procession.savepoints import savepoint_create as making
from procession.savepoints.savepoint import MANIFEST, clear_drafts, find, link_all, load, savepoints
from procession.savepoints.savepoint_create import create, trial
from procession.savepoints.savepoint_restore import restore
from procession.storage.log import IngressLog
from procession.storage.state_store import StateStore
from procession.verify.committed_states import committed_states
from tests.verify.stored_pipeline import StoredPipeline

KEYS = {number: PLAIN_KEYS.encode(number) for number in range(100)}


@pytest.fixture
def pipeline(tmp_path: Path) -> StoredPipeline:
    found = StoredPipeline(tmp_path / "pipeline")
    found.write("totals", {key: number for number, key in KEYS.items()})
    found.commit()
    return found


def advance(pipeline: StoredPipeline, value: int) -> None:
    """Commit one more epoch, and drop the files that it replaced, as a driver does."""
    before = {name for files in pipeline.versions["totals"] for name, _ in files}
    pipeline.write("totals", dict.fromkeys(KEYS.values(), value))
    pipeline.commit()
    after = {name for files in pipeline.versions["totals"] for name, _ in files}
    StateStore(pipeline.states).drop(before - after)


def totals(directory: Path) -> dict[int, Any]:
    return {entry["key"]: entry["state"] for entry in committed_states(directory)["totals"].scan()}


def command(*arguments: str | Path) -> str:
    result = CliRunner().invoke(savepoint_app, [str(word) for word in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_a_savepoint_keeps_its_states_while_epochs_continue_and_drivers_clean_up(
    pipeline: StoredPipeline, tmp_path: Path
) -> None:
    saved = create(pipeline.directory, "before")
    for value in range(5):
        advance(pipeline, value)
    StateStore(pipeline.states).sweep([], fence=99)
    assert not list(pipeline.states.iterdir())
    assert saved.verify() == len(saved.manifest["files"])
    restore(saved, tmp_path / "other", continues_outputs=False)
    assert totals(tmp_path / "other") == {number: number for number in KEYS}


def test_a_savepoint_costs_no_copy_of_the_states(pipeline: StoredPipeline) -> None:
    saved = create(pipeline.directory, "linked")
    for path in pipeline.states.iterdir():
        assert path.samefile(saved.directory / "state" / path.name)


def test_a_savepoint_uses_an_epoch_that_is_committed_in_the_meantime(
    pipeline: StoredPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    advances = iter([1, 2])

    def slow(source: Path, target: Path, names: Any) -> None:
        if (value := next(advances, None)) is not None:
            advance(pipeline, value)
        link_all(source, target, names)

    monkeypatch.setattr(making, "link_all", slow)
    saved = create(pipeline.directory, "late")
    assert saved.epoch == saved.record.epoch == 2
    assert saved.verify()
    assert [path.name for path in (pipeline.directory / "savepoints").iterdir()] == ["late"]


def test_positions_of_streams_are_those_of_the_round_not_later_ones(pipeline: StoredPipeline) -> None:
    gateway = pipeline.directory / "gateway"
    gateway.mkdir()
    save_snapshot(gateway, Snapshot(1, 0, 7, 9, {3: Position("orders", 40)}))
    assert create(pipeline.directory, "now").snapshot.streams == {3: Position("orders", 40)}
    save_snapshot(gateway, Snapshot(1, 1, 8, 9, {3: Position("orders", 41)}))  # of an epoch that is not there
    with pytest.raises(StorageError):
        create(pipeline.directory, "ahead")
    assert [found.manifest["name"] for found in savepoints(pipeline.directory)] == ["now"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda path: path.write_bytes(path.read_bytes() + b" ")])
def test_every_damaged_file_is_found(
    pipeline: StoredPipeline, damage: Callable[[Path], object], tmp_path: Path
) -> None:
    saved = create(pipeline.directory, "one").copy(tmp_path / "copy")  # no links: the damage stays here
    paths = [saved.directory / name for name in saved.manifest["files"]]
    assert len(paths) > 4
    for path in paths:
        kept = path.read_bytes()
        damage(path)
        with pytest.raises(StorageError):
            saved.verify()
        path.write_bytes(kept)
    saved.verify()


def test_a_copy_is_complete_and_independent(pipeline: StoredPipeline, tmp_path: Path) -> None:
    create(pipeline.directory, "one").copy(tmp_path / "elsewhere")
    find(pipeline.directory, "one").drop()
    assert savepoints(pipeline.directory) == []
    copied = load(tmp_path / "elsewhere")
    assert copied.verify()
    restore(copied, tmp_path / "restored", continues_outputs=False)
    assert totals(tmp_path / "restored") == {number: number for number in KEYS}
    with pytest.raises(UsageError, match="exists already"):
        copied.copy(tmp_path / "restored")


def test_directories_beside_a_copy_or_a_restored_pipeline_are_left_alone(
    pipeline: StoredPipeline, tmp_path: Path
) -> None:
    saved = create(pipeline.directory, "one")
    for name in ("copy.draft", "restored.draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("mine")
    saved.copy(tmp_path / "copy")
    restore(saved, tmp_path / "restored", continues_outputs=False)
    assert (tmp_path / "copy.draft" / "mine").exists()
    assert (tmp_path / "restored.draft" / "mine").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("copy", "copy.draft", "pipeline", "restored", "restored.draft")
    ]


def test_a_copy_that_fails_leaves_nothing(pipeline: StoredPipeline, tmp_path: Path) -> None:
    saved = create(pipeline.directory, "one")
    next((saved.directory / "state").iterdir()).unlink()
    with pytest.raises((StorageError, FileNotFoundError)):
        saved.copy(tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["pipeline"]


@pytest.mark.parametrize("name", ["state/../../../outside", "/outside"])
def test_a_savepoint_that_names_a_file_outside_of_it_is_refused(
    pipeline: StoredPipeline, tmp_path: Path, name: str
) -> None:
    copied = create(pipeline.directory, "one").copy(tmp_path / "copy")
    manifest = json.loads((copied.directory / MANIFEST).read_text())
    manifest["files"][name] = {"bytes": 0}
    (copied.directory / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(StorageError, match="which is not in it"):
        load(copied.directory)


def test_a_restored_pipeline_has_its_own_id_and_continues_after_the_epoch(
    pipeline: StoredPipeline, tmp_path: Path
) -> None:
    pipeline.checkpoint.reserve(4711)
    gateway = pipeline.directory / "gateway"
    gateway.mkdir()
    save_snapshot(gateway, Snapshot(1, 0, 0, 0, {3: Position("orders", 40)}))
    to = tmp_path / "other"
    made = restore(create(pipeline.directory, "one"), to, continues_outputs=True)
    assert made == read_pipeline(to / "checkpoint")["id"] != pipeline.checkpoint.id
    claimed = Checkpoint.claim(to / "checkpoint", name="app", fingerprint="f")
    assert claimed.fence > pipeline.checkpoint.fence
    found = recover(claimed.directory)
    assert (found.committed, found.undecided, found.reserved) == (0, None, 4711)
    snapshot = load_snapshot(to / "gateway")
    assert snapshot is not None
    assert snapshot.streams == {3: Position("orders", 40)}
    with IngressLog(to / "gateway" / "log", committed_end=snapshot.end_sequence) as log:
        assert log.start_sequence == log.next_sequence == snapshot.end_sequence


def test_names_and_empty_pipelines_are_refused_with_a_next_step(pipeline: StoredPipeline, tmp_path: Path) -> None:
    create(pipeline.directory, "one")
    for name in ("one", "", "../up", "a/b", ".hidden", "x" * 65, "y.draft"):
        with pytest.raises(UsageError) as refused:
            create(pipeline.directory, name)
        assert refused.value.next_step
    with pytest.raises(UsageError, match="no savepoint 'two'"):
        find(pipeline.directory, "two")
    empty = StoredPipeline(tmp_path / "empty")
    with pytest.raises(ConfigError, match="No epoch"):
        create(empty.directory, "none")
    with pytest.raises(ProcessionError):
        create(tmp_path / "nowhere", "none")


def test_the_commands_create_list_describe_verify_copy_drop_and_restore(
    pipeline: StoredPipeline, tmp_path: Path
) -> None:
    at = ("--dir", pipeline.directory)
    assert "epoch 0" in command("create", "one", *at)
    (listed,) = json.loads(command("list", *at, "--json"))["savepoints"]
    assert listed == json.loads(command("describe", "one", *at, "--json"))
    assert listed["stages"] == {"totals": "map_stateful"}
    assert json.loads(command("verify", "one", *at, "--json"))["is_intact"]
    command("copy", "one", tmp_path / "copied", *at)
    restored = json.loads(command("restore", tmp_path / "copied", tmp_path / "new", "--json"))
    assert restored["outputs"] == "new"
    assert "one" in command("list", *at)
    command("drop", "one", *at)
    assert command("list", *at) == "there are no savepoints\n"


def test_a_savepoint_that_does_not_know_the_streams_is_not_restored(pipeline: StoredPipeline, tmp_path: Path) -> None:
    record = pipeline.checkpoint.rounds.read(0)
    assert record is not None
    pipeline.checkpoint.rounds.write(replace(record, ends={"gateway-0": 7}))
    with pytest.raises(ConfigError, match="another machine"):
        restore(create(pipeline.directory, "one"), tmp_path / "other", continues_outputs=False)
    assert not (tmp_path / "other").exists()


def test_the_remains_of_a_killed_command_are_removed_by_the_next_savepoint_and_the_next_run(
    pipeline: StoredPipeline,
) -> None:
    left = pipeline.directory / "savepoints" / "killed.draft"
    for clear in (lambda: create(pipeline.directory, "next"), lambda: clear_drafts(pipeline.directory)):
        (left / "state").mkdir(parents=True)
        (left / "state" / "file").write_bytes(b"pinned")
        InputPins(pipeline.directory / "gateway").write(InputPin("killed", 0, 100))
        clear()
        assert not left.exists()
        assert InputPins(pipeline.directory / "gateway").all() == {}


def test_a_trial_lasts_as_long_as_its_process_and_is_not_a_savepoint(pipeline: StoredPipeline) -> None:
    folder = pipeline.directory / "savepoints"
    with trial(pipeline.directory) as tried:
        assert tried.verify() > 0
        create(pipeline.directory, "next")
        assert tried.directory.exists(), "it does not count as that of a killed process"
        assert [savepoint.manifest["name"] for savepoint in savepoints(pipeline.directory)] == ["next"]
        left = tried.copy(folder / "killed.trial")
    assert not tried.directory.exists()
    clear_drafts(pipeline.directory)
    assert not left.directory.exists()
    with pytest.raises(UsageError, match="cannot be the name"):
        create(pipeline.directory, "my.trial")


def test_the_input_is_kept_from_a_position_before_the_epoch_and_released_with_the_savepoint(
    pipeline: StoredPipeline,
) -> None:
    gateway = pipeline.directory / "gateway"
    gateway.mkdir()
    save_snapshot(gateway, Snapshot(1, 0, 7, 9, {3: Position("orders", 40)}))
    with IngressLog(gateway / "log", committed_end=7):
        pass
    saved = create(pipeline.directory, "kept", keep_input=True, keep_input_bytes_max=1000)
    assert InputPins(gateway).all() == {"kept": InputPin("kept", 7, 1000)}
    assert saved.described()["kept_input"] == {"state": "kept", "bytes": 0, "bytes_max": 1000}
    assert create(pipeline.directory, "plain").described()["kept_input"] is None
    saved.drop()
    assert InputPins(gateway).all() == {}


def test_a_name_alone_makes_a_savepoint_and_a_misspelt_command_does_not(pipeline: StoredPipeline) -> None:
    command("before-release", "--dir", pipeline.directory)
    assert [savepoint.manifest["name"] for savepoint in savepoints(pipeline.directory)] == ["before-release"]
    refused = CliRunner().invoke(savepoint_app, ["verfy", "--dir", str(pipeline.directory)])
    assert refused.exit_code != 0
    assert len(savepoints(pipeline.directory)) == 1


def test_the_input_of_a_gateway_on_another_machine_is_not_kept(pipeline: StoredPipeline) -> None:
    gateway = pipeline.directory / "gateway"
    gateway.mkdir()
    save_snapshot(gateway, Snapshot(1, 0, 7, 9))
    record = pipeline.checkpoint.rounds.read(0)
    assert record is not None
    pipeline.checkpoint.rounds.write(replace(record, ends={"gateway-0": 7, "gateway-1": 3}))
    with pytest.raises(ConfigError, match="the log of gateway-1 is on another machine"):
        create(pipeline.directory, "several", keep_input=True)
    assert savepoints(pipeline.directory) == []
    assert InputPins(gateway).all() == {}
