"""The plan: a graph with every decision about its order made.

The one rule: it is a value. `planner/rules` fills it in, rule by rule, and nobody changes it afterwards. Shown by
`planner/explain`; run by `operators/chain` and `spark/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from procession.operators.end_of_input import Ending
from procession.planner.graph import Graph, Kind, Node, Order
from procession.planner.inputs import Inputs
from procession.planner.sharing import Sharing
from procession.planner.strategies import Strategy, is_timed

BY_RECORD = frozenset(
    {Kind.MAP, Kind.FILTER, Kind.FLAT_MAP, Kind.HASH_JOIN, Kind.KEY_BY, Kind.ADD_TIMESTAMPS, Kind.PEEK}
)
"""The stages whose function is called with one record."""
SHOWN_ALL = frozenset({Kind.MAP_BATCHES, Kind.TRANSFORM})
"""The stages whose function is shown a record's key, time, stream and message id."""


@dataclass(frozen=True)
class Edge:
    """Two stages, and how the order is kept between them."""

    before: int
    after: int
    strategy: Strategy
    why: str
    paths: int = 1
    """How many sorted paths meet in one task: what a merge has to look at."""
    rows: int = 0
    """How many manifests Spark shuffles in an epoch; 0: it is no exchange."""
    is_merged: bool = False
    """Whether records carry their order key over this edge, to be put in order by it."""

    @property
    def is_exchange(self) -> bool:
        return self.rows > 0


@dataclass(frozen=True)
class PlannedChain:
    """All stages between two exchanges: one function, in `tasks` tasks. `root` is the exchange that feeds it; the first
    chain reads the log and has none."""

    number: int
    root: int | None
    stages: tuple[int, ...]
    tasks: int
    level: int
    """How many exchanges lie before it: chains of one level run in one Spark stage."""
    feeds: tuple[int, ...] = ()
    """The exchanges that it writes to."""
    sinks: tuple[int, ...] = ()
    capped_by: int | None = None
    """The stage that lets it have fewer tasks than the pipeline asks for."""


@dataclass(frozen=True)
class Plan:
    """A whole pipeline, planned. Everything is by the number of the stage in the graph."""

    graph: Graph
    needs: tuple[Order, ...] = ()
    """What somebody behind each stage asks of the order in which records leave it."""
    exchanges: frozenset[int] = frozenset()
    """The stages before which records change their task."""
    chains_of: tuple[frozenset[int], ...] = ()
    """The chains that run each stage: behind a merge of two chains, both do."""
    chains: tuple[PlannedChain, ...] = ()
    branching: frozenset[int] = frozenset()
    """The stages that number their branches, because these meet again."""
    keys: tuple[tuple[str, ...], ...] = ()
    """The shape of the order key of what leaves each stage: the sequence, then who numbered the children."""
    traced: frozenset[int] = frozenset()
    """The stages whose records carry their order key, because it is asked for behind them."""
    carrying: frozenset[int] = frozenset()
    """The exchanges over which records take what they have beside their payload, because a stage behind is shown it."""
    keeping_key: frozenset[int] = frozenset()
    """The exchanges over which records take at least their key, because a stage behind goes by it."""
    endings: Mapping[int, Ending] = field(default_factory=dict)
    """The stages that fire when their input has ended, and what must have ended for that."""
    origins: tuple[int | None, ...] = ()
    """Of each chain, the one input that all its records are of; None: each is of its stream's, see `planner/inputs`."""
    inputs: Mapping[int, Inputs] = field(default_factory=dict)
    """The stages with a watermark that is the minimum over several inputs."""
    edges: tuple[Edge, ...] = ()
    sharing: Sharing = field(default_factory=Sharing)
    """Where values are copied, because several stages could change them."""
    notes: tuple[str, ...] = field(default=())
    """What the user asked for and did not get, with the reason."""

    def node(self, index: int) -> Node:
        return self.graph.nodes[index]

    def edge(self, before: int, after: int) -> Edge:
        return next(edge for edge in self.edges if (edge.before, edge.after) == (before, after))

    @property
    def shown(self) -> frozenset[int]:
        """The stages and sinks that must know more of a record than its payload: its key, time or stream."""
        return frozenset(index for index, node in enumerate(self.graph.nodes) if self._is_shown(node))

    def _is_shown(self, node: Node) -> bool:
        if node.kind is Kind.SINK:
            return node.connections > 1 and self.graph.order_at(node) is not Order.NONE
        return node.is_asking or node.kind in SHOWN_ALL or (is_timed(node) and node.time is None)

    @property
    def follows_streams(self) -> bool:
        """Whether somebody must be told which streams go on and which end."""
        return bool(self.endings or self.inputs)

    @property
    def levels(self) -> int:
        return 1 + max(chain.level for chain in self.chains)

    @property
    def are_letters_merged(self) -> bool:
        """Whether dead letters come from several levels, and in an order: they are then merged by their keys."""
        return self.levels > 1 and self.graph.letters_order is not Order.NONE

    @property
    def tasks_max(self) -> int:
        """The tasks of the widest chain: so many can be at work at a time."""
        return max(chain.tasks for chain in self.chains)

    def at_level(self, level: int) -> tuple[PlannedChain, ...]:
        return tuple(chain for chain in self.chains if chain.level == level)

    def fed_by(self, exchange: int) -> tuple[PlannedChain, ...]:
        """The chains that write to this exchange."""
        return tuple(chain for chain in self.chains if exchange in chain.feeds)

    def steps(self, number: int) -> list[list[int]]:
        """The stages of a chain; those with a function of one record that stand in a row, in one step."""
        steps: list[list[int]] = []
        for index in self.chains[number].stages:
            before = steps[-1][-1] if steps else index
            is_in_row = self.node(index).parents == (before,) and self.graph.children(before) == (index,)
            if is_in_row and {self.node(before).kind, self.node(index).kind} <= BY_RECORD:
                steps[-1].append(index)
            else:
                steps.append([index])
        return steps
