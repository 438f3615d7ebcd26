"""A violation: an invariant that does not hold, and the sentence that says how.

The one rule: it ends the run at once, wherever it is found, because all that follows would follow from it. Before it:
`oracle` and the parts. After it: the runner.
"""

from __future__ import annotations


class Breach(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: str, sentence: str) -> None:
        super().__init__(f"{invariant}: {sentence}")
        self.invariant = invariant
        self.sentence = sentence
