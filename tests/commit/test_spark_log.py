"""Spark's log: the newest file counts, old files may be missing, and other names are ignored."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from procession.commit.spark_log import SparkLog
from procession.errors import RoundError, StorageError

WHOLE = {"offsets": 'v1\n{}\n{"gateway-0": 7}', "commits": "v1\n{}"}


def put(directory: Path, part: str, *names: str) -> None:
    (directory / part).mkdir(exist_ok=True)
    for name in names:
        (directory / part / name).write_text(WHOLE[part])


def test_an_empty_checkpoint_has_offered_and_committed_nothing(tmp_path: Path) -> None:
    log = SparkLog(tmp_path)
    assert (log.offered, log.committed) == (-1, -1)
    log.check()
    assert not log.is_committed(0)
    log.await_decided(lambda: None)


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
    with pytest.raises(StorageError, match=r"Cannot read .*offsets/2"):
        SparkLog(tmp_path).sync_offsets(2)
    with pytest.raises(StorageError, match=r"Cannot read .*commits/2"):
        SparkLog(tmp_path).sync_commit(2)


def test_what_spark_wrote_is_relied_on_only_as_a_new_file_of_ours(tmp_path: Path) -> None:
    """Spark's own file may have been synced in vain before, by whomever."""
    put(tmp_path, "commits", "3")
    path = tmp_path / "commits" / "3"
    with path.open("rb") as sparks:
        SparkLog(tmp_path).sync_commit(3)
        assert os.fstat(sparks.fileno()).st_ino != path.stat().st_ino
        assert sparks.read() == path.read_bytes()


@pytest.mark.parametrize("cut", range(len(WHOLE["commits"])))
def test_a_truncated_commit_decides_nothing(tmp_path: Path, cut: int) -> None:
    put(tmp_path, "commits", "3")
    (tmp_path / "commits" / "4").write_text(WHOLE["commits"][:cut])
    log = SparkLog(tmp_path)
    assert log.committed == 3
    assert not log.is_committed(4)
    with pytest.raises(StorageError, match="not whole") as caught:
        asyncio.run(log.until_committed(4))
    assert not caught.value.next_step, "whoever starts again decides that it is not there"
    with pytest.raises(StorageError, match="not whole"):
        log.sync_commit(4)


def test_the_helper_waits_until_the_driver_has_put_the_newest_commit_on_disk(tmp_path: Path) -> None:
    put(tmp_path, "commits", "3", "4")
    log = SparkLog(tmp_path)
    log.sync_commit(3)
    polls = []

    def observe() -> None:
        polls.append(log.decided)
        if len(polls) == 3:
            log.sync_commit(4)

    log.await_decided(observe)
    assert polls == [3, 3, 3]
    put(tmp_path, "commits", "5")
    with pytest.raises(RoundError, match="epoch 5"):
        log.await_decided(lambda: None, timeout_s=0)
