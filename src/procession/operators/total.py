"""Totals: an aggregate of all records, or of all records of each key, emitted when the input has ended.

The one rule: records are added in order, so an aggregate may depend on it. The aggregate of a key is a state like any
other, and nothing is emitted before the end. `operators/chain` brings the records; `operators/end_firing` emits the
totals, by key. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from procession.errors import PlanError
from procession.operators.aggregates import Aggregate
from procession.operators.keyed import Refuse, States
from procession.planner.keys import NO_KEY, PLAIN_KEYS, KeyCodec
from procession.planner.order_key import Result, taken_in_order
from procession.planner.ownership import own


@dataclass(frozen=True)
class Totals:
    """What an aggregate stage does."""

    aggregate: Aggregate
    is_keyed: bool
    keys: KeyCodec = PLAIN_KEYS

    def add(self, states: States, keys: Sequence[bytes], values: Sequence[Any], refuse: Refuse) -> None:
        """Take these records in. `refuse(row, error)` is told where the aggregate raised."""
        names = [b"k" + key for key in keys]
        known = states.take(names)
        create, add = self.aggregate.create, self.aggregate.add
        for row, (name, value) in enumerate(zip(names, values, strict=True)):
            held = known.get(name)
            try:
                if held is None:
                    held = [0, create()]
                held[1] = add(held[1], value)
            except Exception as error:  # the user's code may raise anything; the record decides who acts
                refuse(row, error)
                continue
            held[0] += 1
            known[name] = held
        states.touch(names)

    def end(self, states: States) -> Iterator[list[Result]]:
        """The totals, in the order of their keys and some at a time; nothing is held then. Without keys there is always
        one, be it of no records."""
        is_empty = True
        for some in taken_in_order(states):
            is_empty = False
            yield [(0, (0, key, 0), key, self._told(key, *held)) for key, held in some]
        if is_empty and not self.is_keyed:
            yield [(0, (0, NO_KEY, 0), NO_KEY, self._told(NO_KEY, 0, self.aggregate.create()))]

    def _told(self, key: bytes, count: int, held: Any) -> dict[str, Any]:
        try:
            value = own(self.aggregate.finish(held))
        except Exception as error:
            raise PlanError(
                f"the `finish` of an aggregate raised {type(error).__name__}: {error}",
                next_step="mend it; nothing of this epoch was committed, and it is run again when you start again",
            ) from error
        named = {"key": self.keys.decode(key)} if self.is_keyed else {}
        return named | {"count": count, "value": value}
