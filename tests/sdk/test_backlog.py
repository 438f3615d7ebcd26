"""Backlogs in memory and on disk, compared with a slow reference; and spools that are lost, older or of another
stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession.errors import StorageError
from procession.sdk import backlog as backlog_module
from procession.sdk.backlog import Backlog, Buffer, Spool
from procession.sdk.source_records import Batch, Stream

ONE = Stream(1, "one")


def batch_of(payloads: list[bytes], keys: list[bytes] | None = None, first_id: int = 0) -> Batch:
    ids = list(range(first_id, first_id + len(payloads)))
    return Batch.gathered(ids, [7] * len(payloads), keys or [b""] * len(payloads), payloads)


def read_all(backlog: Backlog, after: int | None) -> list[tuple[int, bytes, bytes]]:
    """Read to the end, as a reader does."""
    found: list[tuple[int, bytes, bytes]] = []
    while batch := backlog.read(after):
        batch.check(ONE, after)
        keys = [b""] * len(batch) if batch.keys is None else batch.keys.to_pylist()
        found += zip(batch.message_ids.tolist(), keys, batch.payloads.to_pylist(), strict=True)
        assert set(batch.event_times.tolist()) == {7}
        after = found[-1][0]
    return found


KINDS: dict[str, Callable[[Path], Backlog]] = {
    "buffer": lambda _: Buffer(),
    "spool": lambda path: Spool(path, segment_bytes_max=600),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(steps=st.lists(st.one_of(st.lists(st.binary(max_size=9), min_size=1, max_size=6), st.floats(0, 1)), max_size=20))
def test_uncommitted_records_can_be_read_again_from_any_record(
    tmp_path_factory: pytest.TempPathFactory, kind: str, steps: list[list[bytes] | float]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backlog_module, "READ_RECORDS_MAX", 5)
        backlog = KINDS[kind](tmp_path_factory.mktemp("spool"))
        backlog.open(None)
        kept: list[tuple[int, bytes, bytes]] = []
        everything: list[bytes] = []
        base, done = None, None
        for step in steps:
            if isinstance(step, list):
                keys = [b"k%d" % len(payload) for payload in step] if len(step) % 2 else None
                backlog.append(batch_of(step, keys))
                backlog.sync()
                kept += zip(range(len(everything), 99999), keys or [b""] * len(step), step, strict=False)
                everything += step
            elif kept:
                number = kept[int(step * (len(kept) - 1))][0]
                done = number + (base or 0)
                backlog.forget(done)
                backlog.open(done)
                kept = [entry for entry in kept if entry[0] > number]
            found = read_all(backlog, done)
            if found and base is None:
                base = found[0][0] - kept[0][0]
            assert found == [(number + (base or 0), key, payload) for number, key, payload in kept]
            for message_id, *_ in found:
                assert read_all(backlog, message_id) == [result for result in found if result[0] > message_id]
            assert bool(backlog.size_bytes) == bool(kept)
            assert backlog.records == len(kept)
        backlog.close()


def test_a_buffer_numbers_its_records_above_the_gateways_last_id() -> None:
    buffer = Buffer()
    buffer.append(batch_of([b"a", b"b"]))
    buffer.forget(10**18)
    assert buffer.records == 2, "an id of an earlier run does not apply to these"
    assert buffer.is_unnumbered
    buffer.number_above(41)
    buffer.open(7)
    assert not buffer.is_unnumbered
    assert [entry[0] for entry in read_all(buffer, 7)] == [42, 43]
    buffer.number_above(99)
    assert [one[0] for one in read_all(buffer, None)] == [42, 43]


def test_a_buffer_keeps_the_given_ids_of_records() -> None:
    buffer = Buffer(has_ids=True)
    buffer.append(batch_of([b"a", b"b", b"c"], first_id=10))
    buffer.open(10)
    assert [message_id for message_id, *_ in read_all(buffer, 10)] == [11, 12]
    assert [message_id for message_id, *_ in read_all(buffer, None)] == [10, 11, 12]


def test_the_records_of_a_spool_survive_its_process(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.append(batch_of([b"a", b"b"]))
    spool.sync()
    spool.open(None)
    spool.close()
    again = Spool(tmp_path / "spool")
    again.open(0)
    again.append(batch_of([b"c"]))
    again.sync()
    assert [payload for *_, payload in read_all(again, 0)] == [b"b", b"c"]
    again.close()


def test_the_error_for_a_damaged_spool_names_it_and_a_next_step(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", segment_bytes_max=1)
    for _ in range(2):
        spool.append(batch_of([b"a"]))
        spool.sync()
    spool.close()
    first = min((tmp_path / "spool").glob("*.segment"))
    first.write_bytes(first.read_bytes()[:-1] + b"?")
    with pytest.raises(StorageError, match="The source's spool is damaged") as caught:
        Spool(tmp_path / "spool")
    assert "--spool" in caught.value.next_step
    assert str(first) in caught.value.next_step
    first.unlink()
    min((tmp_path / "spool").glob("*.segment")).unlink()
    Spool(tmp_path / "spool").close()


def test_unsynced_records_are_not_read(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.append(batch_of([b"a"]))
    assert spool.read(None) is None
    spool.sync()
    assert spool.read(None) is not None
    spool.close()


def test_a_spool_gives_up_its_space_when_its_records_are_committed(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", segment_bytes_max=4096)
    for number in range(100):
        spool.append(batch_of([b"x" * 500]))
        spool.sync()
        spool.forget(number)
        assert sum(path.stat().st_size for path in (tmp_path / "spool").iterdir()) < 3 * 4096
    spool.close()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_spool_that_was_lost_is_refused_however_many_records_came_since(tmp_path: Path, is_restarted: bool) -> None:
    """The records arrive before the gateway answers. Without the check, the first ones would count as the committed
    ones."""
    (tmp_path / "spool").mkdir()
    spool = Spool(tmp_path / "spool")
    spool.append(batch_of([b"new"] * 5))
    spool.sync()
    if is_restarted:
        spool.close()
        spool = Spool(tmp_path / "spool")
    with pytest.raises(StorageError, match="has sent at most 0 records, but 3 are committed") as caught:
        spool.open(2)
    assert "Put back the spool" in caught.value.next_step
    spool.close()


def test_an_older_copy_of_a_spool_is_refused_when_records_come_before_the_answer(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.append(batch_of([b"old"] * 2))
    spool.sync()
    spool.open(None)
    spool.close()
    copy = Spool(tmp_path / "spool")
    copy.append(batch_of([b"new"] * 5))
    copy.sync()
    with pytest.raises(StorageError, match="has sent at most 2 records, but 4 are committed"):
        copy.open(3)
    copy.close()


def test_a_spool_that_does_not_belong_to_the_stream_is_refused(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", segment_bytes_max=100)
    for _ in range(3):
        spool.append(batch_of([b"x" * 100]))
    spool.sync()
    spool.open(None)
    assert len(read_all(spool, None)) == 3
    with pytest.raises(StorageError, match="has sent at most 3 records, but 4 are committed") as caught:
        spool.open(3)
    assert caught.value.next_step
    spool.open(2)
    spool.forget(2)
    with pytest.raises(StorageError, match="begins with record 2, but only 0 are committed") as caught:
        spool.open(None)
    assert caught.value.next_step
    spool.close()
