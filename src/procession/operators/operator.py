"""The operator protocol: the one interface of all stages with state.

Invariant: `operators/chain` calls `add`, `fire` and `end`, and the planner reads `state`; neither checks the kind of
the operator. The output of an operator depends only on the sequence of its rows. It does not depend on epoch cuts, on
the number of tasks, or on how many rows one call brings. Implemented by `operators/keyed`, `operators/expiry`,
`operators/process`, `operators/clock_process`, `operators/pattern_match`, `operators/window_operator`,
`operators/stream_join`, `operators/versions`, `operators/broadcast`, `operators/sort` and `operators/total`. Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from procession.operators.stage_rows import Numbers, StageRows

if TYPE_CHECKING:
    from procession.operators.column_aggregates import ColumnAdd

Refuse = Callable[[int, Exception], None]
"""Called as `refuse(row, error)` for a record on which a user's function raised, and for a late record."""

Place = tuple[int, bytes, int]
"""The order of a result among the results of one row: a time, a key (encoded; empty if irrelevant), and a number."""

Result = tuple[int, Place, bytes, Any]
"""An emitted result: the row that causes it, its place among the results of that row, its key, and its value."""

Steps = Callable[[Numbers], Numbers]
"""Returns, for each event time, the watermark step to which a record of this time alone would lead."""

Reach = Callable[[int, Numbers], Numbers]
"""Takes the watermark before some rows and the step of each. Returns the watermark before the rows and after each."""


class StateAccess(Protocol):
    """The states of a task's keys, by name."""

    serial: int
    """A different number in each epoch."""
    keys_max: int
    """Maximum number of keys in memory."""

    @property
    def counts(self) -> Counter[str]:
        """The amounts that functions of this task have added to the counters of the app."""

    def take(self, keys: Sequence[bytes]) -> dict[bytes, Any]:
        """Return a dictionary that has the states of these keys, and possibly of others."""

    def touch(self, keys: Iterable[bytes]) -> None:
        """Mark these states as changed."""

    def spill(self) -> None:
        """Write changed states, and keep no states in memory."""

    def all_keys(self) -> Iterator[list[bytes]]:
        """Yield the keys that have a state, in chunks and in no particular order. Change no state before the last
        chunk."""


class _NoStates:
    """The states of a chain without a stage with state: there are none."""

    serial = 0
    keys_max = 0

    @property
    def counts(self) -> Counter[str]:
        return Counter()

    def take(self, keys: Sequence[bytes]) -> dict[bytes, Any]:
        raise AssertionError("this chain was given no states")

    def touch(self, keys: Iterable[bytes]) -> None:
        raise AssertionError("this chain was given no states")

    def spill(self) -> None:
        raise AssertionError("this chain was given no states")

    def all_keys(self) -> Iterator[list[bytes]]:
        raise AssertionError("this chain was given no states")


NO_STATES: StateAccess = _NoStates()


class StateObject(ABC):
    """A state that is an object in memory, and a list of plain values on disk. The operator that reads a state makes
    the object. So a state that stays in memory is not converted."""

    @abstractmethod
    def stored(self) -> list[Any]:
        """Return the plain values."""


@dataclass(frozen=True)
class OperatorRows:
    """Rows that an exchange brought to an operator, in order."""

    records: StageRows
    """The values and keys of the rows. The value of a tick is None."""
    times: Numbers | None = None
    """The event times of the rows, if a watermark moves the operator."""
    are_ticks: npt.NDArray[np.bool_] | None = None
    """Which rows are ticks. Ticks move the watermark and are not records of this task."""
    reach: Reach | None = None
    """How the rows move the watermark, if the stage has several inputs. None: by the greatest time."""


@dataclass(frozen=True)
class StateSpec:
    """The properties of an operator for the planner, the driver and a checkpoint."""

    layout: str = ""
    """The properties on which the states depend in addition to the kind of the stage, such as the size of windows. A
    checkpoint stores the layout, and states of another layout are refused."""
    function: Any = None
    """The user's function or aggregate that makes the states. A checkpoint stores its fingerprint."""
    rank: Callable[[Any], Any] | None = None
    """The function of a record by which states are stored, if it is not that of the key."""
    outputs: tuple[Callable[..., Any], ...] = ()
    """The user's functions whose results leave the stage without being copied."""
    is_by_clock: bool = False
    """Whether only a clock moves the watermark, so that the operator waits for no other input."""
    steps: Steps | None = None
    """How event times move the watermark. None: no watermark moves this operator."""
    fires_at_end: bool = False
    """Whether it emits results when its input ends."""
    needs_end: bool = False
    """Whether the operator emits no result before its input ends."""
    late_to_dead_letters: bool = False
    """Whether late records become dead letters. Otherwise they are only counted."""
    counts_late: bool = False
    """Whether the operator reports late records although it has no watermark."""
    is_made_by_user: bool = False
    """Whether the user's function returned the state of a key."""
    reads_records: bool = True
    """Whether the operator reads the records. If not, only their keys and times pass its exchange from columns."""
    over: ColumnAdd | None = None
    """How it adds the values of records in columns, if it adds those of several records at once."""
    held: str = ""
    """A description of the results that it holds back until it fires, for the summary of a run that was stopped."""


class Operator(Protocol):
    """A stage with state. It is a value in the graph; all changes are in `states`."""

    @property
    def state(self) -> StateSpec:
        """The properties of this operator and its states that are known without running it."""

    def add(self, states: StateAccess, rows: OperatorRows, refuse: Refuse) -> StageRows:
        """Add these rows. Returns their results, in order."""

    def fire(self, states: StateAccess, step: int) -> Iterator[list[Result]]:
        """Advance the watermark to this step without a record. Yields the results, in order, in bounded lists."""

    def end(self, states: StateAccess) -> Iterator[list[Result]]:
        """Handle the end of the input. Yields the results that are still held, in order, in bounded lists."""


class UntimedOperator:
    """An operator that no watermark moves."""

    def fire(self, states: StateAccess, step: int) -> Iterator[list[Result]]:
        return iter(())
