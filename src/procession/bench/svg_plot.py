"""Draws plots as SVG text: curves over two axes, and groups of bars. Pure.

Invariant: a plot needs no script, font or network. Colours also differ in lightness, and every curve is named in a
legend. Used by `bench/conflux_report`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 22, 12, 44
LEGEND_ROW = 18
TICKS = 6
COLOURS = ("#0b6e4f", "#1b66c9", "#8f8f8f", "#7a4fb5", "#c0392b", "#d98e04")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "", "4 2")

Point = tuple[float, float]


@dataclass(frozen=True)
class Axes:
    """The ranges of a plot and the names of its axes. They begin at 0."""

    x_name: str
    y_name: str
    x_max: float
    y_max: float

    def x(self, value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * value / self.x_max, 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self.y_max, 1)


def tick_step(maximum: float, ticks: int = TICKS) -> float:
    """Return a round step (1, 2 or 5 times a power of ten) that gives at most this many ticks up to the maximum."""
    rough = maximum / ticks
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def rounded_up(maximum: float) -> float:
    """Return the next tick at or above a maximum; 1 if it is not positive."""
    if maximum <= 0:
        return 1.0
    step = tick_step(maximum)
    return math.ceil(maximum / step - 1e-9) * step


def tick_text(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g} M"
    return f"{value / 1e3:g} k" if value >= 1e4 else f"{value:g}"


def curves(title: str, x_name: str, y_name: str, lines: Mapping[str, Sequence[Point]], y_max: float = 0.0) -> str:
    """Draw curves by name. With `y_max` 0, the axis ends at the highest point."""
    points = [point for line in lines.values() for point in line]
    if not points:
        return ""
    highest = y_max or rounded_up(max(y for _, y in points))
    axes = Axes(x_name, y_name, rounded_up(max(x for x, _ in points)), highest)
    body = []
    for number, line in enumerate(lines.values()):
        shown = " ".join(f"{axes.x(x)},{axes.y(y)}" for x, y in line)
        dash = f' stroke-dasharray="{DASHES[number % len(DASHES)]}"' if DASHES[number % len(DASHES)] else ""
        body.append(f'<polyline points="{shown}" fill="none" stroke="{_colour(number)}" stroke-width="2"{dash}/>')
    return _drawn(title, axes, list(lines), body)


def cdf(title: str, x_name: str, percentiles: Mapping[str, Sequence[float]]) -> str:
    """Draw distributions, each given as percentiles in equal steps from 0 to 100."""
    lines = {
        name: [(value, place / (len(values) - 1)) for place, value in enumerate(values)]
        for name, values in percentiles.items()
    }
    return curves(title, x_name, "share of records", lines, y_max=1.0)


def bars(title: str, y_name: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """Draw groups of bars: the value of each name in each group."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    values = [value for group in groups.values() for value in group.values()]
    if not values:
        return ""
    axes = Axes("", y_name, float(len(groups)), rounded_up(max(values) * 1.05))
    body, width = [], (axes.x(1) - axes.x(0)) * 0.8 / len(names)
    for place, (group, members) in enumerate(groups.items()):
        left = axes.x(place + 0.1)
        for name, value in members.items():
            number = names.index(name)
            x, top = left + number * width, axes.y(value)
            body.append(
                f'<rect x="{x:.1f}" y="{top}" width="{width * 0.9:.1f}" height="{axes.y(0) - top:.1f}"'
                f' fill="{_colour(number)}"/>'
                f'<text x="{x + width * 0.45:.1f}" y="{top - 3:.1f}" text-anchor="middle">{_short(value)}</text>'
            )
        body.append(f'<text x="{axes.x(place + 0.5)}" y="{HEIGHT - 26}" text-anchor="middle">{escape(group)}</text>')
    return _drawn(title, axes, names, body, has_x_ticks=False)


def _drawn(title: str, axes: Axes, names: Sequence[str], body: Sequence[str], *, has_x_ticks: bool = True) -> str:
    height = HEIGHT + LEGEND_ROW * math.ceil(len(names) / 3)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
            f' role="img" font-family="system-ui, sans-serif" font-size="11">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            *_grid(axes, has_x_ticks=has_x_ticks),
            *body,
            *_legend(names),
            "</svg>",
        ]
    )


def _grid(axes: Axes, *, has_x_ticks: bool) -> Iterator[str]:
    for value in _ticks(axes.y_max):
        y = axes.y(value)
        yield f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#dddddd"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end" fill="#444444">{tick_text(value)}</text>'
    for value in _ticks(axes.x_max) if has_x_ticks else ():
        x = axes.x(value)
        yield f'<path d="M{x} {TOP}V{HEIGHT - BOTTOM}" stroke="#eeeeee"/>'
        yield f'<text x="{x}" y="{HEIGHT - 28}" text-anchor="middle" fill="#444444">{tick_text(value)}</text>'
    middle = (TOP + HEIGHT - BOTTOM) / 2
    yield f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(axes.x_name)}</text>'
    turned = f'transform="rotate(-90 14 {middle})"'
    yield f'<text x="14" y="{middle}" text-anchor="middle" {turned}>{escape(axes.y_name)}</text>'


def _ticks(maximum: float) -> Iterator[float]:
    step = tick_step(maximum)
    for number in range(int(maximum / step + 1e-9) + 1):
        yield round(number * step, 10)


def _legend(names: Sequence[str]) -> Iterator[str]:
    column = (WIDTH - LEFT) / 3
    for number, name in enumerate(names):
        x, y = LEFT + column * (number % 3), HEIGHT + LEGEND_ROW * (number // 3) + 4
        dash = DASHES[number % len(DASHES)]
        yield (
            f'<path d="M{x:.1f} {y}h22" stroke="{_colour(number)}" stroke-width="3"'
            f"{f' stroke-dasharray={chr(34)}{dash}{chr(34)}' if dash else ''}/>"
            f'<text x="{x + 28:.1f}" y="{y + 4}">{escape(name)}</text>'
        )


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
