"""Finds the outputs in a sink's directory, groups them by sink, and reads their committed bytes.

Invariant: `PIPELINE-SINK-0`, `PIPELINE-SINK-1`, … were written by the connections of one sink. Together they hold its
records, each key or stream in one of them. Uncommitted output is never returned, even while the sink is writing. Used
by `procession verify` and `procession cat`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from procession.commit.transaction_id import TransactionId
from procession.errors import ConfigError
from procession.sdk.merge_output import Lines
from procession.sdk.merged_records import merged
from procession.sdk.transaction_log import TransactionTail, committed_ranges
from procession.verify.output_layout import Ranges, is_lane, is_stored, stored

CONNECTION = re.compile(r"(.+)-([0-9]+)")


@dataclass(frozen=True, slots=True)
class SinkOutput:
    """The transaction logs of one output. `family` is the common prefix of its instances' names."""

    family: str
    logs: tuple[Path, ...]

    @property
    def name(self) -> str:
        return self.logs[0].stem if len(self.logs) == 1 else self.family

    def read(self, ranges: Sequence[Ranges]) -> Iterator[bytes]:
        """Yield the committed bytes, one instance after the other, each with its ranges. For lanes, yield the lines
        of the merged records in order."""
        if is_lane(self.logs[0]):
            for batch in merged(self.logs[0].parent, instance=self.family).batches():
                yield bytes(Lines().messages(batch).joined)
            return
        for log, committed in zip(self.logs, ranges, strict=True):
            yield from stored(log).read(committed)


def written_in(directory: Path, instance: str | None = None, *, is_shared: bool = True) -> list[SinkOutput]:
    """Return the outputs of a directory, of one instance, or of one sink as `PIPELINE-SINK`.

    `is_shared`: the instances of a sink, which share its records, count as one output."""
    logs = sorted(filter(is_stored, directory.glob("*.txnlog")), key=lambda log: _place(log.stem))
    exact = [log for log in logs if log.stem == instance]
    if instance is not None:
        logs = exact or [log for log in logs if _place(log.stem)[0] == instance]
    families: dict[str, list[Path]] = {}
    for log in logs:
        # Lanes are always one output, because only all lanes together have an order.
        is_single = (exact or not is_shared) and not is_lane(log)
        families.setdefault(log.stem if is_single else _place(log.stem)[0], []).append(log)
    return [SinkOutput(family, tuple(found)) for family, found in families.items()]


def check_one_pipeline(directory: Path, outputs: Sequence[SinkOutput]) -> None:
    """Raise ConfigError if several pipelines have written to this directory."""
    writers: dict[str, str] = {}
    for output in outputs:
        if (pipeline := _pipeline(output.logs[0])) is not None:
            writers.setdefault(pipeline, output.family)
    if len(writers) > 1:
        raise ConfigError(
            f"the directory {directory} has the output of several pipelines: {', '.join(writers)}",
            next_step=f"choose one with --instance, one of {', '.join(output.family for output in outputs)}",
        )


def _pipeline(log: Path) -> str | None:
    """Return the pipeline in the first committed transaction of an output."""
    first = next(TransactionTail(log).poll(), None)
    found = TransactionId.parse(first.txn_id) if first is not None else None
    return found.pipeline if found is not None else None


def _place(instance: str) -> tuple[str, int]:
    """Return the prefix and the number of an instance's name, so that 10 sorts after 9."""
    found = CONNECTION.fullmatch(instance)
    return (found[1], int(found[2])) if found else (instance, -1)


def committed_output(directory: Path, instance: str | None) -> Iterator[bytes]:
    """Yield the outputs of the directory (or of one instance or sink), one after the other in the order of their
    names."""
    outputs = written_in(directory, instance)
    if not outputs:
        raise ConfigError(
            f"there is no output {instance!r} in {directory}"
            if instance
            else f"the directory {directory} has no output of a sink",
            next_step="name the directory of the sink, and an instance that exists there",
        )
    if instance is None:
        check_one_pipeline(directory, outputs)
    for output in outputs:
        yield from output.read([committed_ranges(log) for log in output.logs])
