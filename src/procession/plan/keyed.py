"""Keyed stages: a step from a key's state and a record to the next state and what comes out, over many records.

The one rule: a key's records come in order, and what a step does depends on its state and its record only; so where an
epoch is cut, or how many tasks there are, cannot be seen. To that end a state belongs to its stage: what comes out of a
step is never the state itself nor a part of it, which later steps would change while it is on its way. Before it
`plan/chain`, which brings records by key; beside it whoever keeps the states (`storage/states`). Pure.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from procession.plan.carriage import READ, VALUE, packed
from procession.plan.stateful import Gives, Stateful, Step

ABSENT = object()
SCALARS = frozenset({bytes, str, int, float, bool, type(None)})
"""What cannot be changed in place, and so cannot be a part of two things."""

Refuse = Callable[[int, Exception], None]


class States(Protocol):
    """Who keeps the states of a task's keys."""

    serial: int
    """Another number in each epoch."""
    keys_max: int
    """So many keys at most may be held in memory."""

    def take(self, keys: Sequence[bytes]) -> dict[bytes, Any]:
        """A dictionary that has the states of these keys, and perhaps of others."""

    def touch(self, keys: Iterable[bytes]) -> None:
        """These states are other ones now."""

    def spill(self) -> None:
        """Keep nothing in memory: what was changed is written first."""

    def all_keys(self) -> Iterator[list[bytes]]:
        """The keys that have a state, some at a time and in no order. Nothing may be changed before the last."""


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
    stateful: Stateful, states: States, keys: Sequence[bytes], values: Sequence[Any], refuse: Refuse
) -> tuple[list[Any], list[int]]:
    """What comes out, and of which row. `refuse(row, error)` is told where a step raised: its key's state is then what
    the step has left of it, and a key that had none has none."""
    known = states.take(keys)
    if stateful.gives is Gives.FIRST:
        rows = _firsts(known, keys)
        states.touch([keys[row] for row in rows])
        return [values[row] for row in rows], rows
    if stateful.gives is Gives.ONE:
        results, rows = _ones(stateful, known, keys, values, refuse)
        states.touch(keys)
        return results, rows
    results = []
    rows = []
    step, initial, gives = stateful.step, stateful.initial, stateful.gives
    assert step is not None
    get = known.get
    for row, (key, value) in enumerate(zip(keys, values, strict=True)):
        state = get(key, ABSENT)
        try:
            state, result = step(initial() if state is ABSENT else state, value)
            result = list(result) if gives is Gives.MANY else value if result else ABSENT
        except Exception as error:  # the user's code may raise anything; the record decides who acts
            refuse(row, error)
            continue
        if state is None:
            known.pop(key, None)
        else:
            known[key] = state
        if result is not ABSENT:
            if type(result) not in SCALARS and is_open(state):
                result = own(result)
            results.append(result)
            rows.append(row)
    states.touch(keys)
    return results, rows


def _ones(
    stateful: Stateful, known: dict[bytes, Any], keys: Sequence[bytes], values: Sequence[Any], refuse: Refuse
) -> tuple[list[Any], list[int]]:
    """Steps that give one record for each: the most usual ones, and so with the least around them."""
    results: list[Any] = []
    failed: list[int] = []
    step, initial, get, append = stateful.step, stateful.initial, known.get, results.append
    assert step is not None
    pairs = zip(keys, values, strict=True)
    while len(results) + len(failed) < len(keys):
        try:
            # It goes on where it was; how many results there are tells on which row a step raised.
            for key, value in pairs:
                state = get(key, ABSENT)
                state, result = step(initial() if state is ABSENT else state, value)
                if type(result) not in SCALARS and is_open(state):
                    result = own(result)
                if state is None:
                    known.pop(key, None)
                else:
                    known[key] = state
                append(result)
        except Exception as error:  # the user's code may raise anything; the record decides who acts
            failed.append(len(results) + len(failed))
            refuse(failed[-1], error)
    if not failed:
        return results, list(range(len(keys)))
    refused = set(failed)
    return results, [row for row in range(len(keys)) if row not in refused]


def _firsts(known: dict[bytes, Any], keys: Sequence[bytes]) -> list[int]:
    rows = []
    for row, key in enumerate(keys):
        if key not in known:
            known[key] = True
            rows.append(row)
    return rows


def is_open(state: Any) -> bool:
    """Whether a later step could change this state in place."""
    if type(state) is tuple:
        return not SCALARS.issuperset(map(type, state))
    return type(state) not in SCALARS


def own(value: Any) -> Any:
    """The same value, sharing nothing that can be changed."""
    try:
        return thawed(packed(value))
    except (TypeError, ValueError):
        return copy.deepcopy(value)


def starting_with(initial: Any) -> Callable[[], Any]:
    """What gives each new key its first state: a function as it is, a value again and again, never the same object."""
    if callable(initial):
        return initial  # type: ignore[no-any-return]
    if type(initial) in SCALARS:
        return lambda: initial
    frozen = packed(initial)
    return lambda: thawed(frozen)


thawed = READ[VALUE]


def reducing(function: Callable[[Any, Any], Any]) -> Step:
    """The step that puts a record to what came out before; the state is that, in a tuple, since it may be None."""

    def step(state: Any, value: Any) -> tuple[Any, Any]:
        whole = value if state is None else function(state[0], value)
        return (whole,), whole

    return step
