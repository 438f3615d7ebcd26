"""Writes the report of a chaos run: one self-contained HTML page with inline style and timeline.

Invariant: the page shows the verdict first, then the injected faults, their effects, and how to repeat the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

from procession.chaos.history import History

WIDTH, ROW, LEFT_MARGIN, CURVE = 1200, 18, 110, 90
EVENTS_MAX = 5_000

STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1240px; color: #222; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
table { border-collapse: collapse; } td, th { padding: .15em .8em; text-align: right; border-bottom: 1px solid #ddd; }
td:first-child, th:first-child { text-align: left; }
.clean { color: #187a33; } .violated { color: #b3261e; } .unknown { color: #9a6700; }
pre { background: #f6f6f6; padding: 1em; overflow: auto; max-height: 40em; font-size: 12px; }
svg text { font: 11px system-ui, sans-serif; fill: #444; }
"""


def write_report(path: Path, history: History) -> None:
    path.write_text(page(history))


def page(history: History) -> str:
    outcome = str(history.outcome)
    first, *rest = history.sentence().splitlines()
    body = [
        f'<h1 class="{outcome}">{escape(first)}</h1>',
        f"<p>{len(history.runs)} scenarios were run, one after another, on one living cluster:"
        f" {escape(history.cluster.description)}. Every committed byte was compared with the input as soon as it was"
        f" committed{', and all of them again at the end' if history.was_compared else ''}.</p>",
        *(f"<p>{escape(line.strip())}</p>" for line in rest if line.strip().startswith("note:")),
        *_failures(history),
        "<h2>Timeline</h2>",
        timeline(history),
        "<h2>Recoveries</h2>",
        _recoveries(history),
        "<h2>Scenarios</h2>",
        _scenarios(history),
        "<h2>Events</h2>",
        _events(history),
        "<h2>Figures</h2>",
        f"<pre>{escape(json.dumps(history.figures(), indent=1))}</pre>",
    ]
    title = f"procession chaos, seed {history.seed}: {outcome}"
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f"<!doctype html><html lang=en><head>{head}</head><body>\n" + "\n".join(body) + "\n</body></html>\n"


def _failures(history: History) -> Iterable[str]:
    for failure in history.failures:
        where = f" in {failure.scenario}" if failure.scenario else ""
        yield f'<h2 class="{history.outcome}">{escape(failure.kind + where)}</h2>'
        yield f"<p>{escape(failure.sentence)}</p><pre>{escape(failure.log_tails)}</pre>"


def timeline(history: History) -> str:
    """Draw one row per part, dark during outages; the scenarios above, the committed records below."""
    total = max(history.seconds, 1.0)
    known = history.cluster.parts
    parts = [*known, *sorted({part for part, _, _ in history.absences} - set(known))]
    height = ROW * (len(parts) + 2) + CURVE + 20

    def x(seconds: float) -> float:
        return round(LEFT_MARGIN + (WIDTH - LEFT_MARGIN - 10) * seconds / total, 1)

    drawn = [f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">']
    for number, span in enumerate(history.spans):
        end = span.end_s if span.end_s is not None else total
        shade = "#eef3fb" if number % 2 else "#dfe9f8"
        drawn.append(
            f'<rect x="{x(span.start_s)}" y="0" width="{max(1.0, x(end) - x(span.start_s))}" height="{height - 18}"'
            f' fill="{shade}"><title>{escape(span.scenario)}, {span.start_s:.0f}-{end:.0f} s,'
            f" {span.records:,} records</title></rect>"
        )
    for row, part in enumerate(parts):
        y = ROW * (row + 1)
        drawn.append(f'<text x="4" y="{y + 12}">{escape(part)}</text>')
        drawn.append(f'<line x1="{LEFT_MARGIN}" x2="{WIDTH - 10}" y1="{y + 8}" y2="{y + 8}" stroke="#9db5d9"/>')
        for name, start, end in history.absences:
            if name == part:
                drawn.append(
                    f'<rect x="{x(start)}" y="{y + 3}" width="{max(1.5, x(end) - x(start))}" height="11" fill="#b22">'
                    f"<title>{escape(part)} away for {end - start:.2f} s from {start:.1f} s</title></rect>"
                )
    drawn += _curve(history, x, ROW * (len(parts) + 2), total)
    return "\n".join([*drawn, "</svg>"])


def _curve(history: History, x: Callable[[float], float], top: int, total: float) -> Iterable[str]:
    most = max((count for _, count in history.samples), default=0) or 1
    points = " ".join(f"{x(at)},{top + CURVE - CURVE * count / most:.1f}" for at, count in history.samples)
    yield f'<polyline points="{points}" fill="none" stroke="#187a33" stroke-width="1.5"/>'
    yield f'<text x="4" y="{top + 12}">{most:,} records</text>'
    for tenth in range(11):
        at = total * tenth / 10
        yield f'<text x="{x(at) - 10}" y="{top + CURVE + 16}">{at:.0f} s</text>'


def _recoveries(history: History) -> str:
    rows = [
        (kind, times["kills"], times["recovered"], times["timed"], _s(times["p50_s"]), _s(times["p99_s"]))
        for kind, times in history.recoveries.figures().items()
    ]
    return _table(("part", "killed", "back at work", "of these alone", "p50", "p99"), rows)


def _scenarios(history: History) -> str:
    events: dict[int, int] = {}
    for event in history.events:
        number = sum(span.start_s <= event.at_s for span in history.spans) - 1
        events[number] = events.get(number, 0) + ("ended with" in event.what)
    rows = [
        (
            span.scenario,
            f"{span.start_s:.0f} s",
            _s(None if span.end_s is None else span.end_s - span.start_s),
            f"{span.records:,}",
            events.get(number, 0),
        )
        for number, span in enumerate(history.spans)
    ]
    return _table(("scenario", "began", "took", "records", "deaths"), rows)


def _events(history: History) -> str:
    lines = [
        f"{event.at_s:10.3f}  {event.scenario:34} {event.on:14} {event.what}" for event in history.events[:EVENTS_MAX]
    ]
    left_out = len(history.events) - len(lines)
    return f"<pre>{escape(chr(10).join(lines))}{f'{chr(10)}… and {left_out} more' if left_out else ''}</pre>"


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows]
    return "<table>" + "".join(lines) + "</table>"


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"
