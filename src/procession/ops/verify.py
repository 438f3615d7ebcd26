"""Verify: the inputs of a passthrough against what its file sinks have committed.

The one rule: what the transaction log does not commit does not exist, and what it commits must be in the data file,
without a gap, from its first byte. Before it stand an input and a sink's directory (`<instance>.data`,
`<instance>.txnlog`); after it the verifier's verdict on each instance, as a text or as JSON, and the status 0 (all
clean) or 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from procession.chaos.verifier import Outcome, Verdict, compare
from procession.errors import ConfigError
from procession.sdk.txnlog import committed_ranges

CHUNK_BYTES = 1024 * 1024
COUNTS = ("records", "committed", "lost", "doubled", "disordered", "corrupt")

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Output:
    """One instance's committed output, judged. `damage` says what is wrong with its files, if anything is."""

    instance: str
    verdict: Verdict
    uncommitted_bytes: int
    damage: str

    @property
    def outcome(self) -> Outcome:
        return Outcome.VIOLATED if self.damage else self.verdict.outcome

    def lines(self) -> Iterator[str]:
        yield f"{self.instance}: {self.verdict.sentence()}"
        yield from (f"  {reason}" for reason in (self.damage, self.verdict.why) if reason)
        yield from (f"  first {kind}: {offender}" for kind, offender in self.verdict.first.items())
        if self.uncommitted_bytes:
            yield f"  {self.uncommitted_bytes} bytes after that are not committed and were left out"

    def as_dict(self) -> dict[str, Any]:
        mine = {"instance": self.instance, "damage": self.damage, "uncommitted_bytes": self.uncommitted_bytes}
        return self.verdict.as_dict() | mine | {"outcome": self.outcome}


@dataclass(frozen=True, slots=True)
class Report:
    """All instances of a directory, each against the same inputs."""

    outputs: tuple[Output, ...]

    @property
    def outcome(self) -> Outcome:
        outcomes = {output.outcome for output in self.outputs}
        return next(worst for worst in (Outcome.VIOLATED, Outcome.UNKNOWN, Outcome.CLEAN) if worst in outcomes)

    @property
    def is_clean(self) -> bool:
        return self.outcome is Outcome.CLEAN

    def text(self) -> str:
        return "\n".join([line for output in self.outputs for line in output.lines()] + [f"verdict: {self.outcome}"])

    def as_dict(self) -> dict[str, Any]:
        """The counts of all instances together, then each alone."""
        sums = {name: sum(getattr(output.verdict, name) for output in self.outputs) for name in COUNTS}
        return {"outcome": self.outcome} | sums | {"outputs": [output.as_dict() for output in self.outputs]}


def verify(inputs: Sequence[Path], directory: Path, instance: str | None = None) -> Report:
    """Judge every instance in a sink's directory (or the one named) against the inputs."""
    for path in inputs:
        _must_be_readable(path)
    logs = sorted(directory.glob("*.txnlog"))
    if instance is not None:
        logs = [log for log in logs if log.stem == instance]
    if not inputs or not logs:
        what = f"the instance {instance}" if instance else "any file sink"
        raise ConfigError(
            f"There is nothing to compare: {directory} holds no output of {what}." if inputs else "No input was named.",
            next_step="name the input files and the directory that the file sink wrote to",
        )
    return Report(tuple(_judge(inputs, log) for log in logs))


def run_verify(inputs: Sequence[Path], directory: Path, instance: str | None = None, *, as_json: bool = False) -> int:
    """The command: prints the report; the status to exit with."""
    report = verify(inputs, directory, instance)
    print(json.dumps(report.as_dict()) if as_json else report.text())
    return 0 if report.is_clean else 1


def _judge(inputs: Sequence[Path], log: Path) -> Output:
    data = log.with_suffix(".data")
    ranges = committed_ranges(log)
    size = data.stat().st_size if data.exists() else 0
    end = max((end for _, end in ranges), default=0)
    verdict = compare([partial(_read, path, None) for path in inputs], partial(_read, data, ranges))
    return Output(log.stem, verdict, max(0, size - end), _damage(ranges, size, end))


def _damage(ranges: Ranges, size: int, end: int) -> str:
    if size < end:
        return (
            f"The data file ends at byte {size}, but the transaction log has committed {end}: committed output is gone."
        )
    if ranges and list(ranges) != [(0, end)]:
        return f"The committed ranges do not follow each other from the first byte on: {list(ranges)[:4]}."
    return ""


def _must_be_readable(path: Path) -> None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise ConfigError(
            f"The input {path} cannot be read: {error.strerror}.", next_step="name a file that can be"
        ) from error


def _read(path: Path, ranges: Ranges | None) -> Iterator[bytes]:
    """A file's bytes, or those of the given ranges of it, in pieces. A file that is not there has none."""
    if ranges is not None and not path.exists():
        return
    with path.open("rb") as file:
        for start, end in [(0, path.stat().st_size)] if ranges is None else ranges:
            file.seek(start)
            while start < end and (piece := file.read(min(CHUNK_BYTES, end - start))):
                start += len(piece)
                yield piece
