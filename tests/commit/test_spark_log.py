"""Spark's log: the newest file counts, old files may be missing, and files with other names are ignored."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from procession.commit.spark_log import SparkLog, parse_offsets
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


def test_the_wait_for_a_commit_ends_when_its_file_exists_and_not_for_another_file(tmp_path: Path) -> None:
    put(tmp_path, "commits", "4", ".5.aa.tmp")

    async def wait() -> None:
        waiting = asyncio.create_task(SparkLog(tmp_path).until_committed(5))
        await asyncio.wait([waiting], timeout=0.05)
        assert not waiting.done()
        (tmp_path / "commits" / ".5.aa.tmp").rename(tmp_path / "commits" / "5")
        await asyncio.wait_for(waiting, 10)

    asyncio.run(wait())


def test_a_sync_of_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    put(tmp_path, "offsets", "1")
    SparkLog(tmp_path).sync_offsets(1)
    with pytest.raises(StorageError, match=r"Cannot read .*offsets/2"):
        SparkLog(tmp_path).sync_offsets(2)
    with pytest.raises(StorageError, match=r"Cannot read .*commits/2"):
        SparkLog(tmp_path).sync_commit(2)


def test_a_file_of_spark_counts_only_after_it_was_copied_to_a_new_file(tmp_path: Path) -> None:
    """Another process may have synced Spark's own file before, and that sync may have failed."""
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
    with pytest.raises(StorageError, match="is incomplete") as caught:
        asyncio.run(log.until_committed(4))
    assert not caught.value.next_step, "the next start treats it as missing"
    with pytest.raises(StorageError, match="is incomplete"):
        log.sync_commit(4)


def test_offsets_of_another_version_of_sparks_log_are_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "offsets" / "3"
    assert parse_offsets(WHOLE["offsets"].encode(), path)["gateway-0"].sequence == 7
    with pytest.raises(
        StorageError, match=r"offsets/3 has version v2 of Spark's offset log, and Procession reads v1\."
    ) as caught:
        parse_offsets(WHOLE["offsets"].replace("v1", "v2").encode(), path)
    assert caught.value.next_step
    for damaged in ("", "v1", "v", WHOLE["offsets"].removeprefix("v1\n")):
        with pytest.raises(StorageError, match="is damaged"):
            parse_offsets(damaged.encode(), path)


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
