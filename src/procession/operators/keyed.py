"""Keyed stages: a step takes a key's state and a record, and returns the next state and the output.

Invariant: a key's records arrive in order, and a step depends only on its state and its record. The output of a step
never shares objects with the state, which later steps may change. Implements `operators/operator`; the states are in
`storage/state_store`. States that expire are in `operators/expiry`. Pure.

State: under the key itself, the state that the step returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Any

import numpy as np

from procession.operators.aggregates import Aggregate
from procession.operators.column_aggregates import is_count
from procession.operators.operator import OperatorRows, Refuse, Result, StateAccess, StateSpec, UntimedOperator
from procession.operators.stage_rows import Numbers, StageRows, ordinals
from procession.operators.value_codec import PLAIN, ValueCodec
from procession.planner.ownership import SCALARS, own, separate

ABSENT = object()
NO_PAIR = "the function did not return a pair: the next state, and its result or results"
NO_RESULTS = "the function returned None as its results: return a list, an empty one if there are none"

Step = Callable[[Any, Any], tuple[Any, Any]]
"""Takes the state of a key and a record. Returns the next state and a result."""


class StepResult(Enum):
    """The kinds of results of a step."""

    ONE = "a record"
    KEEP = "whether the record is kept"
    MANY = "records"
    FIRST = "nothing: the first record of each key is kept"


@dataclass(frozen=True)
class KeyedOperator(UntimedOperator):
    """A keyed stage. `initial()` is the state of a new key. A step that returns None as the state removes the key."""

    returns: StepResult
    step: Step | None
    initial: Callable[[], Any]

    @property
    def state(self) -> StateSpec:
        return StateSpec(
            function=self.step,
            outputs=output_functions(self.step),
            is_made_by_user=True,
            reads_records=not _is_counting(self.step),
        )

    def add(self, states: StateAccess, rows: OperatorRows, refuse: Refuse) -> StageRows:
        """Run the step on each record. If it raises, the key keeps the state as the step has left it, and a new key
        gets no state."""
        records = rows.records
        assert records.keys is not None
        encoded = records.keys.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        known = states.take(names)
        if _is_counting(self.step):
            return records.with_values(_counted(states, known, names, encoded.indices.to_numpy()))
        slots = encoded.indices.to_pylist()
        if self.returns is StepResult.FIRST:
            kept = _firsts(known, names, slots)
            states.touch([names[slots[row]] for row in kept])
            return records.take(np.asarray(kept, np.int64))
        # A list instead of the dictionary, so that a record needs no hash. None: the key has no state.
        held = list(map(known.get, names))
        values = records.as_list()
        run = _ones if self.returns is StepResult.ONE else _some
        results, picked = run(self, held, slots, values, refuse)
        for name, state in zip(names, held, strict=True):
            if state is None:
                known.pop(name, None)
            else:
                known[name] = state
        states.touch(names)
        return flattened(records, results, picked) if self.returns is StepResult.MANY else records.pick(picked, results)

    def end(self, states: StateAccess) -> Iterator[list[Result]]:
        return iter(())


def explained_error(error: Exception) -> Exception:
    """Return the error. If the function did not return a pair, which Python reports here, returns an error that says
    so."""
    is_raised_here = error.__traceback__ is not None and error.__traceback__.tb_next is None
    return TypeError(NO_PAIR) if is_raised_here and "unpack" in str(error) else error


def flattened(before: StageRows, results: Sequence[Sequence[Any]], rows: Sequence[int] | None) -> StageRows:
    """Return several results for each of these rows (None: all rows), numbered within their row."""
    counts = np.fromiter(map(len, results), np.int64, len(results))
    parents = np.arange(len(results), dtype=np.int64) if rows is None else np.asarray(rows, dtype=np.int64)
    return before.pick(np.repeat(parents, counts), list(chain.from_iterable(results))).numbered(ordinals(counts))


def output_functions(step: Step | None) -> tuple[Callable[..., Any], ...]:
    """Return the user's functions whose results a step returns."""
    aggregate = getattr(step, "__self__", None)
    if isinstance(aggregate, Aggregate):
        return aggregate.create, aggregate.add, aggregate.finish
    return () if step is None else (step,)


def _ones(
    operator: KeyedOperator, held: list[Any], slots: Sequence[int], values: Sequence[Any], refuse: Refuse
) -> tuple[list[Any], list[int] | None]:
    """Run steps that return one record per record. These are the most frequent steps, so this loop has the least
    overhead."""
    results: list[Any] = []
    failed: list[int] = []
    step, initial = operator.step, operator.initial
    assert step is not None
    pairs = zip(slots, values, strict=True)
    while len(results) + len(failed) < len(slots):
        try:
            # After an error, the loop continues with the next record. The number of results gives the row that raised.
            for slot, value in pairs:
                state = held[slot]
                state, result = step(initial() if state is None else state, value)
                # The first test is the fastest, and nearly always decides.
                if type(result) is not bytes and type(result) not in SCALARS and is_open(state):
                    result = own(result)
                held[slot] = state
                results.append(result)
        except Exception as error:  # user code may raise any exception
            failed.append(len(results) + len(failed))
            refuse(failed[-1], explained_error(error))
    if not failed:
        return results, None
    refused = set(failed)
    return results, [row for row in range(len(slots)) if row not in refused]


def _some(
    operator: KeyedOperator, held: list[Any], slots: Sequence[int], values: Sequence[Any], refuse: Refuse
) -> tuple[list[Any], list[int] | None]:
    """Run steps that return any number of records, or whether to keep the record."""
    results: list[Any] = []
    rows: list[int] = []
    step, initial, is_many = operator.step, operator.initial, operator.returns is StepResult.MANY
    assert step is not None
    for row, (slot, value) in enumerate(zip(slots, values, strict=True)):
        state = held[slot]
        try:
            state, result = step(initial() if state is None else state, value)
            if is_many:
                if result is None:
                    raise TypeError(NO_RESULTS)
                result = separate(result, is_held=is_open(state))
            else:
                result = ABSENT if not result else own(value) if is_open(state) else value
        except Exception as error:  # user code may raise any exception
            refuse(row, explained_error(error))
            continue
        held[slot] = state
        if result is not ABSENT:
            results.append(result)
            rows.append(row)
    return results, rows


def _is_counting(step: Step | None) -> bool:
    """Whether a step gives the number of records so far."""
    aggregate = getattr(step, "__self__", None)
    return isinstance(aggregate, Aggregate) and is_count(aggregate)


def _counted(states: StateAccess, known: dict[bytes, Any], names: Sequence[bytes], slots: Numbers) -> list[int]:
    """The number of records of its key so far, for each row. `slots` says which of the keys it has."""
    before = np.array([known.get(name) or 0 for name in names], np.int64)
    numbers = np.bincount(slots, minlength=len(names))
    rows = np.argsort(slots, kind="stable")
    places = np.empty(len(slots), np.int64)
    places[rows] = ordinals(numbers)
    known.update(zip(names, (before + numbers).tolist(), strict=True))
    states.touch(names)
    found: list[int] = (before[slots] + places + 1).tolist()
    return found


def _firsts(known: dict[bytes, Any], names: Sequence[bytes], slots: Sequence[int]) -> list[int]:
    rows = []
    is_new = [name not in known for name in names]
    for row, slot in enumerate(slots):
        if is_new[slot]:
            is_new[slot] = False
            known[names[slot]] = True
            rows.append(row)
    return rows


def is_open(state: Any) -> bool:
    """Whether a later step could change this state in place."""
    if type(state) is tuple:
        return not SCALARS.issuperset(map(type, state))
    return type(state) not in SCALARS


def starting_with(initial: Any, values: ValueCodec = PLAIN) -> Callable[[], Any]:
    """Return a function that makes the initial state of a key: a new object for each key."""
    if callable(initial):
        return lambda: own(initial())  # it may return the same object every time
    if type(initial) in SCALARS:
        return lambda: initial
    frozen = values.packed(initial)
    return lambda: values.decoded_value(frozen)


def reducing(function: Callable[[Any, Any], Any]) -> Step:
    """Return the step that combines a record with the previous result. The state is a tuple, because the result may be
    None."""

    def step(state: Any, value: Any) -> tuple[Any, Any]:
        whole = value if state is None else function(state[0], value)
        return (whole,), whole

    return step
