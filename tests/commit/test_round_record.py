"""The round record on disk is complete or refused, is kept long enough, and is deleted in the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.commit.round_files import RoundRecords
from procession.commit.round_record import (
    ROUNDS_KEPT,
    RoundRecord,
    SinkShare,
    next_positions,
)
from procession.errors import StorageError

U64 = st.integers(0, 2**64 - 1)
PARTS = st.dictionaries(st.text("ab-_9", min_size=1, max_size=4), st.builds(SinkShare, st.text(max_size=9), U64, U64))
ROUNDS = st.builds(
    RoundRecord, U64, U64, st.text(), U64, U64, PARTS, st.dictionaries(U64, U64), st.dictionaries(st.text(), U64)
)


@given(record=ROUNDS)
def test_a_record_passes_through_json_unchanged(record: RoundRecord) -> None:
    assert RoundRecord.from_json(record.to_json()) == record


def record_of(epoch: int) -> RoundRecord:
    return RoundRecord(epoch, 1, "f", 0, 5, {"a": SinkShare("t", 0, 5)}, {7: 3}, {"records_in": 5})


def test_written_records_are_read_one_by_one_and_all_together(tmp_path: Path) -> None:
    rounds = RoundRecords(tmp_path / "rounds")
    assert rounds.read_all() == {}
    assert rounds.read(3) is None
    for epoch in (9, 10, 3):
        rounds.write(record_of(epoch))
    assert rounds.read(3) == record_of(3)
    assert list(rounds.read_all()) == [3, 9, 10]


def test_every_truncated_record_is_refused_and_its_epoch_is_named(tmp_path: Path) -> None:
    rounds = RoundRecords(tmp_path)
    rounds.write(record_of(3))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(StorageError, match="is damaged") as caught:
            rounds.read(3)
        assert "epoch 3 cannot be decided" in caught.value.next_step


@pytest.mark.parametrize("content", [b"null", b"[]", b"7", b'{"epoch": 3}', b'"x"'])
def test_json_that_is_not_a_round_record_is_refused(tmp_path: Path, content: bytes) -> None:
    rounds = RoundRecords(tmp_path)
    rounds.write(record_of(3))
    next(tmp_path.iterdir()).write_bytes(content)
    with pytest.raises(StorageError, match="is damaged"):
        rounds.read_all()


def test_as_many_records_are_kept_as_spark_keeps_commits(tmp_path: Path) -> None:
    rounds = RoundRecords(tmp_path)
    for epoch in range(ROUNDS_KEPT + 10):
        (tmp_path / f"{epoch:020d}").write_bytes(record_of(epoch).to_json())
    rounds.drop_before(ROUNDS_KEPT + 9)
    assert list(rounds.read_all()) == list(range(9, ROUNDS_KEPT + 10))


def positions_of(positions: dict[int, int]) -> RoundRecord:
    return RoundRecord(0, 1, "f", 0, 5, {}, positions)


def test_a_record_repeats_the_positions_of_the_last_one_that_a_gateway_may_not_have() -> None:
    last = positions_of({1: 10, 2: 20, 3: 30})
    assert next_positions(None, None, [{1: 5}]) == {1: 5}
    assert next_positions(last, None, [{4: 0}]) == {1: 10, 2: 20, 3: 30, 4: 0}
    assert next_positions(last, positions_of({1: 10, 2: 19}), [{4: 0}, {3: 31}]) == {2: 20, 3: 31, 4: 0}
    assert next_positions(last, last, []) == {}


@given(epochs=st.lists(st.tuples(st.dictionaries(st.integers(1, 5), st.integers(1, 3)), st.booleans()), max_size=12))
def test_a_gateway_that_gets_some_of_the_records_knows_every_position(
    epochs: list[tuple[dict[int, int], bool]],
) -> None:
    """Each epoch advances some streams, and either every gateway receives its record or none does."""
    committed: dict[int, int] = {}
    known: dict[int, int] = {}
    last = acknowledged = None
    for steps, is_heard in epochs:
        changes = {stream_id: committed.get(stream_id, 0) + step for stream_id, step in steps.items()}
        committed |= changes
        last = positions_of(next_positions(last, acknowledged, [changes]))
        if is_heard:
            known |= last.positions
            acknowledged = last
            assert known == committed


def test_the_positions_of_all_records_are_combined(tmp_path: Path) -> None:
    rounds = RoundRecords(tmp_path / "rounds")
    for epoch, positions in enumerate(({1: 10, 2: 20}, {2: 21}, {3: 30})):
        rounds.write(RoundRecord(epoch, 1, "f", 0, 5, {}, positions))
    assert rounds.positions(1) == {1: 10, 2: 21}
    assert rounds.positions(2) == {1: 10, 2: 21, 3: 30}
