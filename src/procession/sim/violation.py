"""A violation: an invariant that does not hold, and the sentence that says how.

A violation ends the run at once, because everything after it is only a consequence.
"""

from __future__ import annotations


class InvariantViolation(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: str, sentence: str) -> None:
        super().__init__(f"{invariant}: {sentence}")
        self.invariant = invariant
        self.sentence = sentence
