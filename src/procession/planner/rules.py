"""The planner: turns a graph into a plan, by rules that are applied one after the other.

Invariant: order is kept only between a stage that creates it and a stage that needs it, by the cheapest strategy. Each
decision has a reason that `explain()` shows. Takes a `planner/graph`, returns a `planner/plan`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import combinations

from procession.errors import PlanError
from procession.operators.end_of_input import find_endings
from procession.planner.graph import Graph, Kind, Node, Order
from procession.planner.inputs import inputs_of, number_of
from procession.planner.keys import RecordKey
from procession.planner.plan import Edge, Plan, PlannedChain
from procession.planner.sharing import find_sharing
from procession.planner.strategies import TABLE, Routing, Strategy, is_by_clock, is_timed, numbers_of, routing_of

RUNS_MAX = 65_536
"""Maximum number of runs with their own manifest that Spark shuffles, in an exchange and an epoch."""

SEQUENCE = "sequence"
# Kinds that keep the number of records, so that equal ranges stay equal.
EVEN = frozenset({Kind.SOURCE, Kind.MAP, Kind.MAP_ASYNC, Kind.PEEK, Kind.KEY_BY, Kind.ADD_TIMESTAMPS, Kind.SPLIT})


def make_plan(graph: Graph) -> Plan:
    """Decide how the order of this graph is kept. Raises PlanError if that is impossible."""
    plan = Plan(graph)
    for rule in RULES:
        plan = rule(plan)
    return plan


def check_runnable(plan: Plan) -> None:
    """Raise PlanError for a stage that can be planned, but not run in this version."""
    for node in plan.graph.nodes:
        if later := TABLE[node.kind].comes_with:
            raise PlanError(
                f"stage {node.name!r} is a {node.kind.value}, which this version cannot run: it comes with {later}",
                next_step="remove the stage, or write it with map, flat_map and map_batches",
                stage=node.name,
            )


# Needs: the order that later stages need, found from the sinks backwards


def find_needs(plan: Plan) -> Plan:
    """Find the order that the output of each stage needs: the strongest order that a later stage needs. The dead-letter
    sink, if there is one, comes after every stage."""
    nodes = plan.graph.nodes
    needs = [Order.NONE if node.kind is Kind.SINK else plan.graph.dead_letters_order for node in nodes]
    for index in reversed(range(len(nodes))):
        need = _need_of_input(nodes[index], needs[index], plan.graph.order)
        for parent in nodes[index].parents:
            needs[parent] = _stronger(needs[parent], need)
    return replace(plan, needs=tuple(needs))


def _need_of_input(node: Node, need: Order, order: Order) -> Order:
    row = TABLE[node.kind]
    if node.kind is Kind.SINK:
        return node.order or order
    wanted = Order.NONE if row.is_creating else need
    if row.is_sensitive:
        wanted = _stronger(wanted, Order.KEY if row.way is Routing.BY_KEY else Order.TOTAL)
    if wanted is Order.KEY and (node.kind is Kind.KEY_BY or routing_of(node) is Routing.BY_KEY):
        # The key is unknown before this stage, so the order of all records must be kept up to here.
        return Order.TOTAL
    return wanted


def _stronger(first: Order, second: Order) -> Order:
    needs = {first, second} - {Order.NONE}
    return Order.NONE if not needs else needs.pop() if len(needs) == 1 else Order.TOTAL


# Exchanges and chains


def find_exchanges(plan: Plan) -> Plan:
    """Find the exchanges. A rebalance of records that are already evenly distributed is not an exchange."""
    nodes = plan.graph.nodes
    exchanges = {index for index, node in enumerate(nodes) if routing_of(node) is not Routing.NARROW}
    even = {index for index in exchanges if routing_of(nodes[index]) is Routing.EVENLY}
    idle = {index for index in even if _is_idle(plan, index, exchanges)}
    return replace(plan, exchanges=frozenset(exchanges - idle))


def _is_idle(plan: Plan, index: int, exchanges: Iterable[int]) -> bool:
    """Whether the records come evenly distributed from the source, and the number of tasks does not change."""
    nodes = plan.graph.nodes
    if nodes[index].parallelism is not None or any(
        nodes[other].parallelism is not None for other in _reached(plan, index, set(exchanges) - {index})
    ):
        return False
    (parent,) = nodes[index].parents
    while nodes[parent].kind in EVEN and nodes[parent].parents:
        (parent,) = nodes[parent].parents
    return nodes[parent].kind is Kind.SOURCE and len(plan.graph.sources) == 1


def _reached(plan: Plan, index: int, closed: Iterable[int] = ()) -> set[int]:
    """Return this stage and all stages after it, without the closed stages and those after them."""
    found = {index}
    for other, node in enumerate(plan.graph.nodes):
        if other not in closed and found & set(node.parents):
            found.add(other)
    return found


def fuse_chains(plan: Plan) -> Plan:
    """Make one chain of all stages between two exchanges. After a merge of two chains, both run the later stages."""
    nodes = plan.graph.nodes
    roots: list[int | None] = [None, *sorted(plan.exchanges)]
    chains_of: list[frozenset[int]] = []
    for index, node in enumerate(nodes):
        if index in plan.exchanges:
            chains_of.append(frozenset({roots.index(index)}))
        elif node.parents:
            chains_of.append(frozenset().union(*(chains_of[parent] for parent in node.parents)))
        else:
            # The first chain reads the sources; dead letters may come from any chain.
            chains_of.append(frozenset({0} if node.kind is Kind.SOURCE else range(len(roots))))
    chains: list[PlannedChain] = []
    for number, root in enumerate(roots):
        stages = tuple(i for i, node in enumerate(nodes) if number in chains_of[i] and node.kind is not Kind.SINK)
        parents = () if root is None else nodes[root].parents
        levels = [chains[before].level for parent in parents for before in chains_of[parent]]
        chains.append(
            PlannedChain(
                number,
                root,
                stages,
                tasks=0,
                level=1 + max(levels, default=-1),
                feeds=tuple(index for index in sorted(plan.exchanges) if set(nodes[index].parents) & set(stages)),
                sinks=tuple(i for i, node in enumerate(nodes) if node.kind is Kind.SINK and number in chains_of[i]),
            )
        )
    return replace(plan, chains_of=tuple(chains_of), chains=tuple(chains))


def count_tasks(plan: Plan) -> Plan:
    """Find the number of tasks of each chain. If order is kept, the number never increases after the chain's root,
    because the outputs of two tasks with one input would have no order."""
    notes: list[str] = []
    chains = []
    for chain in plan.chains:
        requested = {index: tasks for index in chain.stages if (tasks := plan.node(index).parallelism) is not None}
        is_kept = any(plan.needs[index] is not Order.NONE for index in chain.stages)
        if chain.root is not None and routing_of(plan.node(chain.root)) is Routing.TO_ONE:
            tasks, requested[chain.root] = 1, 1
        else:
            tasks = (min if is_kept else max)(requested.values(), default=plan.graph.parallelism)
        cap = next((index for index, number in requested.items() if number == tasks), None)
        notes += [
            f"{plan.node(index).name} asked for {_tasks(number)} and runs with {tasks}: it is one function with the"
            f" other stages of its chain, which {plan.node(cap).name} caps at {tasks}, and more tasks than the stage"
            " before would break the order"
            for index, number in requested.items()
            if number != tasks and is_kept and cap is not None
        ]
        chains.append(replace(chain, tasks=tasks, capped_by=cap if tasks < plan.graph.parallelism else None))
    return replace(plan, chains=tuple(chains), notes=tuple(dict.fromkeys(notes)))


def _tasks(number: int) -> str:
    return "1 task" if number == 1 else f"{number} tasks"


# Keys


def shape_keys(plan: Plan) -> Plan:
    """Find the order key in the output of each stage. An edge has one key. After a merge it is the longest key, because
    the keys of two records of different branches differ before the shorter key ends."""
    nodes = plan.graph.nodes
    behind = [_reached(plan, index) for index in range(len(nodes))]
    branching = {
        index
        for index in range(len(nodes))
        if any(behind[child] & behind[other] for child, other in combinations(plan.graph.children(index), 2))
    }
    keys: list[tuple[str, ...]] = []
    for node in nodes:
        came = [keys[parent] + ((f"{nodes[parent].name}?",) if parent in branching else ()) for parent in node.parents]
        shape = max(came, key=len, default=(SEQUENCE,))
        numbers = numbers_of(node)
        parts = [node.name] if numbers == 1 else [f"{node.name}.{number}" for number in range(numbers)]
        keys.append((*shape, *parts))
    return replace(plan, branching=frozenset(branching), keys=tuple(keys))


def find_traced(plan: Plan) -> Plan:
    """Find the stages whose output carries order keys, because a merge follows, at least of their dead letters."""
    traced: set[int] = set()
    if plan.are_dead_letters_merged:
        traced = {index for index, node in enumerate(plan.graph.nodes) if node.kind is not Kind.SINK}
    for index, node in reversed(list(enumerate(plan.graph.nodes))):
        if node.kind is Kind.SINK:
            asks = _sink_strategy(plan, index)[0] is Strategy.MERGE
        else:
            asks = (index in plan.exchanges or node.kind is Kind.MERGE) and _kept_before(plan, index)
        if asks or index in traced:
            traced |= set(node.parents)
    keyed_before = {index for index, node in enumerate(plan.graph.nodes) if isinstance(node.key, RecordKey)}
    giving = [index for index, node in enumerate(plan.graph.nodes) if node.kind is Kind.KEY_BY]
    keeping_key = {index for index in plan.exchanges if keyed_before & _reached(plan, index, giving)}
    carrying = {index for index in plan.exchanges if plan.shown & _reached(plan, index)}
    return replace(plan, traced=frozenset(traced), carrying=frozenset(carrying), keeping_key=frozenset(keeping_key))


def _kept_before(plan: Plan, index: int) -> bool:
    node = plan.node(index)
    return _need_of_input(node, plan.needs[index], plan.graph.order) is not Order.NONE


def follow_ends(plan: Plan) -> Plan:
    """Find the stages that fire when their input has ended, and the condition of each."""
    return replace(plan, endings=find_endings(plan.graph))


def find_copies(plan: Plan) -> Plan:
    """Find where values are copied, so that each stage has its own."""
    return replace(plan, sharing=find_sharing(plan.graph, plan.exchanges))


# Watermarks


def find_inputs(plan: Plan) -> Plan:
    """Find the inputs of each watermark. In event-time order, no input has to be waited for, because the greatest time
    is that of all streams."""
    nodes = plan.graph.nodes
    origins: dict[int, int | None] = {}
    for chain in sorted(plan.chains, key=lambda chain: chain.level):
        if chain.root is None:
            origins[chain.number] = None
            continue
        feeding = {origins[other.number] for other in plan.fed_by(chain.root)}
        is_passing = len(feeding) == 1 and not TABLE[nodes[chain.root].kind].is_firing
        origins[chain.number] = feeding.pop() if is_passing else number_of(chain.root)
    behind = {chain.root: origins[chain.number] for chain in plan.chains if chain.root is not None}
    inputs = {}
    for index in sorted(plan.exchanges):
        if plan.graph.event_time is None and is_timed(nodes[index]) and not is_by_clock(nodes[index]):
            found = inputs_of(plan.graph, index, behind)
            if not found.is_one:
                inputs[index] = found
    # Exchanges before such a stage carry the stream of each record.
    passing = {root for root, origin in behind.items() if origin is None}
    carrying = {index for index in passing if inputs.keys() & _reached(plan, index) - {index}}
    return replace(
        plan,
        origins=tuple(origins[chain.number] for chain in plan.chains),
        inputs=inputs,
        carrying=plan.carrying | carrying,
    )


# Edges


def choose_strategies(plan: Plan) -> Plan:
    edges = []
    for index, node in enumerate(plan.graph.nodes):
        for parent in node.parents:
            if node.kind is Kind.SINK:
                paths = sum(plan.chains[number].tasks for number in plan.chains_of[parent])
                strategy, why = _sink_strategy(plan, index, paths)
                is_merged = strategy is Strategy.MERGE
                edges.append(Edge(parent, index, strategy, why, paths if is_merged else 1, is_merged=is_merged))
            elif index in plan.exchanges:
                edges.append(_exchange(plan, parent, index))
            else:
                edges.append(Edge(parent, index, *_narrow(plan, parent, index)))
    return replace(plan, edges=tuple(edges))


def _sink_strategy(plan: Plan, index: int, paths: int = 0) -> tuple[Strategy, str]:
    node, (strategy, why) = plan.node(index), _way_to_sink(plan, index, paths)
    if node.connections == 1 or node.lanes:
        return strategy, why
    share = {Order.KEY: "every key in one of them", Order.STREAM: "every stream in one of them"}
    shared = share.get(plan.graph.order_at(node), "distributed evenly")
    return strategy, f"{why}; for each of {node.connections} connections apart, {shared}"


def _way_to_sink(plan: Plan, index: int, paths: int) -> tuple[Strategy, str]:
    order = plan.graph.order_at(plan.node(index))
    chains = plan.chains_of[index]
    if order is Order.NONE:
        return Strategy.FREE, "this sink needs no order: it gets the tasks' records as they arrive"
    if lanes := plan.node(index).lanes:
        return Strategy.MERGE, f"{paths} sorted paths go to {lanes} lanes with their order key; readers merge the lanes"
    if chains == {0}:
        return Strategy.RANGES, "no exchange since the source: the concatenated outputs of the tasks are in order"
    (parent, *_) = plan.node(index).parents or (None,)
    if order is Order.KEY and parent is not None and len(chains) == 1 and _is_keyed_by(plan, parent, *chains):
        return Strategy.PARTITION, "all records of a key are in one task, in order, and the sink needs no more"
    return Strategy.MERGE, f"the {paths} tasks' outputs are sorted paths, merged by the order key at the sink"


def _is_keyed_by(plan: Plan, index: int, chain: int) -> bool:
    """Whether the chain's tasks are partitioned by the key that records have after this stage."""
    root = plan.chains[chain].root
    if root is None or routing_of(plan.node(root)) is not Routing.BY_KEY:
        return False
    return all(
        plan.node(stage).kind is not Kind.KEY_BY
        for stage in plan.chains[chain].stages
        if index in _reached(plan, stage)
    )


def _exchange(plan: Plan, parent: int, index: int) -> Edge:
    node = plan.node(index)
    producers = [plan.chains[number] for number in sorted(plan.chains_of[parent])]
    paths = sum(chain.tasks for chain in producers)
    (consumer,) = (chain for chain in plan.chains if chain.root == index)
    rows = paths + consumer.tasks if plan.is_wide(consumer.level) else paths * consumer.tasks
    if rows > RUNS_MAX:
        raise PlanError(
            f"the exchange before stage {node.name!r} would write {rows:,} runs in each epoch, from {paths:,} tasks to"
            f" {consumer.tasks:,}; {RUNS_MAX:,} are allowed",
            next_step="use a smaller parallelism before or after it",
            stage=node.name,
        )
    strategy, why = _exchange_strategy(plan, index, paths)
    if strategy is Strategy.MERGE and routing_of(node) is Routing.EVENLY and plan.graph.is_strict:
        raise _strict(plan, parent, index)
    return Edge(parent, index, strategy, why, paths, rows, is_merged=_kept_before(plan, index))


def _exchange_strategy(plan: Plan, index: int, paths: int) -> tuple[Strategy, str]:
    is_kept = _kept_before(plan, index)
    merged = f"each task merges {paths} sorted path{'s' * (paths > 1)}"
    match routing_of(plan.node(index)):
        case Routing.BY_KEY:
            restored = f"{merged}, so the records of each key are in order" if is_kept else "no order is required"
            return Strategy.PARTITION, f"all records of a key go to one task; {restored}"
        case Routing.ROWS if is_kept:
            return Strategy.SORT, "Spark SQL may return rows in any order, so they are sorted by their order key"
        case Routing.EVENLY | Routing.TO_ONE | Routing.TO_ALL if is_kept:
            return Strategy.MERGE, f"records move to other tasks, and a later stage needs the order: {merged}"
        case _:
            return Strategy.FREE, "records move to other tasks, and no later stage needs the order"


def _narrow(plan: Plan, parent: int, index: int) -> tuple[Strategy, str]:
    node = plan.node(index)
    chains = plan.chains_of[index]
    tasks = [plan.chains[number].tasks for number in sorted(chains)]
    if plan.needs[parent] is Order.NONE:
        return Strategy.FREE, "no later stage needs the order"
    if node.kind is Kind.REBALANCE:
        return Strategy.ISOLATE, "the source's ranges already have the same size, so no exchange is necessary"
    if node.parallelism is not None and node.parallelism not in tasks:
        reason = f"{node.parallelism} requested, {' and '.join(map(str, tasks))} upstream"
        return Strategy.ISOLATE, f"{reason}: the number of tasks does not change on an ordered narrow edge"
    if node.kind is Kind.MERGE and len(chains) > 1:
        return Strategy.ISOLATE, "the inputs are in different chains: each continues in its own, with its order key"
    if node.kind is Kind.MERGE:
        return Strategy.RANGES if chains == {0} else Strategy.ISOLATE, "branches of one task, merged by their order key"
    if chains == {0}:
        return Strategy.RANGES, "no exchange since the source"
    return Strategy.ISOLATE, "no exchange since the last merge: the task's records stay in it, in order"


def _strict(plan: Plan, parent: int, index: int) -> PlanError:
    node, before = plan.node(index), plan.node(parent)
    behind = [plan.node(other) for other in sorted(_reached(plan, index))]
    consumer = next((other for other in behind if TABLE[other.kind].is_sensitive), behind[-1])
    return PlanError(
        f"stage {node.name!r} distributes the records of {before.name!r} over other tasks, which loses their order,"
        f" but {'sink' if consumer.kind is Kind.SINK else 'stage'} {consumer.name!r} needs them in order",
        next_step="give it a key, as in rebalance(key): the records of each key then stay in one task. Or omit"
        " strict=True: a merge then restores the order",
        stage=node.name,
    )


Rule = Callable[[Plan], Plan]
RULES: tuple[Rule, ...] = (
    find_needs,
    find_exchanges,
    fuse_chains,
    count_tasks,
    shape_keys,
    find_traced,
    follow_ends,
    find_copies,
    find_inputs,
    choose_strategies,
)
