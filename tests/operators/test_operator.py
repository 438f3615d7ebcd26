"""The operator protocol: the properties that hold for every kind of operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from procession import Pipeline, aggregates, patterns, windows
from procession.operators.operator import Operator, OperatorRows, StateObject
from procession.operators.stage_rows import StageRows
from procession.operators.value_codec import PLAIN
from procession.planner.keys import KeyCodec

NS = 10**9
KEYS = KeyCodec()


class MemoryStates(dict[bytes, Any]):
    """The states of one task, in memory. `store_and_read` has the effect of the end of an epoch and a new worker."""

    serial = 0
    keys_max = 10**9

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def take(self, keys: Sequence[bytes]) -> dict[bytes, Any]:
        return self

    def touch(self, keys: Any) -> None:
        pass

    def spill(self) -> None:
        pass

    def all_keys(self) -> Iterator[list[bytes]]:
        yield list(self)

    def plain(self, name: bytes) -> Any:
        state = self[name]
        return state.stored() if isinstance(state, StateObject) else state

    def store_and_read(self) -> None:
        self.serial += 1
        for name in self:
            self[name] = PLAIN.decoded_value(PLAIN.packed(self.plain(name)))


def total(state: int, value: Any) -> tuple[int, int]:
    return state + 1, state + 1


def last_first(state: list[Any], value: Any) -> tuple[list[Any], list[Any]]:
    return [value, *state], [value, *state]


def joined(left: Any, right: Any) -> Any:
    return [left, right]


def is_tenth(value: str) -> bool:
    return value == "v10"


def timed(state: int, value: Any, context: Any) -> tuple[int, list[Any]]:
    context.timer_at(context.time + 2)
    return state + 1, [value]


def at_timer(state: int, context: Any) -> tuple[int | None, list[Any]]:
    return (state + 1 if state < 6 else None), [[context.key, context.time, state]]


PIPELINES: dict[str, Any] = {
    "map_stateful": lambda stage: stage.map_stateful(total, key=str, initial=0),
    "flat_map_stateful": lambda stage: stage.flat_map_stateful(last_first, key=str, initial=list),
    "distinct": lambda stage: stage.distinct(str),
    "expiring": lambda stage: stage.map_stateful(total, key=str, initial=0, ttl_s=2, on_evict=joined),
    "tumbling": lambda stage: stage.window(windows.tumbling(2), aggregates.collect(), key=str, early_records=2),
    "sliding": lambda stage: stage.window(windows.sliding(4, every_s=2), aggregates.collect(), key=str),
    "session": lambda stage: stage.window(windows.session(1), aggregates.collect(), key=str, lateness_s=1),
    "counting": lambda stage: stage.window(windows.counting(3), aggregates.collect(), key=str),
    "join": lambda stage: stage.join(stage, within_s=3, join=joined, key=str, outer=True),
    "process": lambda stage: stage.process(timed, on_timer=at_timer, key=str, initial=0),
    "match": lambda stage: stage.match(patterns.begin("any", bool).without(is_tenth), within_s=4, key=str, skip="none"),
    "aggregate": lambda stage: stage.aggregate(aggregates.collect(), key=str),
    "sort": lambda stage: stage.sort(str),
}


def operator_of(kind: str) -> Operator:
    pipeline = Pipeline("p")
    PIPELINES[kind](pipeline.source(ends=True)).sink("out", to="file:out", codec="json")
    (operator,) = [node.operator for node in pipeline.graph().nodes if node.operator is not None]
    return operator


def rows_of(kind: str, numbers: Sequence[int]) -> OperatorRows:
    """Return one record for each number, with one of three keys, at times half a second apart."""
    values: list[Any] = [[number % 2, f"v{number}"] if kind == "join" else f"v{number}" for number in numbers]
    keys = KEYS.column([f"k{number * 7 % 3}" for number in numbers])
    times = np.array([number * NS // 2 for number in numbers], np.int64)
    return OperatorRows(StageRows(values, keys=keys), times, np.zeros(len(numbers), bool))


def refuse(row: int, error: Exception) -> None:
    raise error


def output(operator: Operator, kind: str, calls: Sequence[Sequence[int]], *, is_stored: bool) -> list[Any]:
    """Return what the operator emits for records with these numbers, one call each, and then at the end."""
    states = MemoryStates()
    found: list[Any] = []
    for numbers in calls:
        found += operator.add(states, rows_of(kind, numbers), refuse).as_list()
        if is_stored:
            states.store_and_read()
    return found + [value for results in operator.end(states) for *_, value in results]


@pytest.mark.parametrize("kind", PIPELINES)
def test_neither_calls_nor_states_that_are_stored_and_read_again_change_the_output(kind: str) -> None:
    operator, numbers = operator_of(kind), list(range(24))
    whole = output(operator, kind, [numbers], is_stored=False)
    assert whole
    assert output(operator, kind, [numbers[:5], numbers[5:6], numbers[6:]], is_stored=False) == whole
    assert output(operator, kind, [[number] for number in numbers], is_stored=True) == whole


@pytest.mark.parametrize("kind", PIPELINES)
def test_an_advance_of_the_watermark_fires_due_results_only_in_stages_that_use_it(kind: str) -> None:
    operator, states = operator_of(kind), MemoryStates()
    before = operator.add(states, rows_of(kind, range(3)), refuse).as_list()
    fired = [value for results in operator.fire(states, 10**6) for *_, value in results]
    rest = [value for results in operator.end(states) for *_, value in results]
    assert bool(fired) == (kind in {"expiring", "tumbling", "sliding", "session", "join", "process", "match"})
    assert [*before, *fired, *rest] == output(operator, kind, [range(3)], is_stored=False)


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        ("tumbling", [[0, 2 * NS, 1, ["v0"]]]),
        ("sliding", [[-2 * NS, 2 * NS, 1, ["v0"]], [0, 4 * NS, 1, ["v0"]]]),
        ("session", [[0, NS, 1, ["v0"]]]),
        ("counting", [0, 0, 1, ["v0"]]),
        ("expiring", [2 * NS, 1]),
        ("join", [[[0, "v0", False]], []]),
        ("process", [1, [2 * NS]]),
        ("match", [[0, 0, 0, [["v0"]]]]),
        ("aggregate", [1, ["v0"]]),
    ],
)
def test_a_state_is_stored_as_in_earlier_versions(kind: str, stored: Any) -> None:
    states = MemoryStates()
    operator_of(kind).add(states, rows_of(kind, [0]), refuse)
    assert states.plain(b"k" + KEYS.encode("k0")) == stored


def test_a_record_that_a_late_rule_refuses_leaves_the_states_as_they_were() -> None:
    operator, states, late = operator_of("tumbling"), MemoryStates(), []
    operator.add(states, rows_of("tumbling", [20]), refuse)
    before = {name: states.plain(name) for name in states}
    found = operator.add(states, rows_of("tumbling", [1]), lambda row, error: late.append((row, type(error).__name__)))
    assert late == [(0, "LateRecord")]
    assert not len(found)
    assert {name: states.plain(name) for name in states} == before


def test_a_tick_moves_the_watermark_and_is_not_a_record() -> None:
    operator, states = operator_of("tumbling"), MemoryStates()
    operator.add(states, rows_of("tumbling", [0]), refuse)
    tick = OperatorRows(
        StageRows([None], keys=pa.array([b"k9"], pa.binary())), np.array([5 * NS], np.int64), np.array([True])
    )
    (result,) = operator.add(states, tick, refuse).as_list()
    assert result["value"] == ["v0"]
    assert not [name for name in states if name.startswith(b"k")]
