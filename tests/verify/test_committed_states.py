"""Committed states: those of the last committed round are read for any kind of stage, also while a driver replaces
files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from procession.cli.state_command import state_app
from procession.commit.round_record import RoundRecord
from procession.errors import ConfigError, StorageError, UsageError
from procession.planner.keys import PLAIN_KEYS
from procession.verify import committed_states as reading
from procession.verify.committed_states import committed_states
from tests.verify.stored_pipeline import StoredPipeline


@pytest.fixture
def pipeline(tmp_path: Path) -> StoredPipeline:
    return StoredPipeline(tmp_path)


def command(pipeline: StoredPipeline, *arguments: str) -> str:
    result = CliRunner().invoke(state_app, [*arguments, "--dir", str(pipeline.directory)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_states_of_the_last_committed_epoch_are_found_listed_and_exported(
    pipeline: StoredPipeline, tmp_path: Path
) -> None:
    keys = {number: PLAIN_KEYS.encode(number) for number in range(1000)}
    pipeline.write("totals", {key: number for number, key in keys.items()})
    pipeline.commit()
    pipeline.write("totals", {keys[number]: None if number % 2 else {"n": number} for number in range(10)})
    pipeline.commit()
    pipeline.write("totals", {keys[0]: "not committed"})

    expected = {number: number for number in range(10, 1000)} | {number: {"n": number} for number in range(0, 10, 2)}
    (stage,) = committed_states(pipeline.directory).values()
    assert {entry["key"]: entry["state"] for entry in stage.scan()} == expected
    assert stage.count() == len(expected)
    assert [stage.find(keys[number]) for number in (0, 1, 999)] == [[{"n": 0}], [], [999]]

    (listed,) = json.loads(command(pipeline, "list", "--json"))["stages"]
    assert (listed["stage"], listed["keys"], listed["epoch"]) == ("totals", len(expected), 1)
    assert "totals" in command(pipeline, "list")
    assert command(pipeline, "get", "totals", "999") == "999\n"
    assert len(command(pipeline, "scan", "totals", "--limit", "7").splitlines()) == 7
    command(pipeline, "export", "totals", str(tmp_path / "x.parquet"))
    rows = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert {int(row["key"]): json.loads(row["state"]) for row in rows} == expected


def test_timers_and_watermarks_of_a_stage_are_not_keys(pipeline: StoredPipeline) -> None:
    key = PLAIN_KEYS.encode(("a", 1))
    names = [b"w", b"i", b"e", b"t5/0", b"b", b"s"]
    pipeline.write("windows", {b"k" + key: [1, {"n": 2}]} | {name: [0] for name in names})
    pipeline.commit()
    (stage,) = committed_states(pipeline.directory).values()
    assert list(stage.scan()) == [{"key": ["a", 1], "state": [1, {"n": 2}]}]
    assert command(pipeline, "get", "windows", '["a", 1]') == '[1, {"n": 2}]\n'


def test_states_are_read_correctly_while_a_driver_replaces_files(
    pipeline: StoredPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = PLAIN_KEYS.encode("a")
    pipeline.write("totals", {key: 1})
    pipeline.commit()
    opened = reading._opened

    def replaced_first(last: RoundRecord, states: Path) -> Any:
        if last.epoch == 0:
            names = last.states["totals"].names
            pipeline.write("totals", {key: 2})
            pipeline.commit()
            for name in names:
                (states / name).unlink()
        return opened(last, states)

    monkeypatch.setattr(reading, "_opened", replaced_first)
    assert committed_states(pipeline.directory)["totals"].find(key) == [2]


def test_damage_wrong_names_and_a_missing_pipeline_are_reported_in_one_sentence(
    pipeline: StoredPipeline, tmp_path: Path
) -> None:
    assert "no stage" in command(pipeline, "list")
    pipeline.write("totals", {PLAIN_KEYS.encode("a"): 1})
    pipeline.commit()
    with pytest.raises(UsageError, match="no stage 'total' with a state"):
        command(pipeline, "get", "total", "a")
    missing = CliRunner().invoke(state_app, ["get", "totals", "b", "--dir", str(tmp_path)])
    assert (missing.exit_code, missing.stdout) == (1, "")
    (tmp_path / "x").write_text("mine")
    with pytest.raises(UsageError, match="Cannot write"):
        command(pipeline, "export", "totals", str(tmp_path / "x"))
    assert (tmp_path / "x").read_text() == "mine"
    for file in pipeline.states.iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(StorageError, match="damaged"):
        command(pipeline, "list")
    with pytest.raises(ConfigError, match="not the checkpoint"):
        committed_states(tmp_path / "nowhere")
