"""A rollback after later commits changes nothing unless all sinks can remove output and the log has the input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from procession import faults
from procession.commit.checkpoint import ROLLBACK, check_rolled_back
from procession.connectors.sink_rollback import SinkPlace
from procession.deployment.run_details import DETAILS
from procession.errors import ConfigError
from procession.gateway.gateway_directory import load_snapshot, save_snapshot
from procession.gateway.snapshot import Position, Snapshot
from procession.savepoints.rollback import roll_back
from procession.savepoints.savepoint import Savepoint
from procession.savepoints.savepoint_create import create
from procession.sdk.transaction_log import Transaction, TransactionLog
from procession.storage.log import IngressLog
from procession.verify.decisions import DecisionReader
from tests.savepoints.test_upgrade_steps import STATES, Place
from tests.walk.test_rollback import STEPS


def describe(place: Place, url: str = "file:out") -> None:
    sink = {"url": url, "instance": "p-out-0", "directory": str(place.files / "out"), "base": str(place.files)}
    (place.directory / DETAILS).write_text(json.dumps({"sink_places": {"out": sink}}))


def write_output(directory: Path) -> None:
    """Write the output of two epochs: ten bytes, then one."""
    directory.mkdir()
    txnlog = TransactionLog(directory / "p-out-0.txnlog")
    txnlog.open()
    for epoch, (start, end) in enumerate([(0, 10), (10, 11)]):
        txnlog.vote(Transaction(f"t{epoch}", start, end), True)
        txnlog.decide(f"t{epoch}", True)
    txnlog.close()
    (directory / "p-out-0.data").write_bytes(b"x" * 11)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return a pipeline after its second epoch, with a savepoint of the first."""
    found = Place(tmp_path)
    describe(found)
    write_output(tmp_path / "out")
    return found


def saved(place: Place, name: str = "good") -> Savepoint:
    """Create a savepoint of the first epoch, and commit another epoch."""
    with IngressLog(place.directory / "gateway" / "log", committed_end=2) as log:
        offsets = json.dumps({"gateway-0": log.offset(2).as_json()})
    (place.checkpoint.directory / "offsets" / "0").write_text(f"v1\n{{}}\n{offsets}")
    made = create(place.directory, name)
    place.commit(1, end=4)
    save_snapshot(place.directory / "gateway", Snapshot(1, 1, 4, 4, {3: Position("words", 3)}))
    return made


def files_of(place: Place) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in place.files.rglob("*") if path.is_file()}


def test_states_offsets_and_output_are_those_of_the_savepoint_and_no_number_decreases(place: Place) -> None:
    savepoint = saved(place)
    result = roll_back(place.directory, savepoint)
    assert (result.epoch, result.epochs, result.records, result.sinks) == (0, 1, 2, {"out": 10})
    last = DecisionReader(place.directory / "checkpoint").last()
    assert last is not None
    assert (last.epoch, dict(last.offsets), last.parts["out"].end) == (1, {"gateway-0": 2}, 10)
    assert place.states("counted") == STATES
    snapshot = load_snapshot(place.directory / "gateway")
    assert snapshot == Snapshot(
        1, 1, 2, 4, {3: Position("words", 3)}
    )  # producers were told 3 and may have deleted these records
    assert (place.files / "out" / "p-out-0.data").read_bytes() == b"x" * 10
    assert place.accepted() == ["old"]


@contextmanager
def killed_at(step: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kill the command in this block when it reaches the step."""

    def kill(name: str) -> None:
        if name == step:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(faults, "point", kill)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.mark.parametrize("step", STEPS)
def test_a_rollback_that_is_killed_at_any_step_is_finished_by_the_same_command(
    place: Place, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    savepoint = saved(place)
    with killed_at(step, monkeypatch):
        roll_back(place.directory, savepoint)
    assert place.accepted() == []
    assert roll_back(place.directory, savepoint).records == 2
    assert place.states("counted") == STATES
    assert place.accepted() == ["old"]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("kafka://localhost:9092/topic", r"sink 'out' \(kafka\) cannot take output back"),
        ("postgres://localhost/db?table=t", r"sink 'out' \(postgres\) cannot take output back"),
        (None, "where sink 'out' writes is not known here"),
    ],
)
def test_a_sink_that_cannot_remove_output_is_named_and_nothing_changes(place: Place, url: str | None, why: str) -> None:
    savepoint = saved(place)
    if url is None:
        (place.directory / DETAILS).unlink()
        savepoint = replace(savepoint, manifest={**savepoint.manifest, "sink_places": {}})
    else:
        describe(place, url)
    before = files_of(place)
    with pytest.raises(ConfigError, match=rf"Epochs 1 to 1 were committed.*{why}"):
        roll_back(place.directory, savepoint)
    assert files_of(place).keys() - {str(place.files / "out" / "LOCK")} >= before.keys()
    assert {path: data for path, data in files_of(place).items() if path in before} == before


def test_the_error_names_the_streams_whose_input_the_log_has_deleted(place: Place) -> None:
    savepoint = saved(place)
    for path in (place.directory / "gateway" / "log").glob("*.segment"):
        path.unlink()
    with pytest.raises(ConfigError, match="the later records of streams words are not in the log any more"):
        roll_back(place.directory, savepoint)
    check_rolled_back(place.directory / "checkpoint")


def test_a_gateway_on_another_machine_is_named(place: Place) -> None:
    savepoint = saved(place)
    record = place.checkpoint.rounds.read(1)
    assert record is not None
    place.checkpoint.rounds.write(replace(record, ends={"gateway-0": 4, "gateway-1": 2}))
    with pytest.raises(ConfigError, match="the log of gateway-1 is on another machine"):
        roll_back(place.directory, savepoint)


def test_a_savepoint_of_epochs_that_were_rolled_back_is_refused_and_another_of_its_name_is_not(place: Place) -> None:
    first = saved(place)
    second = create(place.directory, "second")
    roll_back(place.directory, first)
    with pytest.raises(ConfigError, match="was made in epochs that were rolled back since"):
        roll_back(place.directory, second)
    second.drop()
    assert roll_back(place.directory, create(place.directory, "second")).epochs == 0


def test_while_a_rollback_is_not_finished_no_driver_starts_and_no_other_rollback(place: Place) -> None:
    first = saved(place)
    other = create(place.directory, "other")
    (place.directory / "checkpoint" / ROLLBACK).write_text(json.dumps({"format": 1, "savepoint": "good"}))
    assert place.accepted() == []
    with pytest.raises(ConfigError, match="A rollback to savepoint 'good' was interrupted"):
        roll_back(place.directory, other)
    roll_back(place.directory, first)
    assert place.accepted() == ["old"]


def test_the_target_of_a_sink_is_found_from_any_directory(tmp_path: Path) -> None:
    def target(url: str) -> str:
        document: dict[str, Any] = {"url": url, "instance": "i", "directory": "d", "base": str(tmp_path)}
        return SinkPlace.of("out", document).target

    assert target("delta:table") == str(tmp_path / "table")
    assert target("delta:s3://bucket/table") == "s3://bucket/table"
