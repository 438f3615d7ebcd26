"""What a claim of a checkpoint does, for every combination of files that a crash can leave in its directory.

A driver writes `pipeline.json`, then `CURRENT`, then a draft of its copy, then the copy. An upgrade writes `CHANGE`
between the draft and the copy. A rollback has `ROLLBACK` there from its beginning to its end.
"""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from procession.commit.checkpoint import CHANGE, PIPELINE, ROLLBACK, Checkpoint, read_pipeline
from procession.commit.round_files import RoundRecords
from procession.commit.round_record import RoundRecord
from procession.errors import ConfigError, PlanError, ProcessionError, StorageError
from procession.storage.driver_claim import CURRENT

OLD, NEW = "old program", "new program"


@dataclass(frozen=True)
class Left:
    """The files that were left. Copy N is that of driver N, which has committed the epochs below N."""

    current: int | None
    """The last driver that has claimed the checkpoint."""
    has_pipeline: bool
    copies: tuple[int, ...]
    draft: int | None
    """A copy that is not complete."""
    change: int | None
    """The copy that belongs to a change that was not finished."""
    has_rollback: bool


ALL = [
    Left(*values)
    for values in itertools.product(
        (None, 1, 2), (False, True), ((), (1,), (2,), (1, 2)), (None, 1, 2, 3), (None, 1, 2), (False, True)
    )
    if values[3] not in values[2]
]
"""A draft becomes its copy by a rename, so there is one or the other."""


def name_of(fence: int) -> str:
    return f"{fence:010d}"


def described(fingerprint: str) -> dict[str, object]:
    return {"format": 2, "name": "p", "id": "one", "fingerprint": fingerprint, "doors": {}, "codecs": {}}


def lay(root: Path, left: Left) -> None:
    root.mkdir()
    (root / "LOCK").touch()
    for name in (PIPELINE, CURRENT):
        (root / f"{name}.123.draft").write_text("{")  # a write that was cut off
    if left.current is not None:
        (root / CURRENT).write_text(f"{left.current}\n")
    if left.has_pipeline:
        (root / PIPELINE).write_text(json.dumps(described(OLD)))
    if left.change is not None:
        (root / CHANGE).write_text(json.dumps({"fence": left.change, "pipeline": described(NEW)}))
    if left.has_rollback:
        (root / ROLLBACK).write_text(json.dumps({"savepoint": "monday"}))
    for fence in left.copies:
        copy = root / name_of(fence)
        for part, text in (("offsets", "v1\n{}\n{}"), ("commits", "v1\n{}")):
            (copy / part).mkdir(parents=True)
            for epoch in range(fence):
                (copy / part / str(epoch)).write_text(text)
        (copy / "rounds").mkdir()
        for epoch in range(fence):
            record = RoundRecord(epoch, fence, OLD, 0, 0, {})
            (copy / "rounds" / f"{epoch:020d}").write_bytes(record.to_json())
    if left.draft is not None:
        (root / f"{name_of(left.draft)}.draft" / "offsets").mkdir(parents=True)


def claim(root: Path, fingerprint: str) -> Checkpoint:
    return Checkpoint.claim(root, name="p", fingerprint=fingerprint, new_id=lambda: "another")


def content(root: Path, *, without: tuple[str, ...] = ()) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name not in without
    }


def program(left: Left) -> str | None:
    """The program that the files belong to: that of a change once its copy is there; None: there is no pipeline."""
    if left.change in left.copies:
        return NEW
    return OLD if left.has_pipeline else None


def refusal(left: Left) -> tuple[type[ProcessionError], str] | None:
    """Return who must act and what the sentence names, or None if the pipeline can start."""
    if left.has_rollback:
        return ConfigError, "rollback of this pipeline to savepoint 'monday' was interrupted"
    if program(left) is None and left.copies:
        return ConfigError, "not empty and not a checkpoint"
    if left.copies and max(left.copies) > (left.current or 0):
        return StorageError, "CURRENT is damaged"
    return None


@pytest.mark.parametrize("copies", [(), (1,), (2,), (1, 2)], ids=str)
@pytest.mark.parametrize("current", [None, 1, 2])
def test_every_combination_of_files_has_one_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, current: int | None, copies: tuple[int, ...]
) -> None:
    for name in ("fsync", "fdatasync"):  # the files are laid out as they are; nothing is lost here
        monkeypatch.setattr(os, name, lambda _: None)
    for number, left in enumerate(each for each in ALL if (each.current, each.copies) == (current, copies)):
        root = tmp_path / str(number)
        lay(root, left)
        before = content(root, without=(CHANGE, PIPELINE))
        its_program, fence = program(left), (left.current or 0) + 1
        if (refused := refusal(left)) is not None:
            kind, sentence = refused
            with pytest.raises(kind) as caught:
                claim(root, its_program or OLD)
            assert sentence in caught.value.sentence, left
            assert caught.value.next_step, left
            assert content(root, without=(CHANGE, PIPELINE)) == before, left
            continue
        if its_program is not None:
            with pytest.raises(PlanError):
                claim(root, NEW if its_program == OLD else OLD)
            assert content(root, without=(CHANGE, PIPELINE)) == before, left
        if left.draft == fence:  # of a driver that is not in CURRENT: not by a crash
            with pytest.raises(StorageError, match="copy the checkpoint"):
                claim(root, its_program or OLD)
            fence += 1
        claimed = claim(root, its_program or OLD)
        assert (claimed.fence, (root / CURRENT).read_text()) == (fence, f"{fence}\n"), left
        assert claimed.id == ("another" if its_program is None else "one"), left
        assert read_pipeline(root)["fingerprint"] == (its_program or OLD), left
        assert not (root / CHANGE).exists(), left
        last = max(copies, default=0)
        assert (claimed.log.offered, claimed.log.committed) == (last - 1, last - 1), left
        assert set(RoundRecords(claimed.directory / "rounds").read_all()) == set(range(last)), left
        kept = {name_of(each) for each in (last, fence) if each}
        drafts = {f"{name_of(left.draft)}.draft"} if left.draft is not None and left.draft > fence else set()
        assert {path.name for path in root.iterdir() if path.is_dir()} == kept | drafts, left


CONTENTS = ["", "{", "[]", "{}", "x", "7"]


@pytest.mark.parametrize("text", CONTENTS)
@pytest.mark.parametrize("name", [CURRENT, PIPELINE, CHANGE, ROLLBACK])
def test_a_damaged_file_is_refused_with_a_sentence_and_nothing_is_changed(tmp_path: Path, name: str, text: str) -> None:
    root = tmp_path / "checkpoint"
    lay(root, Left(2, True, (2,), None, None, False))
    (root / name).write_text(text)
    if (name, text) == (CURRENT, "7"):
        assert claim(root, OLD).fence == 8
        return
    before = content(root)
    with pytest.raises(StorageError) as caught:
        claim(root, OLD)
    assert name in caught.value.sentence
    assert caught.value.next_step
    assert content(root) == before
