"""Sharing: finds values that have more than one holder, one of which may change the value.

Invariant: the output is as if each stage got its own copy of its input. A value is copied only if two things are true.
It is a Python object that goes to several stages, or is one of several results of one call, or may be held by the
function that returned it. And a later stage may change it before it becomes bytes, at a sink or an exchange. A filter,
a peek and the functions of a key or a time get the copy of their stage. The stage then passes it on, with any change
that they made. `planner/effects` reads the functions; `operators/chain` makes the copies. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from procession.operators.side_outputs import Tagging
from procession.operators.stream_join import Sided
from procession.operators.tables import TableJoin
from procession.planner.effects import changes_nothing, returns_own_objects
from procession.planner.graph import Graph, Kind, Node
from procession.planner.keys import RecordKey

# These stages get bytes, which cannot be changed.
TAKING_BYTES = frozenset({Kind.SINK, Kind.MAP_BATCHES, Kind.TRANSFORM})
# These stages pass on their input, or have none, so they hold no references.
PASSING_ON = frozenset({Kind.SOURCE, Kind.FILTER, Kind.PEEK, Kind.KEY_BY, Kind.ADD_TIMESTAMPS, Kind.MERGE})


@dataclass(frozen=True)
class Sharing:
    """Which stages may change which values. Stages are identified by their number in the graph."""

    changing: frozenset[int] = frozenset()
    """The stages whose functions may change their arguments."""
    exposed: frozenset[int] = frozenset()
    """The stages whose output a later stage may change."""
    borrowing: frozenset[int] = frozenset()
    """The exposed stages whose function may still hold a reference to its result."""
    copied: frozenset[tuple[int, int]] = frozenset()
    """The edges on which every value is copied, because several stages get it."""


def find_sharing(graph: Graph, exchanges: frozenset[int]) -> Sharing:
    """Find where values are copied in a graph with exchanges at these stages."""
    nodes = graph.nodes
    changing = frozenset(index for index, node in enumerate(nodes) if not all(map(changes_nothing, _called(node))))
    is_exposing = [False] * len(nodes)
    """Whether the input of a stage may be changed there or later."""
    exposed = set()
    for index in reversed(range(len(nodes))):
        if any(is_exposing[child] for child in graph.children(index)):
            exposed.add(index)
        if nodes[index].kind not in TAKING_BYTES:
            is_exposing[index] = _is_changed_before(index, nodes[index], changing, exchanges, exposed)
        elif nodes[index].kind is Kind.SINK:
            is_exposing[index] = not all(map(changes_nothing, _called_at_exchange(nodes[index])))
    borrowing = frozenset(
        index
        for index in exposed
        if nodes[index].kind not in PASSING_ON and not all(map(returns_own_objects, _giving(nodes[index])))
    )
    copied: set[tuple[int, int]] = set()
    for index, node in enumerate(nodes):
        # In a split, each value goes to only one of the stages.
        children = () if node.kind is Kind.SPLIT else graph.children(index)
        changed = [child for child in children if is_exposing[child]]
        if len(children) > 1 and len(changed) == len(children):
            # The stage that runs last gets the original: exchanges run after all stages.
            changed.remove(max(changed, key=lambda child: (child in exchanges, child)))
        copied |= {(index, child) for child in changed if len(children) > 1}
    return Sharing(changing, frozenset(exposed), borrowing, frozenset(copied))


def _is_changed_before(
    index: int, node: Node, changing: frozenset[int], exchanges: frozenset[int], exposed: set[int]
) -> bool:
    if index not in exchanges:
        return index in changing or index in exposed
    return not all(map(changes_nothing, _called_at_exchange(node)))


def _called(node: Node) -> Iterator[Callable[..., Any]]:
    """Yield the functions that a stage calls with its input, while other stages may hold it."""
    if isinstance(node.function, TableJoin):
        yield node.function.join
        yield from (key for _, key in node.function.pairs)
        yield from () if node.function.valid is None else (node.function.valid.time, node.function.valid.valid_from)
    elif isinstance(node.function, Tagging):
        yield from node.function.functions()
    elif node.function is not None:
        yield node.function


def _called_at_exchange(node: Node) -> Iterator[Callable[..., Any]]:
    """Yield the functions that are called before records are encoded for an exchange: the key and the time."""
    by_key = node.function if node.kind is Kind.REBALANCE else node.key
    for function in (by_key, node.time):
        if isinstance(function, Sided):
            yield from (function.left, function.right)
        elif function is not None and not isinstance(function, RecordKey):
            yield function


def _giving(node: Node) -> Iterator[Any]:
    """Yield the functions whose results are the output of a stage."""
    if isinstance(node.function, TableJoin):
        yield node.function.join
    elif isinstance(node.function, Tagging):
        yield from () if node.function.value is None else (node.function.value,)
    elif node.operator is not None:
        yield from node.operator.state.outputs
    elif node.function is not None and node.kind is not Kind.REBALANCE:
        yield node.function
