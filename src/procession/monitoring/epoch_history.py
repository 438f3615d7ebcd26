"""Reads the history of a pipeline's epochs from the epoch log: recent figures, and pages of older epochs.

Invariant: memory is bounded: `RECENT_MAX` epochs are in memory, and older epochs are read from the file for each
page. A page has at most `PAGE_MAX` points; if there are more epochs, a point combines several of them. The history
survives restarts, because it is a file. Used by `monitoring/pipeline_snapshot` and the dashboard.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from procession.driver.epoch_log import EpochTail, older

RECENT_MAX = 2_000
"""Number of latest epochs from which percentiles and rates are computed."""
PAGE_MAX = 400
"""Maximum number of points of a page."""
RATE_WINDOW_S = 10.0
"""Rates are averages over this time."""
SHARES = (0.5, 0.95, 0.99)


class RecentEpochs:
    """The latest epochs. `add` lines in order."""

    def __init__(self) -> None:
        self.lines: deque[dict[str, Any]] = deque(maxlen=RECENT_MAX)

    def add(self, line: dict[str, Any]) -> None:
        if self.lines and "phase2_before_s" in line and self.lines[-1]["epoch"] == line["epoch"] - 1:
            self.lines[-1]["phase2_s"] = line["phase2_before_s"]
        self.lines.append(line)

    def within(self, now_s: float, window_s: float = RATE_WINDOW_S) -> list[dict[str, Any]]:
        """Return the epochs that were committed in the last seconds."""
        return [line for line in self.lines if line["committed_ns"] >= (now_s - window_s) * 1e9]

    def idle_s(self, now_s: float) -> float | None:
        """Return the seconds since the last commit. None if there is no known commit."""
        last = next((line["committed_ns"] for line in reversed(self.lines) if line["committed_ns"]), None)
        return None if last is None else max(0.0, now_s - last / 1e9)

    def phases(self) -> dict[str, dict[str, float]]:
        """Return percentiles of each phase, and its share of the time of all phases except waiting."""
        seconds: dict[str, list[float]] = {}
        for line in self.lines:
            for name, value in phases_of(line).items():
                seconds.setdefault(name, []).append(value)
        found = {name: _quantiles(values) for name, values in seconds.items()}
        working = sum(sum(values) for name, values in seconds.items() if name != "wait") or 1.0
        return {
            name: {**found[name], "share": round(sum(values) / working, 4)}
            if name != "wait"
            else found[name] | {"share": 0.0}
            for name, values in seconds.items()
        }


def phases_of(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the phases of an epoch as a flat table; phase 1 and 2 by sink."""
    phases = line.get("phases") or {}
    named = {"wait": phases.get("wait_s"), "run": phases.get("run_s")}
    named |= {f"phase 1 {sink}": seconds for sink, seconds in phases.get("phase1_s", {}).items()}
    named |= {"record": phases.get("record_s"), "decision": phases.get("decision_s")}
    named |= {f"phase 2 {sink}": seconds for sink, seconds in line.get("phase2_s", {}).items()}
    return {name: float(seconds) for name, seconds in named.items() if seconds is not None}


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    found = np.quantile(np.array(values), SHARES)
    names = (f"p{share * 100:.0f}_s" for share in SHARES)
    return {name: round(float(value), 6) for name, value in zip(names, found, strict=True)}


def stages_of(plan: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the work of each chain of stages in the last `RATE_WINDOW_S`, with the names of its stages."""
    found = []
    for chain in plan.get("chains", ()):
        done = [
            line["chains"][str(chain["number"])] for line in lines if str(chain["number"]) in line.get("chains", {})
        ]
        tasks = max((work["tasks"] for work in done), default=0)
        read_s, run_s = sum(work["read_s"] for work in done), sum(work["run_s"] for work in done)
        out: dict[str, int] = {}
        for work in done:
            for name, count in work["out"].items():
                out[name] = out.get(name, 0) + count
        names = [name for name in (chain["behind"], *chain["stages"]) if name]
        found.append(
            {
                "chain": chain["number"],
                "name": chain["behind"] or next(iter(names), "input"),
                "stages": list(dict.fromkeys(names)),
                "tasks": chain["tasks"],
                "read_s": round(read_s, 6),
                "run_s": round(run_s, 6),
                "busy_share": round((read_s + run_s) / (max(1, tasks) * RATE_WINDOW_S), 4) if done else None,
                "out_per_s": {name: round(count / RATE_WINDOW_S, 1) for name, count in out.items()},
            }
        )
    return found


def read_all(path: Path) -> Iterator[dict[str, Any]]:
    """Yield all stored lines, the oldest first, with the times of phase 2 in the line of their epoch."""
    before: dict[str, Any] | None = None
    for source in (older(path), path):
        for line in EpochTail(source).new():
            if before is not None:
                if "phase2_before_s" in line and before["epoch"] == line["epoch"] - 1:
                    before["phase2_s"] = line["phase2_before_s"]
                yield before
            before = line
    if before is not None:
        yield before


def page(lines: Iterable[Mapping[str, Any]], from_s: float, to_s: float) -> dict[str, Any]:
    """Return the epochs that were committed within this time, as at most `PAGE_MAX` points, each with its slowest
    epoch. Memory is bounded: if there are too many points, pairs of points are combined."""
    points: list[dict[str, Any]] = []
    size, epochs, fence = 1, 0, None
    for line in lines:
        if not from_s <= line["committed_ns"] / 1e9 <= to_s:
            continue
        point = _point_of(line, is_new_driver=fence is not None and fence != line["fence"])
        fence = line["fence"]
        if epochs % size:
            points[-1] = _joined(points[-1], point)
        elif len(points) < PAGE_MAX:
            points.append(point)
        else:
            pairs = zip(points[::2], points[1::2], strict=True)
            points, size = [*(_joined(first, second) for first, second in pairs), point], size * 2
        epochs += 1
    return {"points": points, "epochs": epochs, "epochs_per_point": size}


def _point_of(line: Mapping[str, Any], *, is_new_driver: bool) -> dict[str, Any]:
    return {
        "epoch": line["epoch"],
        "epochs": [line["epoch"], line["epoch"]],
        "at_s": round(line["committed_ns"] / 1e9, 3),
        "records": line["records"],
        "seconds": round(_worked_s(line), 6),
        "phases": phases_of(line),
        "aborts": line.get("aborts", 0),
        "drivers": int(is_new_driver),
        "fence": line["fence"],
    }


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Combine two consecutive points into one."""
    slowest = max(first, second, key=lambda point: point["seconds"])
    return {
        **second,
        **{name: slowest[name] for name in ("epoch", "seconds", "phases")},
        "epochs": [first["epochs"][0], second["epochs"][1]],
        **{name: first[name] + second[name] for name in ("records", "aborts", "drivers")},
    }


def _worked_s(line: Mapping[str, Any]) -> float:
    return sum(
        seconds for name, seconds in phases_of(line).items() if name != "wait" and not name.startswith("phase")
    ) + max((seconds for name, seconds in phases_of(line).items() if name.startswith("phase 1")), default=0.0)
