"""Spark's log as we read it: the newest counts, old files may be gone, other names are none of ours."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from procession.commit.sparklog import SparkLog
from procession.errors import StorageError


def put(directory: Path, part: str, *names: str) -> None:
    (directory / part).mkdir(exist_ok=True)
    for name in names:
        (directory / part / name).write_text("v1\n")


def test_an_empty_checkpoint_has_offered_and_committed_nothing(tmp_path: Path) -> None:
    log = SparkLog(tmp_path)
    assert (log.offered, log.committed) == (-1, -1)
    log.check()
    assert not log.is_committed(0)
    log.sync_newest_commit()


def test_the_newest_file_counts_by_number_and_sparks_temporary_files_do_not(tmp_path: Path) -> None:
    put(tmp_path, "offsets", "9", "10", ".11.7c1b.tmp", "12.compact", "metadata")
    put(tmp_path, "commits", "9", ".10.aa.tmp")
    log = SparkLog(tmp_path)
    assert (log.offered, log.committed) == (10, 9)
    log.check()


def test_an_epoch_whose_file_was_purged_is_committed_if_a_later_one_is(tmp_path: Path) -> None:
    put(tmp_path, "commits", "100", "101")
    log = SparkLog(tmp_path)
    assert log.is_committed(3)
    assert log.is_committed(101)
    assert not log.is_committed(102)


def test_the_wait_for_a_commit_ends_when_it_is_there_and_not_for_another(tmp_path: Path) -> None:
    put(tmp_path, "commits", "4", ".5.aa.tmp")

    async def wait() -> None:
        waiting = asyncio.create_task(SparkLog(tmp_path).until_committed(5))
        await asyncio.wait([waiting], timeout=0.05)
        assert not waiting.done()
        (tmp_path / "commits" / ".5.aa.tmp").rename(tmp_path / "commits" / "5")
        await asyncio.wait_for(waiting, 10)

    asyncio.run(wait())


def test_a_sync_of_what_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    put(tmp_path, "offsets", "1")
    SparkLog(tmp_path).sync_offsets(1)
    with pytest.raises(StorageError, match=r"Cannot sync .*offsets/2"):
        SparkLog(tmp_path).sync_offsets(2)
    with pytest.raises(StorageError, match=r"Cannot sync .*commits/2"):
        SparkLog(tmp_path).sync_commit(2)
