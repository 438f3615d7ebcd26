"""Runs each benchmark several times, and continues after a failure.

Invariant: each repeat of each benchmark is tried, also after failures. All figures are kept, and every failure has a
reason. Used by `cli/bench_command` and `cli/bench_all_command`, which run the commands.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from procession.errors import ProcessionError


class BenchmarkFailed(Exception):
    """A benchmark ended without figures. The text has the reason."""


@dataclass
class RepeatedRuns:
    """The figures of each benchmark, one for each repeat that succeeded, and the reasons of the repeats that failed."""

    runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)

    def measure(self, names: Sequence[str], repeats: int, figures_of: Callable[[str], dict[str, Any]]) -> None:
        """Run these benchmarks in turn, `repeats` times. Only an interrupt ends the runs early."""
        for repeat in range(repeats):
            for name in names:
                print(f"{name}, {repeat + 1} of {repeats}", file=sys.stderr, flush=True)
                try:
                    figures = figures_of(name)
                except (Exception, SystemExit) as error:  # a benchmark may raise any exception
                    self.failures.setdefault(name, []).append(_reason_of(error))
                    traceback.print_exception(error)
                else:
                    self.runs.setdefault(name, []).append(figures)

    def failure_lines(self) -> Iterator[str]:
        """Yield a line for each benchmark and reason."""
        for name, reasons in self.failures.items():
            tried = len(reasons) + len(self.runs.get(name, []))
            for reason, count in Counter(reasons).items():
                yield f"{name} failed in {count} of {tried} runs: {reason}"


def _reason_of(error: BaseException) -> str:
    """Return the reason in one line. The traceback was already printed."""
    if isinstance(error, ProcessionError):
        return error.sentence.splitlines()[0]
    text = next(iter(str(error).splitlines()), "")
    if isinstance(error, BenchmarkFailed):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
