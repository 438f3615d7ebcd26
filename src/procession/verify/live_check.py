"""Verifies output while a run goes on, reading only what is new.

The one rule: a check costs what was committed since the last one, not what was ever committed. While the outputs are
prefixes of what is expected, nothing is read twice. When one is not, it is judged once as a whole, and that verdict
stays. Used by a harness that checks ten times a second; uses `verify/prefix` and `verify/comparison`.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from procession.sdk.ack_log import AckTail
from procession.sdk.transaction_log import Transaction, TxnTail, joined
from procession.verify.comparison import Output, Question, Report, damage_of, judge_output
from procession.verify.decided import Undecided
from procession.verify.decisions import DecisionReader
from procession.verify.output_layout import Stored, stored
from procession.verify.prefix import PrefixCheck
from procession.verify.sink_outputs import Written
from procession.verify.verdict import Outcome, Verdict

NOTHING = "Nothing is committed at the output, so there is nothing to judge."


class Watch:
    """`look` as often as you like. Instances are found as they appear."""

    def __init__(self, question: Question) -> None:
        question.check()
        self._question = replace(question, is_complete=False)
        self._decisions = DecisionReader(question.checkpoint) if question.checkpoint else None
        self._acks = AckTail(question.acks)
        self._inputs = [os.open(path, os.O_RDONLY) for path in question.inputs]
        self._outputs: dict[str, WatchedOutput] = {}

    def look(self) -> Report:
        # Acknowledgements are read first and decisions last: each is made before the next becomes visible.
        heard = self._question.of_inputs(self._acks.look())
        for written in self._question.outputs():
            if written.family not in self._outputs:
                self._outputs[written.family] = WatchedOutput(self._question, written, self._inputs)
            self._outputs[written.family].find(written)
        return Report(tuple(output.look(heard, self._decisions) for output in self._outputs.values()))

    def close(self) -> None:
        for descriptor in self._inputs:
            os.close(descriptor)
        self._inputs = []


@dataclass
class Instance:
    """What one connection has written, and what of it is known to be committed."""

    tail: TxnTail
    stored: Stored
    ranges: list[tuple[int, int]] = field(default_factory=list)

    def look(self) -> list[Transaction]:
        """What was committed since the last look."""
        new = list(self.tail.look())
        self.ranges = joined([*(Transaction("", *one) for one in self.ranges), *new])
        return new


class WatchedOutput:
    """One output, and how far each of its instances was looked at."""

    def __init__(self, question: Question, written: Written, inputs: list[int]) -> None:
        self._question = question
        self._written = written
        self._instances: dict[Path, Instance] = {}
        self._undecided = Undecided()
        self._check = PrefixCheck(
            len(inputs),
            lambda number, position, size: os.pread(inputs[number], size, position),
            order=question.order,
            key_of=question.key_of,
        )
        self._judged: Output | None = None

    def find(self, written: Written) -> None:
        """Its instances, as far as there are any by now."""
        self._written = written
        for log in written.logs:
            if log not in self._instances:
                self._instances[log] = Instance(TxnTail(log), stored(log))

    def look(self, heard: list[int | None], decisions: DecisionReader | None) -> Output:
        if self._judged is not None:
            return self._judged
        instances = [self._instances[log] for log in self._written.logs]
        sizes = []
        for instance in instances:
            new = instance.look()
            sizes.append(instance.stored.size())
            self._take(instance, new)
            if decisions is not None and new:
                self._undecided.take(new, decisions.look(new))
        wrong = damage_of(self._written, [instance.ranges for instance in instances], sizes)
        output = Output(self._written.name, self._verdict(), 0, wrong, len(instances))
        if self._check.difference is not None:
            whole = [list(TxnTail(log).look()) for log in self._written.logs]
            question = replace(self._question, checkpoint=None)  # what was seen of it is remembered here
            output = judge_output(question, self._written, whole, heard)
            output = replace(output, verdict=self._undecided.judge(_at_least_violated(output.verdict)))
        if output.outcome is Outcome.VIOLATED:
            self._judged = output
        return output

    def _take(self, instance: Instance, new: list[Transaction]) -> None:
        for piece in instance.stored.read([(start, end) for _, start, end in new]):
            self._check.take(piece)

    def _verdict(self) -> Verdict:
        why = self._check.doubt or ("" if self._check.records else NOTHING)
        outcome = Outcome.UNKNOWN if why else Outcome.CLEAN
        records = self._check.records
        verdict = Verdict(outcome, records, records, why=why, order=self._question.order, is_complete=False)
        return self._undecided.judge(verdict)


def _at_least_violated(verdict: Verdict) -> Verdict:
    """A record stood where it should not; if later ones explain it away, it still stood there."""
    return verdict if verdict.outcome is not Outcome.CLEAN else replace(verdict, outcome=Outcome.VIOLATED)


def run_watch(question: Question, every_s: float, *, as_json: bool = False) -> int:
    """The command: a line whenever the report changes, until it is violated (status 1) or interrupted (status 0)."""
    watch = Watch(question)
    told = ""
    try:
        while True:
            report = watch.look()
            text = json.dumps(report.as_dict()) if as_json else report.text()
            if text != told:
                print(text, flush=True)
                told = text
            if report.outcome is Outcome.VIOLATED:
                return 1
            time.sleep(every_s)
    except KeyboardInterrupt:
        return 0
    finally:
        watch.close()
