"""Strategies: the ways to keep order, and how each kind of stage treats order.

Invariant: all properties of a kind of stage are in TABLE. `planner/rules` reads the table, and
`docs/explanation/order.md` shows it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from procession.planner.graph import Kind, Node
from procession.planner.keys import RecordKey
from procession.planner.order_key import PLACE


class Strategy(StrEnum):
    """The ways to keep the order on an edge, cheapest first."""

    FREE = "free"
    RANGES = "ranges"
    ISOLATE = "isolate"
    MERGE = "merge"
    PARTITION = "partition"
    SORT = "sort"


# The description and the cost of each strategy, for people.
STRATEGIES: dict[Strategy, tuple[str, str]] = {
    Strategy.FREE: ("no later stage needs the order, so it is not kept", "none"),
    Strategy.RANGES: (
        "each task reads a contiguous range of the sequence; the outputs of the tasks are concatenated",
        "none",
    ),
    Strategy.ISOLATE: ("records stay in their task, so the stage has as many tasks as the one before it", "none"),
    Strategy.MERGE: (
        "an exchange; each input of a task is sorted, and the inputs are merged by the order key",
        "one pass",
    ),
    Strategy.PARTITION: ("an exchange by key; each task restores the order of its records", "one pass per task"),
    Strategy.SORT: ("Spark SQL returns rows in any order; they are sorted by the order key", "a full sort"),
}


class Routing(StrEnum):
    """The ways in which records reach a stage."""

    NARROW = "narrow"
    BY_KEY = "partition by key"
    EVENLY = "distributed evenly"
    TO_ONE = "all to one task, in order"
    TO_ALL = "one input to all tasks, the other distributed evenly"
    ROWS = "rows of Spark SQL"


class Tasks(StrEnum):
    """The number of tasks that run a stage when order is kept."""

    UPSTREAM = "min(own, upstream)"
    OWN = "own"
    ONE = "1"


@dataclass(frozen=True, slots=True)
class StageRule:
    """The properties of a kind of stage. *Sensitive*: its output depends on the order of its input. *Creating*: its
    output has its own order, so later stages do not need the order of its input. Other stages pass on the order of
    their input."""

    way: Routing = Routing.NARROW
    tasks: Tasks = Tasks.UPSTREAM
    is_sensitive: bool = False
    is_creating: bool = False
    is_multiplying: bool = False
    """Whether one record may become several, which are ordered by a number."""
    has_state: bool = False
    """Whether the stage keeps a state from one record to the next."""
    is_timed: bool = False
    """Whether the stage has a watermark, which every task must learn."""
    comes_with: str = ""
    """The version that can run it. Empty: this version."""

    is_firing: bool = False
    """Whether the stage emits results that belong to no record, and are ordered by their time and key."""

    @property
    def is_exchange(self) -> bool:
        return self.way is not Routing.NARROW


_KEYED = StageRule(Routing.BY_KEY, Tasks.OWN, is_sensitive=True, has_state=True)
_TO_ONE = StageRule(Routing.TO_ONE, Tasks.ONE, is_sensitive=True, is_creating=True, has_state=True, is_firing=True)

TABLE: dict[Kind, StageRule] = {
    Kind.SOURCE: StageRule(tasks=Tasks.OWN, is_creating=True),
    Kind.MAP: StageRule(),
    Kind.FILTER: StageRule(),
    Kind.FLAT_MAP: StageRule(is_multiplying=True),
    Kind.MAP_BATCHES: StageRule(is_multiplying=True),
    Kind.MAP_ASYNC: StageRule(),
    Kind.KEY_BY: StageRule(),
    Kind.ADD_TIMESTAMPS: StageRule(),
    Kind.PEEK: StageRule(),
    Kind.SPLIT: StageRule(),
    Kind.OUTPUT: StageRule(),
    Kind.MERGE: StageRule(),
    # With a key, it is an exchange by key: see `routing_of`.
    Kind.REBALANCE: StageRule(Routing.EVENLY, Tasks.OWN),
    Kind.TRANSFORM: StageRule(Routing.ROWS, Tasks.OWN, is_multiplying=True),
    Kind.MAP_STATEFUL: _KEYED,
    Kind.FILTER_STATEFUL: _KEYED,
    Kind.FLAT_MAP_STATEFUL: replace(_KEYED, is_multiplying=True),
    Kind.REDUCE: _KEYED,
    Kind.ROLLING: _KEYED,
    Kind.DISTINCT: _KEYED,
    Kind.WINDOW: replace(_TO_ONE, is_timed=True),
    Kind.WINDOW_BY_KEY: replace(_KEYED, is_creating=True, is_timed=True, is_firing=True),
    Kind.HASH_JOIN: StageRule(is_multiplying=True),
    Kind.JOIN: replace(_KEYED, is_creating=True, is_timed=True, is_firing=True),
    Kind.PROCESS: replace(_KEYED, is_creating=True, is_timed=True, is_firing=True),
    Kind.BROADCAST: StageRule(Routing.TO_ALL, Tasks.OWN, is_sensitive=True, has_state=True),
    Kind.AS_OF: _KEYED,
    Kind.MATCH: replace(_KEYED, is_creating=True, is_timed=True, is_firing=True),
    Kind.AGGREGATE: _TO_ONE,
    Kind.AGGREGATE_BY_KEY: replace(_KEYED, is_creating=True, is_firing=True),
    Kind.SORT: _TO_ONE,
    Kind.SINK: StageRule(tasks=Tasks.ONE, is_sensitive=True),
}


def routing_of(node: Node) -> Routing:
    """Return how records reach this stage. A rebalance with a key is by key."""
    if node.kind is Kind.REBALANCE and node.function is not None:
        return Routing.BY_KEY
    return TABLE[node.kind].way


def key_of(node: Node) -> Callable[[Any], Any] | RecordKey:
    """Return the key by which records reach a stage."""
    key = node.function if node.kind is Kind.REBALANCE else node.key
    assert key is not None
    return key


def is_timed(node: Node) -> bool:
    """Whether this stage has a watermark: because of its kind, or because its states expire."""
    return TABLE[node.kind].is_timed or (node.operator is not None and node.operator.state.steps is not None)


def is_by_clock(node: Node) -> bool:
    """Whether a clock moves the watermark of this stage."""
    return node.operator is not None and node.operator.state.is_by_clock


def is_firing(node: Node) -> bool:
    """Whether this stage emits results that belong to no record."""
    return TABLE[node.kind].is_firing or is_timed(node)


def is_whole(node: Node) -> bool:
    """Whether some states of this stage belong to a task, not to a key, and cannot be redistributed."""
    return is_firing(node) or routing_of(node) is Routing.TO_ALL


def numbers_of(node: Node) -> int:
    """Return how many numbers a stage adds to the order key of its output."""
    return PLACE if is_firing(node) else int(TABLE[node.kind].is_multiplying)


def numbers_behind(node: Node) -> int:
    """Return how many of these numbers are added after the stage's exchange. Rows of Spark SQL have their numbers
    already."""
    return numbers_of(node) if TABLE[node.kind].has_state else 0


def stage_rows() -> list[list[str]]:
    """Return the table as text: a heading, and a row for each kind."""

    def word(row: StageRule) -> str:
        effects = [name for name, is_so in (("creates", row.is_creating), ("needs", row.is_sensitive)) if is_so]
        return " and ".join(effects) or "passes on"

    rows = [
        [f"`{kind.value}`", row.way.value, row.tasks.value, word(row), row.comes_with or "this version"]
        for kind, row in TABLE.items()
    ]
    return [["stage", "how records reach it", "tasks", "order of the input", "available in"], *rows]


def strategy_rows() -> list[list[str]]:
    return [
        ["strategy", "how it keeps the order", "cost"],
        *([f"`{name.value}`", *texts] for name, texts in STRATEGIES.items()),
    ]
