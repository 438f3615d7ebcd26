"""The watch: verify while the run goes on, reading only what is new.

The one rule: a look costs what was committed since the last one, not what was committed ever. As long as the outputs
are prefixes nothing is read twice; when one is not, the whole of it is judged once, and that verdict stays. Before it
a harness that asks ten times a second; after it `chaos/prefix` and, for the damage, `ops/verify`.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

from procession.chaos.decision import Undecided
from procession.chaos.prefix import PrefixCheck
from procession.chaos.verdict import Outcome, Verdict
from procession.ops.decisions import DecisionReader
from procession.ops.stored import stored
from procession.ops.verify import Output, Question, Report, damage, judge_output
from procession.sdk.acklog import AckTail
from procession.sdk.txnlog import Transaction, TxnTail, joined

NOTHING = "Nothing is committed at the output, so there is nothing to judge."


class Watch:
    """`look` as often as you like. Instances are found as they appear."""

    def __init__(self, question: Question) -> None:
        question.check()
        self._question = replace(question, is_complete=False)
        self._decisions = DecisionReader(question.checkpoint) if question.checkpoint else None
        self._acks = AckTail(question.acks)
        self._inputs = [os.open(path, os.O_RDONLY) for path in question.inputs]
        self._outputs: dict[Path, WatchedOutput] = {}

    def look(self) -> Report:
        # Acknowledgements are read first and decisions last: each is made before the next becomes visible.
        heard = self._question.of_inputs(self._acks.look())
        for log in self._question.logs():
            if log not in self._outputs:
                self._outputs[log] = WatchedOutput(self._question, log, self._inputs)
        return Report(tuple(output.look(heard, self._decisions) for output in self._outputs.values()))

    def close(self) -> None:
        for descriptor in self._inputs:
            os.close(descriptor)
        self._inputs = []


class WatchedOutput:
    """One instance, and how far it was looked at."""

    def __init__(self, question: Question, log: Path, inputs: list[int]) -> None:
        self._question = question
        self._log = log
        self._stored = stored(log)
        self._tail = TxnTail(log)
        self._undecided = Undecided()
        self._ranges: list[tuple[int, int]] = []
        self._check = PrefixCheck(
            len(inputs),
            lambda number, position, size: os.pread(inputs[number], size, position),
            order=question.order,
            key_of=question.key_of,
        )
        self._judged: Output | None = None

    def look(self, heard: list[int | None], decisions: DecisionReader | None) -> Output:
        if self._judged is not None:
            return self._judged
        new = list(self._tail.look())
        self._ranges = joined([*(Transaction("", *one) for one in self._ranges), *new])
        size = self._stored.size()
        self._take(new)
        if decisions is not None and new:
            self._undecided.take(new, decisions.look(new))
        output = Output(self._log.stem, self._verdict(), 0, damage(self._ranges, size, self._stored.what))
        if self._check.difference is not None:
            whole = list(TxnTail(self._log).look())
            question = replace(self._question, checkpoint=None)  # what was seen of it is remembered here
            output = judge_output(question, self._log, whole, heard)
            output = replace(output, verdict=self._undecided.judge(_at_least_violated(output.verdict)))
        if output.outcome is Outcome.VIOLATED:
            self._judged = output
        return output

    def _take(self, new: list[Transaction]) -> None:
        for piece in self._stored.read([(start, end) for _, start, end in new]):
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
