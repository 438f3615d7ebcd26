"""Draws a plan as SVG, without any other program.

Invariant: boxes and lines have computed positions, so the same plan gives the same drawing. For a finer drawing use
Graphviz (`explain --dot`). Takes a `planner/plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from procession.planner.explain import LETTERS
from procession.planner.graph import Kind
from procession.planner.plan import Edge, Plan

BOX_WIDTH, BOX_HEIGHT = 150, 44
GAP_X, GAP_Y = 110, 34
MARGIN = 24
LABEL_STEP = 4
LABEL_LETTER = 7
"""Approximate width of a letter of a label."""
ARROW = 8
"""The length and width of the head of an arrow, for any width of its line."""
LETTERS_MAX = 19
"""Maximum number of characters of a stage's name in its box. The tooltip shows the whole name."""

# The colours of the chains, used in turn. They are light enough for text on them.
COLOURS = ("#dbeafe", "#dcfce7", "#fef3c7", "#fce7f3", "#ede9fe", "#e0f2fe")
SINK_COLOUR = "#e5e7eb"


@dataclass(frozen=True)
class BoxPosition:
    x: int
    y: int

    @property
    def middle(self) -> int:
        return self.y + BOX_HEIGHT // 2


@dataclass(frozen=True)
class Layout:
    """The positions of all parts. An edge that passes columns has a place in each of them, so that it crosses no
    box."""

    stages: dict[int, BoxPosition]
    passed: dict[tuple[int, int], tuple[BoxPosition, ...]]
    width: int
    height: int


def as_svg(plan: Plan) -> str:
    """Return the plan as one SVG document: stages from left to right, coloured by chain, each edge with its
    strategy."""
    layout = _layout(plan)
    title = f"{plan.graph.name}: order {plan.graph.order.value}"
    letters = _dead_letters(plan, layout)
    height = layout.height + (BOX_HEIGHT + GAP_Y + MARGIN if letters else 0)
    taken: list[Area] = []
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {layout.width} {height}" width="{layout.width}"'
        f' height="{height}" font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" orient="auto" markerUnits="userSpaceOnUse"'
        f' markerWidth="{ARROW}" markerHeight="{ARROW}"><path d="M0 0L8 4L0 8z" fill="#374151"/></marker></defs>',
        f'<text x="{MARGIN}" y="{MARGIN}" font-size="14" font-weight="bold">{escape(title)}</text>',
        *letters,
        *(_line(layout, edge) for edge in plan.edges),
        *(_box(plan, index, place) for index, place in layout.stages.items()),
        # Labels are drawn in front of all lines, so that no line crosses a label.
        *(_label(layout, edge, taken) for edge in plan.edges),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _layout(plan: Plan) -> Layout:
    """Return a layout with a column for each step from the source. In a column, stages have the order in which they
    were written."""
    taken: list[int] = []
    """Number of places of each column that are taken."""
    column_of: list[int] = []
    stages: dict[int, BoxPosition] = {}
    passed: dict[tuple[int, int], tuple[BoxPosition, ...]] = {}

    def take(column: int) -> BoxPosition:
        taken.extend([0] * (column + 1 - len(taken)))
        taken[column] += 1
        x, y = MARGIN + column * (BOX_WIDTH + GAP_X), 3 * MARGIN + (taken[column] - 1) * (BOX_HEIGHT + GAP_Y)
        return BoxPosition(x + MARGIN // 2, y)

    for index, node in enumerate(plan.graph.nodes):
        column = 1 + max(column_of[parent] for parent in node.parents) if node.parents else 0
        column_of.append(column)
        if node is plan.graph.dead_letter:
            continue
        stages[index] = take(column)
        for parent in node.parents:
            passed[parent, index] = tuple(take(between) for between in range(column_of[parent] + 1, column))
    width = 2 * MARGIN + len(taken) * (BOX_WIDTH + GAP_X) - GAP_X + MARGIN
    return Layout(stages, passed, width, 3 * MARGIN + max(taken) * (BOX_HEIGHT + GAP_Y))


def _dead_letters(plan: Plan, layout: Layout) -> list[str]:
    """Return a frame around all stages, from which dead letters come, and their sink below it."""
    if plan.graph.dead_letter is None:
        return []
    place = BoxPosition(MARGIN + MARGIN // 2, layout.height + GAP_Y)
    middle = place.x + BOX_WIDTH // 2
    dashed = 'fill="none" stroke="#9ca3af" stroke-dasharray="5 4"'
    bottom = layout.height - MARGIN // 2
    return [
        f'<rect x="{MARGIN // 2}" y="{3 * MARGIN // 2}" width="{layout.width - MARGIN}"'
        f' height="{bottom - 3 * MARGIN // 2}" rx="8" {dashed}/>',
        f'<path d="M{middle} {bottom}V{place.y}" {dashed} marker-end="url(#end)"/>',
        f'<text x="{middle + 8}" y="{(bottom + place.y) // 2 + 4}" fill="#1f2937">{LETTERS}</text>',
        _box(plan, plan.graph.nodes.index(plan.graph.dead_letter), place),
    ]


def _box(plan: Plan, index: int, place: BoxPosition) -> str:
    node = plan.node(index)
    numbers = sorted(plan.chains_of[index])
    is_sink = node.kind is Kind.SINK
    colour = SINK_COLOUR if is_sink else COLOURS[numbers[0] % len(COLOURS)]
    tasks = ", ".join(f"{number} × {plan.chains[number].tasks}" for number in numbers)
    chains = f"chain{'s' * (len(numbers) > 1)} {tasks}"
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


def _line(layout: Layout, edge: Edge) -> str:
    after = layout.stages[edge.after]
    here = layout.stages[edge.before]
    path = f"M{here.x + BOX_WIDTH} {here.middle}"
    for there in (*layout.passed[edge.before, edge.after], after):
        x1, y1, x2, y2, bend = here.x + BOX_WIDTH, here.middle, there.x, there.middle, GAP_X // 2
        path += f"C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
        path += "" if there is after else f"H{x2 + BOX_WIDTH}"
        here = there
    width = 3 if edge.is_exchange else 1
    return (
        f"<g><title>{escape(edge.why)}</title>"
        f'<path d="{path}" fill="none" stroke="#374151" stroke-width="{width}" marker-end="url(#end)"/></g>'
    )


Area = tuple[int, int, int, int]
"""A rectangle: left, top, right, bottom."""


def _is_over(area: Area, other: Area) -> bool:
    return area[0] < other[2] and other[0] < area[2] and area[1] < other[3] and other[1] < area[3]


def _label(layout: Layout, edge: Edge, taken: list[Area]) -> str:
    """Return the strategy of an edge as a label in the middle of the gap before its end, beside the arrowhead. It is
    lower if another label is there."""
    text = f"{edge.strategy.value} of {edge.paths}" if edge.paths > 1 else edge.strategy.value
    after = layout.stages[edge.after]
    before = (layout.stages[edge.before], *layout.passed[edge.before, edge.after])[-1]
    x, y, half = after.x - GAP_X // 2, (before.middle + after.middle) // 2 - 7, LABEL_LETTER * len(text) // 2
    while any(_is_over((x - half, y - 11, x + half, y + 3), other) for other in taken):
        y += LABEL_STEP
    taken.append((x - half, y - 11, x + half, y + 3))
    return (
        f'<text x="{x}" y="{y}" text-anchor="middle" fill="#1f2937" stroke="#ffffff" stroke-width="4"'
        f' paint-order="stroke"><title>{escape(edge.why)}</title>{escape(text)}</text>'
    )
