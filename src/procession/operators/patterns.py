"""Patterns: the sequence of records of a key that a stage searches for.

Invariant: a pattern is a value that defines which records extend a match, and which records end it. It holds no
records; `operators/pattern_match` does. Pure.

    >>> from procession import patterns
    >>> pattern = patterns.begin("cart", lambda event: event == "cart").then("paid", lambda event: event == "paid")
    >>> [step.name for step in pattern.steps]
    ['cart', 'paid']
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from procession.errors import PlanError
from procession.planner.validation import checked_call, checked_count, checked_name

TIMES_MAX = 100_000

Matched = dict[str, list[Any]]
"""The records of a match so far, by the names of the steps."""

Predicate = Callable[..., bool]
"""Takes a record, or a record and the `Matched` so far."""


class SkipRule(Enum):
    """The rules for the incomplete matches of a key when one of its matches is complete."""

    PAST_LAST = "past-last"
    """Incomplete matches are dropped, so matches do not overlap."""
    NONE = "none"
    """Incomplete matches continue."""


@dataclass(frozen=True)
class Condition:
    """A predicate of a user. It may also take the records that were matched so far."""

    predicate: Predicate
    is_of_two: bool

    @classmethod
    def of(cls, predicate: Any, word: str) -> Condition:
        is_of_two = _takes_two(predicate)
        arguments = ("record", "matched") if is_of_two else ("record",)
        checked_call(predicate, word, "", arguments, more=", or of two: (record, matched)")
        return cls(predicate, is_of_two)

    def holds(self, record: Any, matched: Matched) -> bool:
        return bool(self.predicate(record, matched) if self.is_of_two else self.predicate(record))


@dataclass(frozen=True)
class PatternStep:
    """One step of a pattern: `at_least` to `at_most` records for which the condition holds."""

    name: str
    condition: Condition
    at_least: int = 1
    at_most: int = 1
    is_next: bool = False
    """Whether other records of the key in between are excluded."""
    without: tuple[Condition, ...] = ()
    """Conditions of records that must not come between the previous step and this step."""


@dataclass(frozen=True)
class Pattern:
    """A sequence of steps, made by `begin` and the methods of the pattern."""

    steps: tuple[PatternStep, ...]
    without_after: tuple[Condition, ...] = ()
    """Conditions of records that must not come after the last step."""

    def then(self, name: str, predicate: Predicate, *, at_least: int = 1, at_most: int | None = None) -> Pattern:
        """Add a step. Other records of the key may be in between.

        Args:
            name: Name of the step in the match.
            predicate: Takes a record and returns whether it belongs to the step. With two parameters, it also gets the
                records matched so far, as lists by the names of the steps.
            at_least: Number of records that the step needs.
            at_most: Maximum number of records of the step. None: `at_least`. A record that also belongs to the
                following step goes there.

        Raises:
            PlanError: A name occurs twice, a number is out of range, or the predicate has other parameters.
        """
        return self._add("then", name, predicate, at_least, at_most, is_next=False)

    def next(self, name: str, predicate: Predicate, *, at_least: int = 1, at_most: int | None = None) -> Pattern:
        """Add a step whose records come directly after those of the previous step, among the records of the key."""
        return self._add("next", name, predicate, at_least, at_most, is_next=True)

    def without(self, predicate: Predicate) -> Pattern:
        """Exclude records here: before the step that is added next, or after the last step until the time is over.

        If such a record arrives, the match is dropped. If no step follows, a match is complete when `within_s` has
        passed since its first record.
        """
        return replace(self, without_after=(*self.without_after, Condition.of(predicate, "without")))

    def _add(
        self, word: str, name: str, predicate: Predicate, at_least: int, at_most: int | None, *, is_next: bool
    ) -> Pattern:
        if any(step.name == name for step in self.steps):
            raise PlanError(f"the pattern has two steps named {name!r}", next_step="give one of them another name")
        step = replace(_step(word, name, predicate, at_least, at_most), is_next=is_next, without=self.without_after)
        return Pattern((*self.steps, step))

    @property
    def shape(self) -> str:
        """A description that is equal for equal patterns, except for their predicates."""
        steps = [
            f"{'next ' * step.is_next}{step.name} {step.at_least}-{step.at_most} without {len(step.without)}"
            for step in self.steps
        ]
        return f"{', '.join(steps)}, without {len(self.without_after)}"


def begin(name: str, predicate: Predicate, *, at_least: int = 1, at_most: int | None = None) -> Pattern:
    """Begin a pattern with its first step. The arguments are those of `Pattern.then`."""
    return Pattern((_step("begin", name, predicate, at_least, at_most),))


def _step(word: str, name: str, predicate: Predicate, at_least: int, at_most: int | None) -> PatternStep:
    checked_name(name, "a step of a pattern")
    owner = f"step {name!r}"
    most = checked_count(at_least, "at_least", owner, TIMES_MAX) if at_most is None else at_most
    if checked_count(most, "at_most", owner, TIMES_MAX) < at_least:
        raise PlanError(
            f"{owner} takes at least {at_least} records and at most {at_most}", next_step="pass a larger at_most"
        )
    return PatternStep(name, Condition.of(predicate, word), at_least, most)


def _takes_two(predicate: Any) -> bool:
    """Whether a predicate needs two arguments."""
    try:
        parameters = inspect.signature(predicate).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [
        parameter
        for parameter in parameters
        if parameter.kind in kinds and parameter.default is inspect.Parameter.empty
    ]
    return len(needed) == 2
