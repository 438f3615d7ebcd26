"""Where a driver continues, for every combination of files that a crash can leave in its copy of the checkpoint."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from procession.commit.recovery import recover
from procession.commit.round_record import RoundRecord, SinkShare
from procession.errors import StorageError

EPOCHS = (0, 1, 2)
FILES = ("none", "torn", "whole")
"""The possible states of a file after a crash: missing, truncated, or complete."""
OFFSETS, COMMITS = b"v1\n{}\n{}", b"v1\n{}"


def record(epoch: int) -> RoundRecord:
    return RoundRecord(epoch, 1, "f", epoch * 10, epoch * 10 + 10, {"out": SinkShare(f"t{epoch}", epoch, epoch + 1)})


def lay(directory: Path, offsets: int, commits: int, last_commit: str, rounds: str, attempts: int | None) -> None:
    """Write the files of a checkpoint.

    `offsets` and `commits` are the numbers of epochs with such a file. `last_commit` is the state of the commit file
    after these.
    """
    for part, count, data in (("offsets", offsets, OFFSETS), ("commits", commits, COMMITS)):
        (directory / part).mkdir(parents=True)
        for epoch in range(count):
            (directory / part / str(epoch)).write_bytes(data)
    if last_commit != "none":
        (directory / "commits" / str(commits)).write_bytes(COMMITS[: None if last_commit == "whole" else -1])
    (directory / "rounds").mkdir()
    for epoch, file in enumerate(rounds.split()):
        if file != "none":
            data = record(epoch).to_json()
            (directory / "rounds" / f"{epoch:020d}").write_bytes(data if file == "whole" else data[:-1])
    if attempts is not None:
        (directory / "attempts.json").write_text(json.dumps({"format": 1, "reserved": attempts}))


@pytest.mark.parametrize("offsets", range(4))
@pytest.mark.parametrize("commits", range(3))
@pytest.mark.parametrize("last_commit", FILES)
def test_every_combination_of_files_has_one_outcome(
    tmp_path: Path, offsets: int, commits: int, last_commit: str
) -> None:
    """`rounds/N` is written before `commits/N`. So a committed epoch without a complete round record is refused, and a
    round record after the last commit decides nothing."""
    committed = commits if last_commit == "whole" else commits - 1
    for number, rounds in enumerate(itertools.product(FILES, repeat=len(EPOCHS))):
        for attempts in (None, 200):
            directory = tmp_path / f"{number}-{attempts}"
            lay(directory, offsets, commits, last_commit, " ".join(rounds), attempts)
            is_readable = "torn" not in rounds and (committed < 0 or rounds[committed] == "whole")
            if offsets - 1 - committed not in (0, 1) or not is_readable:
                with pytest.raises(StorageError) as caught:
                    recover(directory)
                assert caught.value.next_step
                continue
            found = recover(directory)
            assert found.committed == committed
            assert found.undecided == (None if offsets - 1 == committed else committed + 1)
            whole = {epoch: record(epoch) for epoch in EPOCHS if rounds[epoch] == "whole" and epoch <= committed}
            assert found.rounds == whole
            assert found.last == whole.get(committed)
            assert found.reserved == (200 if attempts else committed + 1)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format":1}'])
def test_a_damaged_file_of_attempts_is_refused_with_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "attempts.json").write_text(content)
    with pytest.raises(StorageError, match="damaged"):
        recover(tmp_path)
