"""Compares the inputs of a passthrough pipeline with what its sinks have committed.

The one rule: output counts only if the transaction log commits it. What the log commits must be in the output, without
a gap, from the first byte; and, if a checkpoint is given, it must be decided there. Reads inputs and a sink's directory
(`verify/sink_outputs`). The result is the verifier's verdict on each output, as text or JSON, and status 0 (all clean)
or 1. The connections of one sink are one output, unless total order was promised.
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
from procession.sdk.transaction_log import Transaction, TxnTail, joined
from procession.verify.decided import Undecided
from procession.verify.decisions import DecisionReader
from procession.verify.order import KeyOf, Order
from procession.verify.output_layout import Ranges, read_ranges, stored
from procession.verify.semantics import Semantics, shown_by
from procession.verify.sink_outputs import Written, check_one_pipeline, written_in
from procession.verify.spill import disk_shelves
from procession.verify.verdict import KINDS, Outcome, Verdict, worst
from procession.verify.verifier import Bounds, compare

COUNTS = ("records", "committed", *KINDS)


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be held against what."""

    inputs: Sequence[Path]
    directory: Path
    instance: str | None = None
    order: Order = Order.TOTAL
    key_of: KeyOf | None = None
    is_complete: bool = True
    """False while the run goes on: what is missing at the end may still come."""
    checkpoint: Path | None = None
    """The pipeline's checkpoint: then what is visible must be decided there."""
    acks: Sequence[Path] = ()
    """What the producers noted down of their acknowledgements."""
    bounds: Bounds = field(default_factory=Bounds)

    def check(self) -> None:
        """A ConfigError if there is nothing to compare."""
        if not self.inputs:
            raise UsageError("No input was named.", next_step="name the input files")
        for path in self.inputs:
            _must_be_readable(path)
        if self.order is Order.KEY and self.key_of is None:
            raise UsageError("Order 'key' needs a key.", next_step="say with --key-field which field of a line it is")
        if self.instance is None:
            check_one_pipeline(self.directory, self.outputs())

    def outputs(self) -> list[Written]:
        """The outputs that are asked about."""
        return written_in(self.directory, self.instance, is_shared=self.order is not Order.TOTAL)

    def of_inputs(self, heard: Mapping[int, int]) -> list[int | None]:
        """For each input, the last message id that its producer saw acknowledged."""
        return [heard.get(stream_id_of(path)) for path in self.inputs]


@dataclass(frozen=True, slots=True)
class Output:
    """One output, judged by what is committed of it; `connections` have written it. `damage` says what is wrong with
    its files, if anything is."""

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
            yield f"  {self.uncommitted_bytes} bytes after that are not committed and were left out"

    def as_dict(self) -> dict[str, Any]:
        mine = {"instance": self.instance, "connections": self.connections, "damage": self.damage}
        mine |= {"uncommitted_bytes": self.uncommitted_bytes}
        return self.verdict.as_dict() | mine | {"outcome": self.outcome}


@dataclass(frozen=True, slots=True)
class Report:
    """All outputs of a directory, each against the same inputs."""

    outputs: tuple[Output, ...]

    @property
    def outcome(self) -> Outcome:
        return worst(output.outcome for output in self.outputs)

    @property
    def is_clean(self) -> bool:
        return self.outcome is Outcome.CLEAN

    @property
    def semantics(self) -> Semantics | None:
        """What all outputs together have shown; None if nothing can be said of one of them."""
        if not self.outputs or any(output.verdict.semantics is None for output in self.outputs):
            return None
        lost, doubled, corrupt = (self._sum(kind) for kind in ("lost", "doubled", "corrupt"))
        return shown_by(lost=lost, doubled=doubled, corrupt=corrupt)

    def text(self) -> str:
        shown = f"shown: {self.semantics}" if self.semantics else "shown: nothing"
        told = [line for output in self.outputs for line in output.lines()]
        return "\n".join([*told, shown, f"verdict: {self.outcome}"])

    def as_dict(self) -> dict[str, Any]:
        """The counts of all instances together, then each alone."""
        sums = {name: self._sum(name) for name in COUNTS}
        whole = {"outcome": self.outcome, "semantics": self.semantics}
        return whole | sums | {"outputs": [output.as_dict() for output in self.outputs]}

    def _sum(self, name: str) -> int:
        return sum(getattr(output.verdict, name) for output in self.outputs)


def verify(inputs: Sequence[Path], directory: Path, instance: str | None = None) -> Report:
    """Judge every output in a sink's directory (or the one named) against the inputs."""
    return judge(Question(inputs, directory, instance))


def judge(question: Question) -> Report:
    question.check()
    if not (outputs := question.outputs()):
        what = f"the instance {question.instance}" if question.instance else "any file sink"
        raise ConfigError(
            f"There is nothing to compare: {question.directory} holds no output of {what}.",
            next_step="name the input files and the directory that a file sink or a sink of epochs wrote to",
        )
    return Report(tuple(_judge(question, output) for output in outputs))


def run_verify(question: Question, *, as_json: bool = False) -> int:
    """The command: prints the report; the status to exit with."""
    report = judge(question)
    print(json.dumps(report.as_dict()) if as_json else report.text())
    return 0 if report.is_clean else 1


def _judge(question: Question, written: Written) -> Output:
    # Acknowledgements are read first and decisions last: each is made before the next becomes visible.
    heard = question.of_inputs(acknowledged(question.acks))
    transactions = [list(TxnTail(log).look()) for log in written.logs]
    return judge_output(question, written, transactions, heard)


def judge_output(
    question: Question, written: Written, committed: Sequence[Sequence[Transaction]], heard: Sequence[int | None]
) -> Output:
    """Judge one output by the committed transactions of each of its instances."""
    ranges = [joined(transactions) for transactions in committed]
    sizes = [stored(log).size() for log in written.logs]
    with disk_shelves() as shelves:
        verdict = compare(
            [partial(read_ranges, path, None) for path in question.inputs],
            partial(written.read, ranges),
            order=question.order,
            key_of=question.key_of,
            is_complete=question.is_complete,
            acknowledged=heard,
            bounds=question.bounds,
            shelves=shelves,
        )
    if question.checkpoint is not None:
        undecided = Undecided()
        transactions = [transaction for own in committed for transaction in own]
        undecided.take(transactions, DecisionReader(question.checkpoint).look(transactions))
        verdict = undecided.judge(verdict)
        if transactions and not undecided.named and verdict.is_clean:
            why = "No round record of the checkpoint names any of the visible transactions."
            verdict = replace(verdict, outcome=Outcome.UNKNOWN, why=why)
    after = sum(max(0, size - end_of(own)) for own, size in zip(ranges, sizes, strict=True))
    return Output(written.name, verdict, after, damage_of(written, ranges, sizes), len(written.logs))


def end_of(ranges: Ranges) -> int:
    return max((end for _, end in ranges), default=0)


def damage_of(written: Written, ranges: Sequence[Ranges], sizes: Sequence[int]) -> str:
    """What is wrong with the files of an output, instance by instance."""
    found = []
    for log, own, size in zip(written.logs, ranges, sizes, strict=True):
        if wrong := damage(own, size, stored(log).what):
            found.append(wrong if len(written.logs) == 1 else f"{log.stem}: {wrong}")
    return " ".join(found)


def damage(ranges: Ranges, size: int, what: str) -> str:
    """What is wrong with an instance's files; nothing if they hold all that is committed, without a gap."""
    end = end_of(ranges)
    if size < end:
        return f"The {what} ends at byte {size}, but the transaction log has committed {end}: committed output is gone."
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
