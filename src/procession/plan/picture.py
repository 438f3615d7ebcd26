"""The picture: a plan drawn as SVG, without any other program.

The one rule: it is made of boxes and lines at places that are counted out, so that the same plan gives the same
picture; for a finer drawing there is Graphviz (`explain --dot`). Before it `plan/blueprint`; after it a browser.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from procession.plan.blueprint import Edge, Plan
from procession.plan.graph import Kind

BOX_WIDTH, BOX_HEIGHT = 150, 44
GAP_X, GAP_Y = 110, 34
MARGIN = 24
LETTERS_MAX = 19
"""So much of a stage's name fits into its box; the whole of it is shown when one points at it."""

# One for each chain, in turn: light enough to be written on.
COLOURS = ("#dbeafe", "#dcfce7", "#fef3c7", "#fce7f3", "#ede9fe", "#e0f2fe")
SINK_COLOUR = "#e5e7eb"


@dataclass(frozen=True)
class Place:
    x: int
    y: int


def as_svg(plan: Plan) -> str:
    """The plan as one SVG document: stages from left to right, coloured by chain, each edge with its strategy."""
    places = _places(plan)
    width = max(place.x for place in places.values()) + BOX_WIDTH + MARGIN
    height = max(place.y for place in places.values()) + BOX_HEIGHT + MARGIN
    title = f"{plan.graph.name}: order {plan.graph.order.value}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#374151"/></marker></defs>',
        f'<text x="{MARGIN}" y="{MARGIN}" font-size="14" font-weight="bold">{escape(title)}</text>',
        *(_line(places[edge.before], places[edge.after], edge) for edge in plan.edges),
        *(_box(plan, index, place) for index, place in places.items()),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _places(plan: Plan) -> dict[int, Place]:
    """A column for each step from the source, and in it the stages in the order in which they were written."""
    columns: list[list[int]] = []
    column_of: list[int] = []
    for index, node in enumerate(plan.graph.nodes):
        column = 1 + max(column_of[parent] for parent in node.parents) if node.parents else 0
        column_of.append(column)
        while len(columns) <= column:
            columns.append([])
        columns[column].append(index)
    return {
        index: Place(MARGIN + column * (BOX_WIDTH + GAP_X), 2 * MARGIN + row * (BOX_HEIGHT + GAP_Y))
        for column, stages in enumerate(columns)
        for row, index in enumerate(stages)
    }


def _box(plan: Plan, index: int, place: Place) -> str:
    node = plan.node(index)
    numbers = sorted(plan.chains_of[index])
    is_sink = node.kind is Kind.SINK
    colour = SINK_COLOUR if is_sink else COLOURS[numbers[0] % len(COLOURS)]
    chains = ", ".join(f"chain {number} × {plan.chains[number].tasks}" for number in numbers)
    shown = node.name if len(node.name) <= LETTERS_MAX else f"{node.name[: LETTERS_MAX - 1]}…"
    middle = place.x + BOX_WIDTH // 2
    sink = "sink" if node.connections == 1 else f"sink × {node.connections}"
    below = sink if is_sink else chains
    return (
        f"<g><title>{escape(f'{node.name} ({node.kind.value}): {chains}')}</title>"
        f'<rect x="{place.x}" y="{place.y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="{18 if is_sink else 5}"'
        f' fill="{colour}" stroke="#374151"/>'
        f'<text x="{middle}" y="{place.y + 18}" text-anchor="middle" font-weight="bold">{escape(shown)}</text>'
        f'<text x="{middle}" y="{place.y + 35}" text-anchor="middle" fill="#4b5563">{escape(below)}</text></g>'
    )


def _line(before: Place, after: Place, edge: Edge) -> str:
    x1, y1 = before.x + BOX_WIDTH, before.y + BOX_HEIGHT // 2
    x2, y2 = after.x, after.y + BOX_HEIGHT // 2
    bend = GAP_X // 2
    width = 3 if edge.is_exchange else 1
    label = f"{edge.strategy.value} of {edge.paths}" if edge.paths > 1 else edge.strategy.value
    return (
        f"<g><title>{escape(edge.why)}</title>"
        f'<path d="M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}" fill="none" stroke="#374151"'
        f' stroke-width="{width}" marker-end="url(#end)"/>'
        f'<text x="{x2 - bend}" y="{(y1 + y2) // 2 - 5}" text-anchor="middle" fill="#1f2937">{escape(label)}</text></g>'
    )
