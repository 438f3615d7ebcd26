"""The result of `Pipeline.run`.

Invariant: it describes one run and the committed output of its sinks. `jobs/pipeline_run` implements it, because the
API does not know the processes of a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol


class FinishedRun(Protocol):
    """A finished run of a pipeline, returned by `Pipeline.run`. `run["alerts"]` has the committed values of a sink.

    Attributes:
        figures: The figures of the run, as `procession run --json` prints them: `records_in`, `committed`, `epochs`,
            `late`, `dead_letters`, `restarts`, `is_done` and others.
        directory: The pipeline's directory: log, checkpoint, states and logs.
    """

    figures: dict[str, Any]
    directory: Path

    @property
    def is_done(self) -> bool:
        """Whether the whole input is committed. False if the run was stopped before."""

    def __getitem__(self, sink: str) -> list[Any]:
        """Return the committed values of a file sink, in order, as its codec decodes them. Dead letters are dicts."""

    def __iter__(self) -> Iterator[str]:
        """Iterate the names of the readable outputs, which are those of file sinks."""

    def read_bytes(self, sink: str) -> bytes:
        """Return the committed output of a file sink, byte for byte."""
