"""Sharing: where a value has more than one holder, and one of them may change it.

The one rule: the output is as if each stage got its own copy of what it is given. A copy is made only where a value
that is still a Python object goes to several stages, or is one of several results of one call, or may be held by the
function that gave it; and only if a stage behind may change it before it becomes bytes, at a sink or an exchange. A
filter, a peek and the functions of a key or a time work on the copy of their stage, which goes on as they leave it.
Before it `planner/effects`, which reads functions; after it `operators/chain`, which copies. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from procession.operators.aggregates import Aggregate
from procession.operators.stream_join import Sided
from procession.operators.tables import Joining
from procession.planner.effects import changes_nothing, gives_its_own
from procession.planner.graph import Graph, Kind, Node
from procession.planner.keyed_spec import RecordKey

# They take bytes: what they are given cannot be changed.
TAKING_BYTES = frozenset({Kind.SINK, Kind.MAP_BATCHES, Kind.TRANSFORM})
# They pass on what they are given, or are given nothing: nobody else can hold it because of them.
PASSING_ON = frozenset({Kind.SOURCE, Kind.FILTER, Kind.PEEK, Kind.KEY_BY, Kind.ADD_TIMESTAMPS, Kind.MERGE})


@dataclass(frozen=True)
class Sharing:
    """Who may change which values. Everything is by the number of the stage in the graph."""

    changing: frozenset[int] = frozenset()
    """The stages whose functions may change what they are given."""
    exposed: frozenset[int] = frozenset()
    """The stages of whose output a value may be changed by a stage behind."""
    borrowing: frozenset[int] = frozenset()
    """Those of the exposed ones whose function may still hold what it has given."""
    copied: frozenset[tuple[int, int]] = frozenset()
    """The edges over which every value is copied, because the stage before has several holders of it behind it."""


def find_sharing(graph: Graph, exchanges: frozenset[int]) -> Sharing:
    """Where values are copied in a graph that has exchanges at these stages."""
    nodes = graph.nodes
    changing = frozenset(index for index, node in enumerate(nodes) if not all(map(changes_nothing, _called(node))))
    is_exposing = [False] * len(nodes)
    """Whether what comes to a stage may be changed there or behind it."""
    exposed = set()
    for index in reversed(range(len(nodes))):
        if any(is_exposing[child] for child in graph.children(index)):
            exposed.add(index)
        if nodes[index].kind not in TAKING_BYTES:
            is_exposing[index] = _is_changed_before(index, nodes[index], changing, exchanges, exposed)
    borrowing = frozenset(
        index
        for index in exposed
        if nodes[index].kind not in PASSING_ON and not all(map(gives_its_own, _giving(nodes[index])))
    )
    copied: set[tuple[int, int]] = set()
    for index in range(len(nodes)):
        children = graph.children(index)
        changed = [child for child in children if is_exposing[child]]
        if len(children) > 1 and len(changed) == len(children):
            # The last that runs may have the original: exchanges are fed behind all stages.
            changed.remove(max(changed, key=lambda child: (child in exchanges, child)))
        copied |= {(index, child) for child in changed if len(children) > 1}
    return Sharing(changing, frozenset(exposed), borrowing, frozenset(copied))


def _is_changed_before(
    index: int, node: Node, changing: frozenset[int], exchanges: frozenset[int], exposed: set[int]
) -> bool:
    if index not in exchanges:
        return index in changing or index in exposed
    return not all(map(changes_nothing, _asked_at_exchange(node)))


def _called(node: Node) -> Iterator[Callable[..., Any]]:
    """The functions that a stage calls with what it is given, while others may hold it."""
    if isinstance(node.function, Joining):
        yield node.function.join
        yield from (key for _, key in node.function.pairs)
    elif node.function is not None:
        yield node.function


def _asked_at_exchange(node: Node) -> Iterator[Callable[..., Any]]:
    """The functions that are called before records become bytes for an exchange: of a key, of a time."""
    by_key = node.function if node.kind is Kind.REBALANCE else node.key
    for function in (by_key, node.time):
        if isinstance(function, Sided):
            yield from (function.left, function.right)
        elif function is not None and not isinstance(function, RecordKey):
            yield function


def _giving(node: Node) -> Iterator[Any]:
    """The functions whose results leave a stage."""
    if isinstance(node.function, Joining):
        yield node.function.join
    elif node.stateful is not None:
        holder = getattr(node.stateful.step, "__self__", None)
        if isinstance(holder, Aggregate):
            yield from (holder.create, holder.add, holder.finish)
        elif node.stateful.step is not None:
            yield node.stateful.step
        for name in ("join", "on_evict"):
            if (function := getattr(node.stateful.windowing, name, None)) is not None:
                yield function
    elif node.function is not None and node.kind is not Kind.REBALANCE:
        yield node.function
