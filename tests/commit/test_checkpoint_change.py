"""Changes of a checkpoint are atomic at every interruption, are fenced, and never reuse numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from procession.commit.checkpoint import CHANGE, Checkpoint, read_pipeline
from procession.commit.checkpoint_change import change_checkpoint
from procession.commit.recovery import recover
from procession.commit.round_record import RoundRecord
from procession.errors import ConfigError, FencedError, ProcessionError
from procession.runtime.host_files import HOST_FILES


class Killed(Exception):
    pass


class Interrupted:
    """The machine's files, which stop working after a number of changes."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(HOST_FILES, name)
        if name not in ("rename", "open", "make_directory", "remove", "remove_tree"):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls -= 1
            if self.calls < 0:
                raise Killed
            return found(*arguments, **options)

        return call


def claim(root: Path, fingerprint: str) -> Checkpoint:
    return Checkpoint.claim(root, name="app", fingerprint=fingerprint)


def begun(root: Path) -> Checkpoint:
    checkpoint = claim(root, "old")
    checkpoint.reserve(50)
    for part in ("offsets", "commits"):
        (checkpoint.directory / part).mkdir()
        (checkpoint.directory / part / "0").write_text("v1\n{}\n{}")
    checkpoint.rounds.write(RoundRecord(0, 1, "old", 0, 9, {}, counters={"records_in": 9}))
    return checkpoint


def change(_checkpoint: Checkpoint, document: dict[str, Any], last: RoundRecord) -> tuple[dict[str, Any], RoundRecord]:
    return {**document, "fingerprint": "new"}, replace(last, fingerprint="new")


def test_a_change_is_read_by_the_next_driver_and_fences_the_last_one(tmp_path: Path) -> None:
    old = begun(tmp_path)
    changed = change_checkpoint(tmp_path, change)
    assert changed.fence == old.fence + 1
    with pytest.raises(FencedError):
        old.check_fence()
    successor = claim(tmp_path, "new")
    found = recover(successor.directory)
    assert found.last is not None
    assert (found.last.fingerprint, found.last.counters, found.reserved) == ("new", {"records_in": 9}, 50)
    assert successor.fence == 3
    assert not (tmp_path / CHANGE).exists()


def test_after_an_interruption_either_the_old_program_or_the_new_one_continues(tmp_path: Path) -> None:
    calls, outcomes = 0, set()
    while True:
        root = tmp_path / str(calls)
        begun(root)
        try:
            change_checkpoint(root, change, files=Interrupted(calls))  # type: ignore[arg-type]
            break
        except Killed:
            pass
        fence = int((root / "CURRENT").read_text())
        accepted = []
        for fingerprint in ("old", "new"):
            try:
                found = recover(claim(root, fingerprint).directory)
            except ProcessionError:
                continue
            assert found.last is not None
            accepted.append((fingerprint, found.last.fingerprint))
            assert found.reserved == 50
        assert len(accepted) == 1
        assert accepted[0][0] == accepted[0][1] == read_pipeline(root)["fingerprint"]
        assert int((root / "CURRENT").read_text()) > fence
        outcomes.add(accepted[0][0])
        calls += 1
    assert outcomes == {"old", "new"}


def test_a_change_that_raises_changes_only_the_fence(tmp_path: Path) -> None:
    begun(tmp_path)

    def refused(*_: Any) -> Any:
        raise ConfigError("no")

    with pytest.raises(ConfigError):
        change_checkpoint(tmp_path, refused)
    assert recover(claim(tmp_path, "old").directory).last is not None
    assert json.loads((tmp_path / "pipeline.json").read_text())["fingerprint"] == "old"


def test_a_pipeline_without_a_commit_has_nothing_to_change(tmp_path: Path) -> None:
    claim(tmp_path, "old")
    with pytest.raises(ConfigError, match="No epoch"):
        change_checkpoint(tmp_path, change)
