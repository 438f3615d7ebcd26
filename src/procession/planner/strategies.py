"""Strategies: the ways in which order is kept, and what each kind of stage does with order.

The one rule: what is known about a kind of stage stands in TABLE and nowhere else; the planner asks the table, and
`docs/explanation/order.md` shows it. Pure. Before it `planner/graph`; after it `planner/rules`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from procession.planner.graph import Kind, Node
from procession.planner.keyed_spec import RecordKey
from procession.planner.order_key import PLACE


class Strategy(StrEnum):
    """How the order is kept on an edge, cheapest first."""

    FREE = "free"
    RANGES = "ranges"
    ISOLATE = "isolate"
    MERGE = "merge"
    PARTITION = "partition"
    SORT = "sort"


# What each is, and what it costs.
STRATEGIES: dict[Strategy, tuple[str, str]] = {
    Strategy.FREE: ("nothing behind the edge asks for an order, and none is kept", "nothing"),
    Strategy.RANGES: (
        "the source deals contiguous ranges of the sequence to tasks; the output is theirs, one after the other",
        "nothing",
    ),
    Strategy.ISOLATE: ("a task's records stay in the task; the number of tasks is carried over", "nothing"),
    Strategy.MERGE: ("an exchange; each path is sorted, and the paths are merged by the order key", "one pass"),
    Strategy.PARTITION: ("an exchange by key; the order is restored inside each task", "one pass inside the task"),
    Strategy.SORT: ("rows that come back from Spark SQL in any order are sorted by the order key", "a full sort"),
}


class Way(StrEnum):
    """How records reach a stage."""

    NARROW = "narrow"
    BY_KEY = "partition by key"
    DEALT = "dealt out evenly"
    TO_ONE = "all to one, in order"
    ROWS = "rows of Spark SQL"


class Tasks(StrEnum):
    """How many tasks run a stage when order is kept."""

    UPSTREAM = "min(own, upstream)"
    OWN = "own"
    ONE = "1"


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of stage. *Sensitive*: its output depends on the order of its input. *Creating*: its output has an order
    of its own, so that the order of its input is nobody's business behind it. All others pass on the order they get."""

    way: Way = Way.NARROW
    tasks: Tasks = Tasks.UPSTREAM
    is_sensitive: bool = False
    is_creating: bool = False
    is_multiplying: bool = False
    """Whether one record may become several, which then are told apart by their number."""
    has_state: bool = False
    """Whether it keeps something about each key from one record to the next."""
    is_timed: bool = False
    """Whether a watermark moves it, of which every task must learn."""
    comes_with: str = ""
    """What must be there before it can be run; empty: it can."""

    is_firing: bool = False
    """Whether it lets out results that are not a record's, which have a place by their time and key."""

    @property
    def is_exchange(self) -> bool:
        return self.way is not Way.NARROW


_KEYED = Row(Way.BY_KEY, Tasks.OWN, is_sensitive=True, has_state=True)
_TO_ONE = Row(Way.TO_ONE, Tasks.ONE, is_sensitive=True, is_creating=True, has_state=True, is_firing=True)

TABLE: dict[Kind, Row] = {
    Kind.SOURCE: Row(tasks=Tasks.OWN, is_creating=True),
    Kind.MAP: Row(),
    Kind.FILTER: Row(),
    Kind.FLAT_MAP: Row(is_multiplying=True),
    Kind.MAP_BATCHES: Row(is_multiplying=True),
    Kind.MAP_ASYNC: Row(),
    Kind.KEY_BY: Row(),
    Kind.ADD_TIMESTAMPS: Row(),
    Kind.PEEK: Row(),
    Kind.MERGE: Row(),
    # With a key it is an exchange by key: see `way_of`.
    Kind.REBALANCE: Row(Way.DEALT, Tasks.OWN),
    Kind.TRANSFORM: Row(Way.ROWS, Tasks.OWN, is_multiplying=True),
    Kind.MAP_STATEFUL: _KEYED,
    Kind.FILTER_STATEFUL: _KEYED,
    Kind.FLAT_MAP_STATEFUL: replace(_KEYED, is_multiplying=True),
    Kind.REDUCE: _KEYED,
    Kind.ROLLING: _KEYED,
    Kind.DISTINCT: _KEYED,
    Kind.WINDOW: replace(_TO_ONE, is_timed=True),
    Kind.WINDOW_BY_KEY: replace(_KEYED, is_creating=True, is_timed=True, is_firing=True),
    Kind.HASH_JOIN: Row(is_multiplying=True),
    Kind.JOIN: replace(_KEYED, is_creating=True, is_timed=True, is_firing=True),
    Kind.AGGREGATE: _TO_ONE,
    Kind.AGGREGATE_BY_KEY: replace(_KEYED, is_creating=True, is_firing=True),
    Kind.SORT: _TO_ONE,
    Kind.SINK: Row(tasks=Tasks.ONE, is_sensitive=True),
}


def way_of(node: Node) -> Way:
    """How records come to this stage: a rebalance that has a key is by key."""
    if node.kind is Kind.REBALANCE and node.function is not None:
        return Way.BY_KEY
    return TABLE[node.kind].way


def key_of(node: Node) -> Callable[[Any], Any] | RecordKey:
    """What tells the records apart that come to a stage by key."""
    key = node.function if node.kind is Kind.REBALANCE else node.key
    assert key is not None
    return key


def is_timed(node: Node) -> bool:
    """Whether a watermark moves this stage: by its kind, or because its states expire."""
    return TABLE[node.kind].is_timed or (node.stateful is not None and node.stateful.windowing is not None)


def is_firing(node: Node) -> bool:
    """Whether this stage lets out results that are not a record's."""
    return TABLE[node.kind].is_firing or is_timed(node)


def numbers_of(node: Node) -> int:
    """How many numbers a stage puts behind the order key of what leaves it."""
    return PLACE if is_firing(node) else int(TABLE[node.kind].is_multiplying)


def numbers_behind(node: Node) -> int:
    """How many of a stage's numbers are made behind its exchange: Spark SQL has them when rows come back."""
    return numbers_of(node) if TABLE[node.kind].has_state else 0


def stage_rows() -> list[list[str]]:
    """The table, for people: a heading and a row for each kind."""

    def word(row: Row) -> str:
        words = [name for name, is_so in (("creates", row.is_creating), ("needs", row.is_sensitive)) if is_so]
        return " and ".join(words) or "passes on"

    rows = [
        [f"`{kind.value}`", row.way.value, row.tasks.value, word(row), row.comes_with or "this version"]
        for kind, row in TABLE.items()
    ]
    return [["stage", "records come to it", "tasks", "what it does with order", "comes with"], *rows]


def strategy_rows() -> list[list[str]]:
    return [["strategy", "what it is", "cost"], *([f"`{name.value}`", *told] for name, told in STRATEGIES.items())]
