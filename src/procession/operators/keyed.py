"""Keyed stages: a step takes a key's state and a record, and returns the next state and the output.

The one rule: a key's records come in order, and a step depends only on its state and its record; so neither the epoch
cuts nor the number of tasks show in the output. A state belongs to its stage: the output of a step never shares objects
with the state, which later steps may change. Before it `operators/chain`, which brings records by key; next to it the
store of the states (`storage/state_store`). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from procession.operators.value_codec import PLAIN, ValueCodec
from procession.planner.keyed_spec import Gives, Stateful, Step
from procession.planner.ownership import SCALARS, own, separate

ABSENT = object()

Refuse = Callable[[int, Exception], None]


class States(Protocol):
    """The store of the states of a task's keys."""

    serial: int
    """Another number in each epoch."""
    keys_max: int
    """Maximum number of keys in memory."""

    def take(self, keys: Sequence[bytes]) -> dict[bytes, Any]:
        """A dictionary that has the states of these keys, and perhaps of others."""

    def touch(self, keys: Iterable[bytes]) -> None:
        """These states have changed."""

    def spill(self) -> None:
        """Writes changed states, and keeps nothing in memory."""

    def all_keys(self) -> Iterator[list[bytes]]:
        """The keys that have a state, in chunks and in no order. Nothing may change before the last chunk."""


class _NoStates:
    """For chains without a keyed stage."""

    serial = 0
    keys_max = 0

    def take(self, keys: Sequence[bytes]) -> dict[bytes, Any]:
        raise AssertionError("a keyed stage was given nobody who keeps its states")

    def touch(self, keys: Iterable[bytes]) -> None:
        raise AssertionError("a keyed stage was given nobody who keeps its states")

    def spill(self) -> None:
        raise AssertionError("a keyed stage was given nobody who keeps its states")

    def all_keys(self) -> Iterator[list[bytes]]:
        raise AssertionError("a keyed stage was given nobody who keeps its states")


NO_STATES: States = _NoStates()


def run_keyed(
    stateful: Stateful, states: States, keys: pa.Array, values: Sequence[Any], refuse: Refuse
) -> tuple[list[Any], list[int] | None]:
    """What comes out, and of which row (None: one of each). `refuse(row, error)` is told where a step raised: its key's
    state is then what the step has left of it, and a key that had none has none."""
    encoded = keys.dictionary_encode()
    names, slots = encoded.dictionary.to_pylist(), encoded.indices.to_pylist()
    known = states.take(names)
    if stateful.gives is Gives.FIRST:
        rows = _firsts(known, names, slots)
        states.touch([names[slots[row]] for row in rows])
        return [values[row] for row in rows], rows
    # A list instead of the dictionary: a record then costs no hash. None: the key has no state.
    held = list(map(known.get, names))
    run = _ones if stateful.gives is Gives.ONE else _some
    results, kept = run(stateful, held, slots, values, refuse)
    for name, state in zip(names, held, strict=True):
        if state is None:
            known.pop(name, None)
        else:
            known[name] = state
    states.touch(names)
    return results, kept


def _ones(
    stateful: Stateful, held: list[Any], slots: Sequence[int], values: Sequence[Any], refuse: Refuse
) -> tuple[list[Any], list[int] | None]:
    """Steps that return one record for each: the most frequent ones, so with the least overhead."""
    results: list[Any] = []
    failed: list[int] = []
    step, initial = stateful.step, stateful.initial
    assert step is not None
    pairs = zip(slots, values, strict=True)
    while len(results) + len(failed) < len(slots):
        try:
            # It goes on where it was; how many results there are tells on which row a step raised.
            for slot, value in pairs:
                state = held[slot]
                state, result = step(initial() if state is None else state, value)
                # The first of the two is the quicker one, and nearly always enough.
                if type(result) is not bytes and type(result) not in SCALARS and is_open(state):
                    result = own(result)
                held[slot] = state
                results.append(result)
        except Exception as error:  # the user's code may raise anything; the record decides who acts
            failed.append(len(results) + len(failed))
            refuse(failed[-1], error)
    if not failed:
        return results, None
    refused = set(failed)
    return results, [row for row in range(len(slots)) if row not in refused]


def _some(
    stateful: Stateful, held: list[Any], slots: Sequence[int], values: Sequence[Any], refuse: Refuse
) -> tuple[list[Any], list[int] | None]:
    """Steps that return any number of records, or whether to keep the record."""
    results: list[Any] = []
    rows: list[int] = []
    step, initial, is_many = stateful.step, stateful.initial, stateful.gives is Gives.MANY
    assert step is not None
    for row, (slot, value) in enumerate(zip(slots, values, strict=True)):
        state = held[slot]
        try:
            state, result = step(initial() if state is None else state, value)
            if is_many:
                result = separate(result, is_held=is_open(state))
            else:
                result = ABSENT if not result else own(value) if is_open(state) else value
        except Exception as error:  # the user's code may raise anything; the record decides who acts
            refuse(row, error)
            continue
        held[slot] = state
        if result is not ABSENT:
            results.append(result)
            rows.append(row)
    return results, rows


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
    """Makes the first state of a key: calls a function, or copies a value, so that keys never share an object."""
    if callable(initial):
        return lambda: own(initial())  # it may give one object again and again
    if type(initial) in SCALARS:
        return lambda: initial
    frozen = values.packed(initial)
    return lambda: values.thawed(frozen)


def reducing(function: Callable[[Any, Any], Any]) -> Step:
    """The step that combines a record with the previous result. The state is a tuple, since the result may be None."""

    def step(state: Any, value: Any) -> tuple[Any, Any]:
        whole = value if state is None else function(state[0], value)
        return (whole,), whole

    return step
