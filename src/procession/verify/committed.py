"""The committed output of a sink as bytes, according to its transaction logs.

Invariant: uncommitted output is never returned, even while the sink is writing. Reads a sink's directory; used by
`procession cat`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from procession.errors import ConfigError
from procession.sdk.transaction_log import committed_ranges
from procession.verify.sink_outputs import check_one_pipeline, written_in


def committed_output(directory: Path, instance: str | None) -> Iterator[bytes]:
    """Yield the outputs of the directory (or of one instance or sink), one after the other in the order of their
    names."""
    outputs = written_in(directory, instance)
    if not outputs:
        raise ConfigError(
            f"there is no output {instance!r} in {directory}" if instance else f"{directory} has no output of a sink",
            next_step="name the directory of the sink, and an instance that exists there",
        )
    if instance is None:
        check_one_pipeline(directory, outputs)
    for output in outputs:
        yield from output.read([committed_ranges(log) for log in output.logs])
