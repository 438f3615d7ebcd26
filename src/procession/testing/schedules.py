"""Schedules: runs on the same records with different epochs, numbers of tasks and crashes. The output must be the same.

Invariant: a schedule changes nothing that a pipeline may depend on. If two outputs differ, a function keeps data
outside of its state, or is not deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from procession.api.pipeline import Pipeline
from procession.testing.arrivals import Inputs
from procession.testing.in_process import Outputs, run

SHOWN_CHARS = 200


@dataclass(frozen=True)
class Schedule:
    """The epochs and tasks of a run, and the epochs in which it crashes.

    Args:
        epochs: The sizes of epochs, as in `run`. None means one epoch.
        parallelism: The number of tasks of each stage. None means that of the pipeline.
        crashes: The numbers of epochs that are lost before their commit, and run again.
    """

    epochs: int | tuple[int, ...] | None = None
    parallelism: int | None = None
    crashes: tuple[int, ...] = ()

    def run(self, pipeline: Pipeline, inputs: Inputs, **options: Any) -> Outputs:
        """Run a pipeline with this schedule, like `procession.testing.run`."""
        return run(pipeline, inputs, epochs=self.epochs, parallelism=self.parallelism, crashes=self.crashes, **options)


SCHEDULES = (
    Schedule(epochs=1, parallelism=1),
    Schedule(epochs=1, parallelism=4),
    Schedule(epochs=3, parallelism=2, crashes=(0, 1, 3)),
    Schedule(parallelism=3, crashes=(0,)),
)
"""The schedules of `run_everywhere`, in addition to one epoch with the pipeline's own parallelism."""


def run_everywhere(
    pipeline: Pipeline, inputs: Inputs, *, schedules: Sequence[Schedule] = SCHEDULES, **options: Any
) -> Outputs:
    """Run a pipeline on these records with several schedules, and check that all of them write the same bytes.

    Args:
        pipeline: The pipeline.
        inputs: The records of each source, as in `run`.
        schedules: The schedules that are run in addition to one epoch with the pipeline's own parallelism.
        options: Other options of `run`: `ends`, `dead_letter_share_max`.

    Returns:
        The outputs, which are the same with all schedules.

    Raises:
        AssertionError: A schedule changes the output. The error names the schedule, the sink and the first difference.

    >>> from procession import Pipeline
    >>> from procession.testing import run_everywhere
    >>> pipeline = Pipeline("doubled")
    >>> doubled = pipeline.source("numbers", codec="json").map(lambda n: 2 * n).sink("doubled", to="file:out")
    >>> run_everywhere(pipeline, {"numbers": [1, 2, 3]})
    {'doubled': [2, 4, 6]}
    """
    expected = run(pipeline, inputs, **options)
    for schedule in schedules:
        found = schedule.run(pipeline, inputs, **options)
        for sink in expected.bytes:
            if found.bytes[sink] != expected.bytes[sink]:
                raise AssertionError(_difference(schedule, sink, expected[sink], found[sink]))
    return expected


def _difference(schedule: Schedule, sink: str, expected: list[Any], found: list[Any]) -> str:
    place = next(
        (place for place, (one, other) in enumerate(zip(expected, found, strict=False)) if one != other),
        min(len(expected), len(found)),
    )
    return (
        f"The output of sink {sink!r} differs with {schedule}. Record {place} is {_shown(found, place)}; in one"
        f" epoch it is {_shown(expected, place)}. A function keeps data outside of its state, or depends on the clock,"
        " on random numbers or on the order of a set."
    )


def _shown(values: list[Any], place: int) -> str:
    return repr(values[place])[:SHOWN_CHARS] if place < len(values) else "missing"
