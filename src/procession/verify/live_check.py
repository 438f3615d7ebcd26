"""Verifies output during a run, reading only new output.

Invariant: a check reads only output that was committed since the last check. While the outputs are prefixes of the
expected output, no byte is read twice. If an output is not a prefix, it is compared once as a whole, and that verdict
is final. Used by test harnesses, which check ten times a second; uses `verify/prefix` and `verify/comparison`.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from procession.sdk.ack_log import AckTail
from procession.sdk.transaction_log import Transaction, TransactionTail, joined
from procession.verify.comparison import ComparisonReport, ComparisonRequest, JudgedOutput, damage_of, judge_output
from procession.verify.decided import Undecided
from procession.verify.decisions import DecisionReader
from procession.verify.output_layout import StoredOutput, stored
from procession.verify.prefix import PrefixCheck
from procession.verify.sink_outputs import SinkOutput
from procession.verify.verdict import Outcome, Verdict

NOTHING = "Nothing is committed at the output, so there is nothing to verify."


class LiveCheck:
    """Checks the outputs at each `poll`, including new instances."""

    def __init__(self, request: ComparisonRequest) -> None:
        request.check()
        self._request = replace(request, is_complete=False)
        self._decisions = DecisionReader(request.checkpoint) if request.checkpoint else None
        self._acks = AckTail(request.acks)
        self._inputs = [os.open(path, os.O_RDONLY) for path in request.inputs]
        self._outputs: dict[str, WatchedOutput] = {}

    def poll(self) -> ComparisonReport:
        # Read acknowledgements first and decisions last: an epoch is decided before its output is visible, and
        # visible before its records are acknowledged.
        acked = self._request.of_inputs(self._acks.poll())
        for written in self._request.outputs():
            if written.family not in self._outputs:
                self._outputs[written.family] = WatchedOutput(self._request, written, self._inputs)
            self._outputs[written.family].find(written)
        return ComparisonReport(tuple(output.poll(acked, self._decisions) for output in self._outputs.values()))

    def close(self) -> None:
        for descriptor in self._inputs:
            os.close(descriptor)
        self._inputs = []


@dataclass
class WatchedInstance:
    """The output of one connection, and its committed ranges so far."""

    tail: TransactionTail
    stored: StoredOutput
    ranges: list[tuple[int, int]] = field(default_factory=list)

    def poll(self) -> list[Transaction]:
        """Return the transactions that were committed since the last poll."""
        new = list(self.tail.poll())
        self.ranges = joined([*(Transaction("", *known) for known in self.ranges), *new])
        return new


class WatchedOutput:
    """One output, and the checked position of each instance."""

    def __init__(self, request: ComparisonRequest, written: SinkOutput, inputs: list[int]) -> None:
        self._request = request
        self._written = written
        self._instances: dict[Path, WatchedInstance] = {}
        self._undecided = Undecided()
        self._check = PrefixCheck(
            len(inputs),
            lambda number, position, size: os.pread(inputs[number], size, position),
            order=request.order,
            key_of=request.key_of,
        )
        self._judged: JudgedOutput | None = None

    def find(self, written: SinkOutput) -> None:
        """Add the instances that have appeared."""
        self._written = written
        for log in written.logs:
            if log not in self._instances:
                self._instances[log] = WatchedInstance(TransactionTail(log), stored(log))

    def poll(self, acked: list[int | None], decisions: DecisionReader | None) -> JudgedOutput:
        if self._judged is not None:
            return self._judged
        instances = [self._instances[log] for log in self._written.logs]
        sizes = []
        for instance in instances:
            new = instance.poll()
            sizes.append(instance.stored.size())
            self._take(instance, new)
            if decisions is not None and new:
                self._undecided.take(new, decisions.poll(new))
        wrong = damage_of(self._written, [instance.ranges for instance in instances], sizes)
        output = JudgedOutput(self._written.name, self._verdict(), 0, wrong, len(instances))
        if self._check.difference is not None:
            whole = [list(TransactionTail(log).poll()) for log in self._written.logs]
            request = replace(self._request, checkpoint=None)  # decisions were already checked here
            output = judge_output(request, self._written, whole, acked)
            output = replace(output, verdict=self._undecided.judge(_at_least_violated(output.verdict)))
        if output.outcome is Outcome.VIOLATED:
            self._judged = output
        return output

    def _take(self, instance: WatchedInstance, new: list[Transaction]) -> None:
        for piece in instance.stored.read([(start, end) for _, start, end in new]):
            self._check.take(piece)

    def _verdict(self) -> Verdict:
        why = self._check.doubt or ("" if self._check.records else NOTHING)
        outcome = Outcome.UNKNOWN if why else Outcome.CLEAN
        records = self._check.records
        verdict = Verdict(outcome, records, records, why=why, order=self._request.order, is_complete=False)
        return self._undecided.judge(verdict)


def _at_least_violated(verdict: Verdict) -> Verdict:
    """Keep the violation: a record was visible at a wrong place, even if later records hide it."""
    return verdict if verdict.outcome is not Outcome.CLEAN else replace(verdict, outcome=Outcome.VIOLATED)


def run_watch(request: ComparisonRequest, every_s: float, *, as_json: bool = False) -> int:
    """Run the command: print the report when it changes, until a violation (status 1) or an interrupt (status 0)."""
    watch = LiveCheck(request)
    printed = ""
    try:
        while True:
            report = watch.poll()
            text = json.dumps(report.as_dict()) if as_json else report.text()
            if text != printed:
                print(text, flush=True)
                printed = text
            if report.outcome is Outcome.VIOLATED:
                return 1
            time.sleep(every_s)
    except KeyboardInterrupt:
        return 0
    finally:
        watch.close()
