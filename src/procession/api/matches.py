"""Matches: the method of a stage that finds patterns.

Invariant: as in `api/stage`, the method adds one node to the graph and returns the stage for it. `api/stage` inherits
it; at run time, `operators/pattern_match` finds the patterns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from procession.api.stateful_api import Key, StatefulStage, Time
from procession.errors import PlanError
from procession.operators.pattern_match import PatternOperator
from procession.operators.patterns import Pattern, SkipRule
from procession.operators.windows import Length, span
from procession.planner.graph import Kind
from procession.planner.keys import KeyCodec
from procession.planner.validation import checked_choice, checked_of_one, checked_unit
from procession.times import Unit

if TYPE_CHECKING:
    from procession.api.stage import Stage

LATE_RULES = ("drop", "dead-letter")


class Matches(StatefulStage):
    """The `Stage` method that finds patterns."""

    def match(
        self,
        pattern: Pattern,
        *,
        within_s: Length,
        key: Key | None = None,
        time: Time | None = None,
        unit: Unit = "s",
        lateness_s: Length = 0,
        skip: Literal["past-last", "none"] = "past-last",
        late: Literal["drop", "dead-letter"] = "drop",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Find sequences of records of a key that match a pattern, and emit a result for each match.

        Records are matched in the order of the sequence. A result is a dict with key, start, end and matched. `start`
        and `end` are the times of the first and last record; `matched` maps each step's name to the list of its
        records. The result has the position of the record that completes the match. A match may be complete because
        some record did *not* come. It is emitted when a record of any key arrives that is past the bound.

        Args:
            pattern: Made with `procession.patterns`.
            within_s: Maximum distance in event time between the first record of a match and each other record, in
                seconds.
            key: Returns a record's key. Without it, the key is that of `key_by`.
            time: Returns a record's event time, as in `window`. Without it, records have the event time that they were
                sent with.
            unit: Unit of `time`, start and end: "s", "ms", "us" or "ns".
            lateness_s: Additional seconds for which matches wait for late records.
            skip: What happens to the incomplete matches of a key when a match is complete. They are dropped
                ("past-last"), so matches do not overlap, or they continue ("none").
            late: What happens to a record that arrives even later. It is counted. Then it is dropped ("drop") or
                becomes a dead letter ("dead-letter").

        Raises:
            PlanError: There is no key, or an argument is not valid.

        Example:
            >>> from procession import Pipeline, patterns
            >>> abandoned = (
            ...     patterns.begin("cart", lambda event: event["kind"] == "cart")
            ...     .then("checkout", lambda event: event["kind"] == "checkout")
            ...     .without(lambda event: event["kind"] == "paid")
            ... )
            >>> events = Pipeline("funnel").source(codec="json")
            >>> matches = events.match(
            ...     abandoned, within_s=600, key=lambda event: event["user"], time=lambda event: event["at"]
            ... )
        """
        kind = Kind.MATCH
        if not isinstance(pattern, Pattern):
            raise PlanError(
                f".match() has {pattern!r}, which is not a pattern",
                next_step="make a pattern with procession.patterns, such as patterns.begin(…).then(…)",
            )
        if time is not None:
            checked_of_one(time, kind.value, "time")
        if late not in LATE_RULES:
            raise PlanError(f"late={late!r} is not known", next_step="choose one of 'drop', 'dead-letter'")
        by = self._key(kind, key)
        operator = PatternOperator(
            pattern,
            span(within_s, "within_s"),
            checked_choice(SkipRule, skip, "skip"),
            span(lateness_s, "lateness_s", 0),
            late == "dead-letter",
            checked_unit(unit),
            KeyCodec(self._pipeline.types),
        )
        node = self._node(kind, None, name, parallelism)
        return self._add(replace(node, key=by, time=time, unit=unit, operator=operator))
