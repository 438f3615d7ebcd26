"""Explain: a plan as a text, as JSON and as a Graphviz file.

Invariant: it shows decisions and makes none; the same plan gives the same text, byte for byte. Shows a `planner/plan`;
used by `Pipeline.explain()`, `procession explain` and `planner/drawing`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from procession.operators.column_stages import column_stages
from procession.operators.record_schema import SchemaJson
from procession.operators.typed_json import TypedJson
from procession.planner.graph import Exchange, Kind, Node
from procession.planner.inputs import StageInputs, number_of
from procession.planner.plan import Edge, Plan, PlannedChain
from procession.planner.strategies import TABLE, is_by_clock

LETTERS = "records on which the function of any stage raises"


def explain(plan: Plan) -> str:
    """Return the plan as text for people: its chains, its edges with their strategies and reasons, its exchanges."""
    graph = plan.graph
    lines = [f"{graph.name}: order {graph.order.value}, {graph.guarantee.value}"]
    lines += _event_time(plan) if graph.event_time is not None else []
    if clocked := [graph.shown_name(node) for node in graph.nodes if is_by_clock(node)]:
        lines.append(f"by the clock: {', '.join(clocked)}: two runs may differ; an epoch that is run again does not")
    if connected := [node for node in graph.nodes if node.share is not None or node.is_in_blocks]:
        shown = (f"  {node.kind.value} {node.name}: {node.target}{_time_field(node)}" for node in connected)
        lines += ["", "connectors (`run` starts them)", *shown]
    if graph.settings:
        lines += [
            "",
            "settings",
            *(f"  {setting.name} = {setting.shown} ({setting.origin})" for setting in graph.settings),
        ]
    for kind, what in ((TypedJson, "objects of these classes"), (SchemaJson, "dicts with these fields")):
        if typed := [f"  {node.name}: {node.typed.shown}" for node in graph.sources if isinstance(node.typed, kind)]:
            lines += ["", f"records are validated when they enter, and are {what}", *typed]
    lines += _columns(plan)
    if kept := [f"  {sink.name}: {text}" for sink in graph.sinks if (text := order_note(plan, sink))]:
        lines += ["", "order at the sinks", *kept]
    lines += ["", "chains (each is one function)"]
    lines += [f"  {_chain(plan, chain)}" for chain in plan.chains]
    if groups := _groups(plan):
        lines += ["", "pieces (each is a group of stages)"]
        lines += [f"  {group}: {', '.join(names)}" for group, names in groups.items()]
    lines += ["", "edges"]
    names = [(_name(plan, edge.before), _name(plan, edge.after), edge) for edge in plan.edges]
    before = max(len(name) for name, _, _ in names)
    after = max(len(name) for _, name, _ in names)
    lines += [f"  {start:{before}} → {end:{after}}  {edge.strategy.value:9}  {edge.why}" for start, end, edge in names]
    lines += ["", "exchanges"]
    lines += [f"  {_exchange(plan, edge)}" for edge in plan.edges if edge.is_exchange] or ["  none"]
    lines += ["", _shuffled(plan)]
    if plan.endings:
        waits = [f"{_name(plan, index)}: {' and '.join(start.sources)}" for index, start in plan.endings.items()]
        lines += ["", "fires what it holds when all streams of these have ended", *(f"  {line}" for line in waits)]
    if plan.inputs:
        waits = [
            f"{_name(plan, index)}: {' and '.join(_held_back_by(plan, start))}" for index, start in plan.inputs.items()
        ]
        lines += ["", "the watermark is the minimum over inputs that have not ended", *(f"  {line}" for line in waits)]
    lines += _copies(plan)
    if plan.notes:
        lines += ["", "not as requested", *(f"  {note}" for note in plan.notes)]
    if later := not_yet(plan):
        lines += ["", "cannot be run yet", *(f"  {name}: it comes with {what}" for name, what in later.items())]
    return "\n".join(lines) + "\n"


def _columns(plan: Plan) -> list[str]:
    """Return which stages are computed on columns, and why other stages with expressions or a schema are not."""
    found = column_stages(plan.graph)
    lines = []
    if found.types:
        lines += ["", "on columns (whole batches, without an object for each record)", f"  {_names(plan, found.types)}"]
    if found.keyed:
        lines += [
            "",
            "keys on columns, and records that pass the exchange as columns",
            f"  {_names(plan, found.keyed)}",
        ]
    for reasons, what in (
        (found.objects, "objects are made of columns"),
        (found.reasons, "record by record, although they have a schema or an expression"),
    ):
        if reasons:
            lines += ["", what, *(f"  {_name(plan, index)}: {reasons[index]}" for index in sorted(reasons))]
    return lines


def _names(plan: Plan, stages: Iterable[int]) -> str:
    return ", ".join(_name(plan, index) for index in sorted(stages))


def _groups(plan: Plan) -> dict[str, list[str]]:
    """Return the reusable pieces of the pipeline, and the stages of each."""
    found: dict[str, list[str]] = {}
    for index, node in enumerate(plan.graph.nodes):
        if node.group:
            found.setdefault(node.group, []).append(_name(plan, index))
    return found


def _time_field(node: Node) -> str:
    return f", event time in field {node.time_field} ({node.unit})" if node.time_field else ""


def order_note(plan: Plan, sink: Node) -> str:
    """Return how a sink changes the pipeline's order. Empty: the sink keeps it."""
    return sink.sink_traits.order_note(sink.url, plan.graph.order.value) if sink.target else ""


def _held_back_by(plan: Plan, inputs: StageInputs) -> list[str]:
    return [
        *(f"each stream of {_name(plan, number_of(node))}" for node in inputs.sources),
        *(_name(plan, number_of(node)) for node in inputs.wholes),
    ]


def _event_time(plan: Plan) -> list[str]:
    event_time, streams = plan.graph.event_time, plan.graph.streams
    assert event_time is not None
    declared = f"{len(streams)} streams, {event_time.lateness_s:g} s late at most; late records: {event_time.late}"
    lines = [f"by event time: {declared}"]
    if event_time.idle_timeout_s is not None:
        lines.append(
            f"a stream that is silent for {event_time.idle_timeout_s:g} s is not waited for: two runs may differ"
        )
    return lines


def _copies(plan: Plan) -> list[str]:
    """Return where values that can be changed are copied."""
    edges = [f"{_name(plan, start)} → {_name(plan, end)}" for start, end in sorted(plan.sharing.copied)]
    lines = [f"  {edge}: another stage has the value too, and one of them may change it" for edge in edges]
    lines += [
        f"  what {_name(plan, index)} gives: its function may still hold it, and a stage behind may change it"
        for index in sorted(plan.sharing.borrowing)
    ]
    return ["", "copies of lists, dicts and other values that can be changed", *lines] if lines else []


def not_yet(plan: Plan) -> dict[str, str]:
    """Return the stages that can be planned but not run, with the version that can run them."""
    return {node.name: what for node in plan.graph.nodes if (what := TABLE[node.kind].comes_with)}


def _name(plan: Plan, index: int) -> str:
    return plan.graph.shown_name(plan.node(index))


def _chain(plan: Plan, chain: PlannedChain) -> str:
    tasks = f"{chain.tasks} task{'s' * (chain.tasks > 1)}"
    stages = ", ".join(_name(plan, index) for index in chain.stages)
    sinks = ", ".join(_sink(plan, index) for index in chain.sinks)
    capped = "" if chain.capped_by is None else f" (capped by {_name(plan, chain.capped_by)})"
    return f"{chain.number}  {tasks:>8}: {stages}" + (f" → {sinks}" if sinks else "") + capped


def _sink(plan: Plan, index: int) -> str:
    name, node = _name(plan, index), plan.node(index)
    return name if node.connections == 1 else f"{name} × {node.connections}{' lanes' * bool(node.lanes)}"


def _exchange(plan: Plan, edge: Edge) -> str:
    producers = " and ".join(f"chain {chain.number} × {chain.tasks}" for chain in plan.fed_by(edge.after))
    consumer = next(chain for chain in plan.chains if chain.root == edge.after)
    key = ", ".join(plan.keys[edge.before])
    carried = f"order key ({key})" if edge.is_merged else "no order key"
    paths = f"{edge.paths} path{'s' * (edge.paths > 1)}"
    return (
        f"{_name(plan, edge.after)}: {producers} → chain {consumer.number} × {consumer.tasks}; {paths} into each task;"
        f" {carried}; Spark shuffles {edge.rows} {_moved(plan)}"
    )


def _moved(plan: Plan) -> str:
    return "manifests" if plan.graph.exchange is Exchange.RUNS else "runs, as cells"


def _shuffled(plan: Plan) -> str:
    rows = sum(edge.rows for edge in plan.edges)
    if not rows:
        return "Spark shuffles nothing."
    if plan.graph.exchange is Exchange.SPARK:
        return f"Spark shuffles {rows:,} runs in each epoch, with all their records in them."
    if any(TABLE[node.kind].way.name == "ROWS" for node in plan.graph.nodes):
        return f"Spark shuffles {rows:,} manifests in each epoch, and the records that go through Spark SQL."
    return f"Spark shuffles {rows:,} manifests in each epoch, and no record."


def as_dict(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON values. Stages and sinks are identified by name, which is unique among stages and among
    sinks. If a name may be either, its kind is given, too."""
    graph, on_columns = plan.graph, column_stages(plan.graph)
    return {
        "pipeline": graph.name,
        "order": graph.order.value,
        "guarantee": graph.guarantee.value,
        "exchange": graph.exchange.value,
        "order_by": "arrival" if graph.event_time is None else "event_time",
        "stages": [
            {
                "id": node.name,
                "kind": node.kind.value,
                **({"piece": node.group} if node.group else {}),
                "chains": sorted(plan.chains_of[index]),
                "asked": node.parallelism,
                **({"connections": node.connections} if node.kind is Kind.SINK else {}),
                **({"lanes": node.lanes} if node.lanes else {}),
                **({"url": node.target} if node.target else {}),
                **({"event_time_field": node.time_field, "event_time_unit": node.unit} if node.time_field else {}),
                **({"record": node.typed.shown} if node.typed else {}),
                **({"is_on_columns": True} if index in on_columns else {}),
                **({"has_key_on_columns": True} if index in on_columns.keyed else {}),
                **({"makes_objects": reason} if (reason := on_columns.objects.get(index)) else {}),
                **({"order_note": text} if node.kind is Kind.SINK and (text := order_note(plan, node)) else {}),
                "needs": plan.needs[index].value,
                "key": list(plan.keys[index]),
                "is_traced": index in plan.traced,
                "ends_with": list(plan.endings[index].sources) if index in plan.endings else [],
                "held_back_by": _held_back_by(plan, plan.inputs[index]) if index in plan.inputs else [],
            }
            for index, node in enumerate(graph.nodes)
        ],
        "chains": [
            {
                "number": chain.number,
                "behind": None if chain.root is None else plan.node(chain.root).name,
                "stages": [plan.node(index).name for index in chain.stages],
                "sinks": [plan.node(index).name for index in chain.sinks],
                "tasks": chain.tasks,
                "capped_by": None if chain.capped_by is None else plan.node(chain.capped_by).name,
                "level": chain.level,
            }
            for chain in plan.chains
        ],
        "edges": [
            {
                "before": plan.node(edge.before).name,
                "after": plan.node(edge.after).name,
                "after_kind": plan.node(edge.after).kind.value,
                "strategy": edge.strategy.value,
                "why": edge.why,
                "paths": edge.paths,
                "is_exchange": edge.is_exchange,
                "is_merged": edge.is_merged,
                "shuffled": edge.rows,
            }
            for edge in plan.edges
        ],
        "notes": list(plan.notes),
        "not_yet": not_yet(plan),
    }


def as_json(plan: Plan) -> str:
    return json.dumps(as_dict(plan), indent=2, ensure_ascii=False) + "\n"


def as_dot(plan: Plan) -> str:
    """Return the plan for Graphviz: a box for each chain, and a bold arrow for each exchange."""
    lines = [f"digraph {_quoted(plan.graph.name)} {{", "  rankdir=LR;", "  node [shape=box];"]
    for chain in plan.chains:
        # A stage that two chains run is drawn in the first of them.
        indexes = [index for index in chain.stages if min(plan.chains_of[index]) == chain.number]
        names = " ".join(f"{_quoted(_name(plan, index))};" for index in indexes)
        label = _quoted(f"chain {chain.number} × {chain.tasks}")
        lines.append(f"  subgraph cluster_{chain.number} {{ label={label}; {names} }}")
    for index, node in enumerate(plan.graph.nodes):
        if node.kind is Kind.SINK:
            label = f" label={_quoted(_sink(plan, index))}" if node.connections > 1 else ""
            lines.append(f"  {_quoted(_name(plan, index))} [shape=cylinder{label}];")
    for edge in plan.edges:
        style = ' style="bold"' if edge.is_exchange else ""
        ends = f"{_quoted(_name(plan, edge.before))} -> {_quoted(_name(plan, edge.after))}"
        lines.append(f"  {ends} [label={_quoted(edge.strategy.value)} tooltip={_quoted(edge.why)}{style}];")
    return "\n".join([*lines, *_dot_letters(plan), "}"]) + "\n"


def _dot_letters(plan: Plan) -> list[str]:
    """Return an arrow to the dead letters from each chain, because any of its functions may raise."""
    if plan.graph.dead_letter is None:
        return []
    sink = _quoted(plan.graph.shown_name(plan.graph.dead_letter))
    lines = ["  compound=true;"]
    for chain in plan.chains:
        indexes = [index for index in chain.stages if min(plan.chains_of[index]) == chain.number]
        if indexes:
            ends = f"{_quoted(_name(plan, indexes[-1]))} -> {sink}"
            lines.append(f'  {ends} [ltail=cluster_{chain.number} style="dashed" tooltip={_quoted(LETTERS)}];')
    return lines


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
