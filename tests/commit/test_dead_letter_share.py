"""Dead letters are counted, and stop the pipeline above a share of the records."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.commit.dead_letter_share import DeadLetterLimit, judged
from procession.errors import PlanError

LIMIT = DeadLetterLimit("dead", share_max=0.5, records_min=100)
LETTER = json.dumps({"stage": "parse", "error": "ValueError: no", "message_id": 7, "stream_id": 3}).encode()


def epoch(before: Mapping[str, int], records: int, letters: int, limit: DeadLetterLimit = LIMIT) -> dict[str, int]:
    counters = {**before, "records_in": before.get("records_in", 0) + records}
    return judged(before, counters, limit, letters, lambda: LETTER)


def test_without_dead_letters_nothing_is_reported() -> None:
    assert epoch({}, 100, 0) == {"records_in": 100}
    assert epoch({"records_in": 7, "late": 1}, 5, 0) == {"records_in": 12, "late": 1, "block_records": 5}


def test_one_bad_first_record_does_not_stop_a_pipeline() -> None:
    counters = epoch({}, 1, 1)
    assert counters["dead_letters"] == 1
    counters = epoch(counters, 98, 98)
    with pytest.raises(PlanError):
        epoch(counters, 1, 1)


def test_the_error_names_the_share_the_setting_and_the_first_reason() -> None:
    with pytest.raises(PlanError) as caught:
        epoch({}, 200, 150)
    sentence = caught.value.explain()
    assert "150 of 200 records were set aside" in sentence
    assert "0.5" in sentence
    assert "dead_letter_share_max" in sentence
    assert "stage 'parse' raised ValueError: no on message 7 of stream 3" in sentence
    assert caught.value.next_step


def test_a_late_mistake_is_found_within_the_minimum_of_records_plus_an_epoch() -> None:
    counters = epoch({}, 1_000_000, 10)
    for _ in range(9):
        counters = epoch(counters, 10, 10)
    with pytest.raises(PlanError):
        epoch(counters, 10, 10)


def test_exactly_the_share_is_accepted_and_a_share_of_1_accepts_all_dead_letters() -> None:
    assert epoch({}, 100, 50)["dead_letters"] == 50
    whatever = DeadLetterLimit("dead", share_max=1.0, records_min=1)
    assert epoch({}, 10, 25, whatever)["dead_letters"] == 25
    with pytest.raises(PlanError):
        epoch({}, 10, 1, DeadLetterLimit("dead", share_max=0.0, records_min=1))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=30))
def test_the_pipeline_stops_exactly_when_a_block_of_enough_records_has_too_many_dead_letters(
    epochs: list[tuple[int, int]],
) -> None:
    counters: dict[str, int] = {}
    records = letters = total = 0
    for came, refused in epochs:
        records, letters, total = records + came, letters + refused, total + refused
        is_over = records >= 100 and min(letters, records) > records / 2
        if is_over:
            with pytest.raises(PlanError):
                epoch(counters, came, refused)
            return
        counters = epoch(counters, came, refused)
        assert counters.get("dead_letters", 0) == total
        if records >= 100:
            records = letters = 0
