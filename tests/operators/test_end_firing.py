"""The ends of a stage's input: what is stored from epoch to epoch, and the row that represents an end."""

from __future__ import annotations

from collections.abc import Iterable

from procession.operators.end_firing import find_ends, row_of_end
from procession.operators.end_of_input import ENDS, EndCondition, EndOfInput, StreamChange
from procession.planner.keys import NO_KEY
from tests.operators.test_operator import MemoryStates

STREAM = 7


class TouchedStates(MemoryStates):
    """States that record which of them were changed."""

    def __init__(self) -> None:
        super().__init__()
        self.touched: list[bytes] = []

    def touch(self, keys: Iterable[bytes]) -> None:
        self.touched += keys


def test_an_end_is_recognized_by_the_state_of_an_earlier_epoch() -> None:
    states, condition = TouchedStates(), EndCondition(("lines",))
    assert find_ends(condition, states, [StreamChange(1, STREAM, False, 5), StreamChange(1, 8, False, 9)]) == []
    assert states.touched == [ENDS]
    assert find_ends(condition, states, [StreamChange(4, STREAM, True, 3)]) == []
    assert find_ends(condition, states, [StreamChange(6, 8, True, 3)]) == [EndOfInput(6, 8, 9)]


def test_an_epoch_without_changes_touches_no_state() -> None:
    states = TouchedStates()
    assert find_ends(EndCondition(("lines",)), states, []) == []
    assert (states.touched, dict(states)) == ([], {})


def test_the_row_of_an_end_has_its_place_its_time_and_its_stream() -> None:
    end = EndOfInput(6, STREAM, 90)
    row = row_of_end((6, 2), end, is_carrying=True)
    assert [column.tolist() for column in row.order] == [[6], [2]]
    assert row.times.tolist() == [90]
    assert row.keys.to_pylist() == [NO_KEY]
    assert row.columns.to_pylist() == [{"key": NO_KEY, "event_time": 90, "stream_id": STREAM, "message_id": 0}]
    assert row_of_end((6, 2), end, is_carrying=False).columns is None
