"""The specification of a stateful stage, as a value in the graph.

The one rule: it says what a step receives and returns, and runs nothing. Built by `api/stage`; run by
`operators/keyed`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from procession.operators.sort import Sorting
    from procession.operators.timed import Timed
    from procession.operators.total import Totals

Step = Callable[[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class RecordKey:
    """The key that `key_by` has given to records, for a keyed stage behind that has none of its own. It is not asked
    for again: stages between may have changed the value. `given_by` are the functions of `key_by`, by which the
    checkpoint knows the key; several, if ways meet before the stage."""

    given_by: tuple[Callable[[Any], Any], ...]


class Gives(Enum):
    """What the second thing is that a step gives back."""

    ONE = "a record"
    KEPT = "whether the record is kept"
    MANY = "records"
    FIRST = "nothing: the first record of each key is kept"
    WINDOWS = "nothing: windows are filled, and fire"
    PAIRS = "nothing: records meet those of another stream"
    TOTALS = "nothing: what is held comes out at the end"
    SORTED = "nothing: all records come out at the end, sorted"


@dataclass(frozen=True)
class Stateful:
    """What a keyed stage does. `initial()` is the state of a key that has none; a step that gives None for a state lets
    the key be forgotten."""

    gives: Gives
    step: Step | None = None
    initial: Callable[[], Any] = lambda: None
    windowing: Timed | None = None
    """What a watermark moves, if one does: windows or pairs."""
    totals: Totals | None = None
    sorting: Sorting | None = None

    @property
    def sets_late_aside(self) -> bool:
        """Whether late records are dead letters."""
        return self.windowing is not None and self.windowing.sets_late_aside

    @property
    def heeds_ends(self) -> bool:
        """Whether the end of its input lets it fire."""
        return self.windowing is not None or self.needs_ends

    @property
    def needs_ends(self) -> bool:
        """Whether it would never give anything without."""
        return self.totals is not None or self.sorting is not None
