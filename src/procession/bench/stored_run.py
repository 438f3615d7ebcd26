"""Compares a run of the benchmarks with a stored run. Pure.

Invariant: only figures that hardly depend on the machine and its load are compared: ratios of two variants in one
run, and processor time per record. Each benchmark is repeated. A figure has moved if its median differs from the
stored median by more than the ranges of both, and by more than `CHANGE_MIN`. Used by `cli/bench_command`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from procession.errors import ConfigError

FORMAT = 1
COMPARED = ("ratio", "cpu", "share", "relative", "_to_")
"""A figure is compared if a name on its path contains one of these texts."""
CHANGE_MIN = 0.03
"""A smaller change is not reported, because a few repeats underestimate the range of a figure."""

Figures = Mapping[str, Any]
Runs = Mapping[str, Sequence[Figures]]


@dataclass(frozen=True)
class FigureChange:
    """One figure in the stored run and in this one: the medians, and the larger range of the two, as a share."""

    name: str
    before: float
    after: float
    noise: float

    @property
    def change(self) -> float:
        return self.after / self.before - 1

    @property
    def has_moved(self) -> bool:
        return abs(self.change) > max(CHANGE_MIN, self.noise)


@dataclass(frozen=True)
class FigureChanges:
    """The figures of both runs, and the benchmarks that only one run has or that were run with different options."""

    figures: tuple[FigureChange, ...]
    skipped: tuple[str, ...]

    @property
    def moved(self) -> list[FigureChange]:
        return [figure for figure in self.figures if figure.has_moved]

    def as_json(self) -> dict[str, Any]:
        figures = [{**asdict(each), "change": each.change, "has_moved": each.has_moved} for each in self.figures]
        return {"figures": figures, "skipped": list(self.skipped)}

    def lines(self) -> Iterator[str]:
        for figure in self.moved:
            yield (
                f"{figure.name}: {figure.before:,.3g} before, {figure.after:,.3g} now"
                f" ({figure.change:+.0%}; its noise is {figure.noise:.0%})"
            )
        yield from self.skipped
        yield f"{len(self.moved)} of {len(self.figures)} figures moved by more than their noise"


def stored(runs: Runs) -> dict[str, Any]:
    """Return the document of a run, for a later comparison."""
    return {"format": FORMAT, "runs": {name: list(figures) for name, figures in runs.items()}}


def stored_runs(document: Any, path: str) -> Runs:
    """Return the runs of a document. Raises ConfigError if it is not one."""
    runs = document.get("runs") if isinstance(document, dict) and document.get("format") == FORMAT else None
    is_valid = isinstance(runs, dict) and all(
        isinstance(repeats, list) and repeats and all(isinstance(each, dict) for each in repeats)
        for repeats in runs.values()
    )
    if not is_valid:
        raise ConfigError(
            f"{path} is not a stored run of the benchmarks.",
            next_step="Make one with `procession bench all --save FILE`.",
        )
    assert isinstance(runs, dict)
    return runs


def compare(before: Runs, after: Runs) -> FigureChanges:
    figures: list[FigureChange] = []
    skipped: list[str] = []
    for name, repeats in after.items():
        if name not in before:
            skipped.append(f"{name} is not in the stored run")
        elif (then := before[name][0].get("command")) != (now := repeats[0].get("command")):
            skipped.append(f"{name} was run as `{then}`, and now as `{now}`")
        else:
            figures.extend(_changes(name, before[name], repeats))
    return FigureChanges(tuple(figures), tuple(skipped))


def _changes(name: str, before: Sequence[Figures], after: Sequence[Figures]) -> Iterator[FigureChange]:
    values_before, values_after = _values(before), _values(after)
    for path, now in values_after.items():
        then = values_before.get(path, [])
        if not then:
            continue
        middle = statistics.median(then)
        if middle > 0:
            noise = max(max(then) - min(then), max(now) - min(now)) / middle
            yield FigureChange(f"{name} {path}", middle, statistics.median(now), noise)


def _values(repeats: Sequence[Figures]) -> dict[str, list[float]]:
    """Return the values of each compared figure, by its path."""
    found: dict[str, list[float]] = {}
    for figures in repeats:
        for path, value in _leaves(figures, ()):
            if any(part in name for name in path for part in COMPARED):
                found.setdefault(".".join(path), []).append(value)
    return dict(sorted(found.items()))


def _leaves(figures: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
    if isinstance(figures, Mapping):
        for name, value in figures.items():
            yield from _leaves(value, (*path, str(name)))
    elif isinstance(figures, int | float) and not isinstance(figures, bool):
        yield path, float(figures)
