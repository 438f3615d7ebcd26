"""The plan: a graph with every decision about its order made.

Invariant: a plan is a value. `planner/rules` completes it, rule by rule; afterwards it never changes. Shown by
`planner/explain`; run by `operators/chain` and `spark/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from procession.operators.end_of_input import EndCondition
from procession.planner.graph import Exchange, Graph, Kind, Node, Order
from procession.planner.inputs import StageInputs
from procession.planner.sharing import Sharing
from procession.planner.strategies import Strategy, is_timed

BY_RECORD = frozenset(
    {Kind.MAP, Kind.FILTER, Kind.FLAT_MAP, Kind.HASH_JOIN, Kind.KEY_BY, Kind.ADD_TIMESTAMPS, Kind.PEEK}
    | {Kind.SPLIT, Kind.OUTPUT}
)
"""The kinds of stages that process each record separately."""
SHOWN_ALL = frozenset({Kind.MAP_BATCHES, Kind.TRANSFORM})
"""The kinds of stages whose function sees the key, time, stream and message id of a record."""


WIDE_PAIRS_MIN = 1024
"""Minimum number of pairs of a sending and a receiving task with which an exchange is wide. Then Spark does not shuffle
a manifest for each pair: the driver collects one from each sender and sends all of them to the receivers. This is one
more Spark job, which costs about as much as the shuffle of so many manifests."""


@dataclass(frozen=True)
class Edge:
    """Two stages, and how the order is kept between them."""

    before: int
    after: int
    strategy: Strategy
    why: str
    paths: int = 1
    """Number of sorted paths that meet in one task and are merged there."""
    rows: int = 0
    """Number of manifests that Spark moves in an epoch: one for each pair of tasks, or one for each task if the
    exchange is wide. 0: this edge is not an exchange."""
    is_merged: bool = False
    """Whether records carry their order key over this edge, because they are sorted by it later."""

    @property
    def is_exchange(self) -> bool:
        return self.rows > 0


@dataclass(frozen=True)
class PlannedChain:
    """All stages between two exchanges, as one function in `tasks` tasks. `root` is the exchange before it. The first
    chain reads the log and has no root."""

    number: int
    root: int | None
    stages: tuple[int, ...]
    tasks: int
    level: int
    """Number of exchanges before the chain. Chains of the same level run in one Spark stage."""
    feeds: tuple[int, ...] = ()
    """The exchanges that the chain writes to."""
    sinks: tuple[int, ...] = ()
    capped_by: int | None = None
    """The stage that limits the chain to fewer tasks than the pipeline requests."""


@dataclass(frozen=True)
class Plan:
    """The plan of a whole pipeline. Stages are identified by their number in the graph."""

    graph: Graph
    needs: tuple[Order, ...] = ()
    """For each stage, the order that later stages need in its output."""
    exchanges: frozenset[int] = frozenset()
    """The stages before which records move to another task."""
    chains_of: tuple[frozenset[int], ...] = ()
    """The chains that run each stage. After a merge of two chains, both run it."""
    chains: tuple[PlannedChain, ...] = ()
    branching: frozenset[int] = frozenset()
    """The stages that number their branches, because the branches meet again."""
    keys: tuple[tuple[str, ...], ...] = ()
    """The parts of the order key in the output of each stage: the sequence, then a part for each stage that numbers."""
    traced: frozenset[int] = frozenset()
    """The stages whose output carries order keys, because a later stage needs them."""
    carrying: frozenset[int] = frozenset()
    """The exchanges that carry all columns of a record in addition to its payload, because a later stage reads them."""
    keeping_key: frozenset[int] = frozenset()
    """The exchanges that carry at least the key of a record, because a later stage uses it."""
    endings: Mapping[int, EndCondition] = field(default_factory=dict)
    """The stages that fire when their input has ended, and the condition of each."""
    origins: tuple[int | None, ...] = ()
    """For each chain, the input that all its records belong to. None: the input of each record's stream
    (`planner/inputs`)."""
    inputs: Mapping[int, StageInputs] = field(default_factory=dict)
    """The stages with a watermark that is the minimum over several inputs."""
    edges: tuple[Edge, ...] = ()
    sharing: Sharing = field(default_factory=Sharing)
    """Where values are copied, because several stages may change them."""
    notes: tuple[str, ...] = field(default=())
    """The requests of the user that the plan does not fulfil, with the reasons."""

    def node(self, index: int) -> Node:
        return self.graph.nodes[index]

    def edge(self, before: int, after: int) -> Edge:
        return next(edge for edge in self.edges if (edge.before, edge.after) == (before, after))

    @property
    def shown(self) -> frozenset[int]:
        """The stages and sinks that read more of a record than its payload: its key, time or stream."""
        return frozenset(index for index, node in enumerate(self.graph.nodes) if self._is_shown(node))

    def _is_shown(self, node: Node) -> bool:
        if node.kind is Kind.SINK:
            return node.is_in_blocks or (node.connections > 1 and self.graph.order_at(node) is not Order.NONE)
        return node.is_asking or node.kind in SHOWN_ALL or (is_timed(node) and node.time is None)

    @property
    def follows_streams(self) -> bool:
        """Whether a stage needs to know which streams are open and which have ended."""
        return bool(self.endings or self.inputs)

    @property
    def levels(self) -> int:
        return 1 + max(chain.level for chain in self.chains)

    @property
    def are_dead_letters_merged(self) -> bool:
        """Whether dead letters come from several levels and have an order, so that they are merged by their keys."""
        return self.levels > 1 and self.graph.dead_letters_order is not Order.NONE

    @property
    def tasks_max(self) -> int:
        """The number of tasks of the widest chain, which is the maximum number that run at a time."""
        return max(chain.tasks for chain in self.chains)

    def at_level(self, level: int) -> tuple[PlannedChain, ...]:
        return tuple(chain for chain in self.chains if chain.level == level)

    def path_of(self, sink: int, chain: int, task: int) -> int:
        """Return the number of a task among all tasks whose records go to this sink."""
        before = (number for number in self.chains_of[sink] if number < chain)
        return sum(self.chains[number].tasks for number in before) + task

    def paths_to(self, sink: int) -> int:
        """Return the number of tasks whose records go to this sink."""
        return sum(self.chains[number].tasks for number in self.chains_of[sink])

    def fed_by(self, exchange: int) -> tuple[PlannedChain, ...]:
        """Return the chains that write to this exchange."""
        return tuple(chain for chain in self.chains if exchange in chain.feeds)

    def is_wide(self, level: int) -> bool:
        """Whether the exchanges into this level have so many pairs of tasks that the driver routes their manifests."""
        chains = self.at_level(level)
        if self.graph.exchange is Exchange.SPARK or any(self._is_transform(chain) for chain in chains):
            return False  # the runs themselves are rows of Spark
        pairs = sum(
            chain.tasks * sender.tasks
            for chain in chains
            if chain.root is not None
            for sender in self.fed_by(chain.root)
        )
        return pairs >= WIDE_PAIRS_MIN

    def _is_transform(self, chain: PlannedChain) -> bool:
        return chain.root is not None and self.node(chain.root).kind is Kind.TRANSFORM

    def steps(self, number: int) -> list[list[int]]:
        """Return the steps of a chain. Consecutive stages with a function of one record are one step."""
        steps: list[list[int]] = []
        for index in self.chains[number].stages:
            before = steps[-1][-1] if steps else index
            is_in_row = self.node(index).parents == (before,) and self.graph.children(before) == (index,)
            if is_in_row and {self.node(before).kind, self.node(index).kind} <= BY_RECORD:
                steps[-1].append(index)
            else:
                steps.append([index])
        return steps
