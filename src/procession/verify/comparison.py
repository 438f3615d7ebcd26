"""Compares the inputs of a passthrough pipeline with the committed output of its sinks.

Invariant: only output in the transaction log counts as committed. All committed bytes must be in the output, from the
first byte and without a gap. If a checkpoint is given, it must have the decision on them. Reads inputs and a sink's
directory (`verify/sink_outputs`). The result is the verdict on each output, as text or JSON, and status 0 (all clean)
or 1. The connections of one sink count as one output, unless total order was promised.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from procession.connectors.file_source import stream_id_of
from procession.errors import ConfigError, UsageError
from procession.sdk.ack_log import acknowledged
from procession.sdk.transaction_log import Transaction, TransactionTail, joined
from procession.verify.decided import Undecided
from procession.verify.decisions import DecisionReader
from procession.verify.order import KeyOf, PromisedOrder
from procession.verify.output_layout import Ranges, read_ranges, stored
from procession.verify.semantics import Semantics, shown_by
from procession.verify.sink_outputs import SinkOutput, check_one_pipeline, written_in
from procession.verify.spill import disk_buckets
from procession.verify.verdict import KINDS, Outcome, Verdict, worst
from procession.verify.verifier import MemoryBounds, compare

COUNTS = ("records", "committed", *KINDS)


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """The inputs and outputs to compare, and the options."""

    inputs: Sequence[Path]
    directory: Path
    instance: str | None = None
    order: PromisedOrder = PromisedOrder.TOTAL
    key_of: KeyOf | None = None
    is_complete: bool = True
    """Whether the run is over. During a run, records missing at the end may still arrive."""
    checkpoint: Path | None = None
    """The pipeline's checkpoint. If given, it must have a decision on all visible output."""
    acks: Sequence[Path] = ()
    """The acknowledgement logs of the producers."""
    bounds: MemoryBounds = field(default_factory=MemoryBounds)

    def check(self) -> None:
        """Raise ConfigError if no input is given, or a key is missing."""
        if not self.inputs:
            raise UsageError("No input was named.", next_step="name the input files")
        for path in self.inputs:
            _must_be_readable(path)
        if self.order is PromisedOrder.KEY and self.key_of is None:
            raise UsageError("Order 'key' needs a key.", next_step="name the key's field with --key-field")
        if self.instance is None:
            check_one_pipeline(self.directory, self.outputs())

    def outputs(self) -> list[SinkOutput]:
        """Return the outputs to compare."""
        return written_in(self.directory, self.instance, is_shared=self.order is not PromisedOrder.TOTAL)

    def of_inputs(self, acked: Mapping[int, int]) -> list[int | None]:
        """Return for each input the last message id that its producer saw acknowledged."""
        return [acked.get(stream_id_of(path)) for path in self.inputs]


@dataclass(frozen=True, slots=True)
class JudgedOutput:
    """The verdict on one output, which `connections` connections wrote. `damage` describes damaged files."""

    instance: str
    verdict: Verdict
    uncommitted_bytes: int
    damage: str
    connections: int = 1

    @property
    def outcome(self) -> Outcome:
        return Outcome.VIOLATED if self.damage else self.verdict.outcome

    def lines(self) -> Iterator[str]:
        connections = f", {self.connections} connections" if self.connections > 1 else ""
        yield f"{self.instance}{connections}: {self.verdict.sentence()}"
        yield from (f"  {reason}" for reason in (self.damage, self.verdict.why) if reason)
        for kind, offender in self.verdict.first.items():
            yield f"  first {kind.replace('_', ' but ')}: {offender}"
        if self.uncommitted_bytes:
            yield f"  {self.uncommitted_bytes} bytes after that are not committed and were ignored"

    def as_dict(self) -> dict[str, Any]:
        fields = {"instance": self.instance, "connections": self.connections, "damage": self.damage}
        fields |= {"uncommitted_bytes": self.uncommitted_bytes}
        return self.verdict.as_dict() | fields | {"outcome": self.outcome}


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """The verdicts on all outputs of a directory, each compared with the same inputs."""

    outputs: tuple[JudgedOutput, ...]

    @property
    def outcome(self) -> Outcome:
        return worst(output.outcome for output in self.outputs)

    @property
    def is_clean(self) -> bool:
        return self.outcome is Outcome.CLEAN

    @property
    def semantics(self) -> Semantics | None:
        """The semantics that all outputs together show; None if one of them is unknown."""
        if not self.outputs or any(output.verdict.semantics is None for output in self.outputs):
            return None
        lost, doubled, corrupt = (self._sum(kind) for kind in ("lost", "doubled", "corrupt"))
        return shown_by(lost=lost, doubled=doubled, corrupt=corrupt)

    def text(self) -> str:
        shown = f"shown: {self.semantics}" if self.semantics else "shown: nothing"
        lines = [line for output in self.outputs for line in output.lines()]
        return "\n".join([*lines, shown, f"verdict: {self.outcome}"])

    def as_dict(self) -> dict[str, Any]:
        """Return the totals of all instances, then each instance."""
        sums = {name: self._sum(name) for name in COUNTS}
        whole = {"outcome": self.outcome, "semantics": self.semantics}
        return whole | sums | {"outputs": [output.as_dict() for output in self.outputs]}

    def _sum(self, name: str) -> int:
        return sum(getattr(output.verdict, name) for output in self.outputs)


def verify(inputs: Sequence[Path], directory: Path, instance: str | None = None) -> ComparisonReport:
    """Compare every output in a sink's directory (or one instance) with the inputs."""
    return judge(ComparisonRequest(inputs, directory, instance))


def judge(request: ComparisonRequest) -> ComparisonReport:
    request.check()
    if not (outputs := request.outputs()):
        what = f"the instance {request.instance}" if request.instance else "any file sink"
        raise ConfigError(
            f"There is nothing to compare: {request.directory} has no output of {what}.",
            next_step="name the input files and the directory of a file sink or an epochs sink",
        )
    return ComparisonReport(tuple(_judge(request, output) for output in outputs))


def run_verify(request: ComparisonRequest, *, as_json: bool = False) -> int:
    """Run the command: print the report, return the exit status."""
    report = judge(request)
    print(json.dumps(report.as_dict()) if as_json else report.text())
    return 0 if report.is_clean else 1


def _judge(request: ComparisonRequest, written: SinkOutput) -> JudgedOutput:
    # Read acknowledgements first and decisions last: an epoch is decided before its output is visible, and visible
    # before its records are acknowledged.
    acked = request.of_inputs(acknowledged(request.acks))
    transactions = [list(TransactionTail(log).poll()) for log in written.logs]
    return judge_output(request, written, transactions, acked)


def judge_output(
    request: ComparisonRequest,
    written: SinkOutput,
    committed: Sequence[Sequence[Transaction]],
    acked: Sequence[int | None],
) -> JudgedOutput:
    """Compare one output, given the committed transactions of each of its instances."""
    ranges = [joined(transactions) for transactions in committed]
    sizes = [stored(log).size() for log in written.logs]
    with disk_buckets() as new_buckets:
        verdict = compare(
            [partial(read_ranges, path, None) for path in request.inputs],
            partial(written.read, ranges),
            order=request.order,
            key_of=request.key_of,
            is_complete=request.is_complete,
            acknowledged=acked,
            bounds=request.bounds,
            new_buckets=new_buckets,
        )
    if request.checkpoint is not None:
        undecided = Undecided()
        transactions = [transaction for part in committed for transaction in part]
        undecided.take(transactions, DecisionReader(request.checkpoint).poll(transactions))
        verdict = undecided.judge(verdict)
        if transactions and not undecided.named and verdict.is_clean:
            why = "No round record of the checkpoint names any of the visible transactions."
            verdict = replace(verdict, outcome=Outcome.UNKNOWN, why=why)
    after = sum(max(0, size - end_of(part)) for part, size in zip(ranges, sizes, strict=True))
    return JudgedOutput(written.name, verdict, after, damage_of(written, ranges, sizes), len(written.logs))


def end_of(ranges: Ranges) -> int:
    return max((end for _, end in ranges), default=0)


def damage_of(written: SinkOutput, ranges: Sequence[Ranges], sizes: Sequence[int]) -> str:
    """Describe the damage of an output's files, per instance; empty if there is none."""
    found = []
    for log, committed, size in zip(written.logs, ranges, sizes, strict=True):
        if wrong := damage(committed, size, stored(log).what):
            found.append(wrong if len(written.logs) == 1 else f"{log.stem}: {wrong}")
    return " ".join(found)


def damage(ranges: Ranges, size: int, what: str) -> str:
    """Describe the damage of an instance's files; empty if they have all committed bytes without a gap."""
    end = end_of(ranges)
    if size < end:
        return (
            f"The {what} ends at byte {size}, but the transaction log has committed {end}: committed output is missing."
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
            f"The input {path} cannot be read: {error.strerror}.", next_step="name a readable file"
        ) from error
