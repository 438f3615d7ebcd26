"""Conformance: tests what every sink must do with any Output, including a crash at each step.

Invariant: a case defines what a worker does, and what the sink must then answer and show to readers. No case depends on
the Output. All cases use the same program; each uses its own instance. Used by `procession sink check` and by the tests
of an Output.

    with SinkProcess(["python", "my_sink.py", "{dir}", "{listen}"], directory, visible) as sink:
        conformance = Conformance(sink)
        for case in CASES:
            print(case.name, await conformance.run(case))
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from procession.sdk import conformance_cases
from procession.sdk.doubles import Worker
from procession.sdk.scripted_worker import CrashPointNotReached, ScriptedWorker, expect, reply
from procession.sdk.sink_process import SinkProcess
from procession.sdk.sink_server import FAILED
from procession.wire import two_phase_commit
from procession.wire.messages import DATA_STREAM, Phase1, Phase2

CASE_TIMEOUT_S = 120.0
ENDING_S, SOON_S = 10.0, 0.2
"""How long to wait for a sink to end: after it reports a failure, and after it failed a case without such a report."""

BOTH = (True, False)
POINTS: dict[str, tuple[bool, ...]] = {
    "sink:after-append": (True,),
    "sink:before-prepare": (True,),
    "sink:before-vote": (True,),
    "sink:after-vote-before-reply": (True,),
    "sink:before-commit": BOTH,
    "sink:after-output-commit": (True,),
    "sink:before-output-abort": (False,),
    "sink:after-commit": BOTH,
}
"""The points of a round at which a sink made with the SDK can be killed, and the decisions to test there. Before the
vote the decision makes no difference: a transaction without a vote is aborted."""
RECOVERY_POINTS = ("sink:before-recover", "sink:after-recover")


class CaseOutcome(enum.StrEnum):
    """The outcome of a case. `NOT_REACHED`: the sink did not reach the case's crash point, because it was not made with
    the SDK."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_REACHED = "not reached"


@dataclass(frozen=True, slots=True)
class Finding:
    outcome: CaseOutcome
    why: str = ""


@dataclass(frozen=True, slots=True)
class ConformanceCase:
    """One case. `name` is the sentence that must hold; `short` is the name that selects the case."""

    short: str
    name: str
    play: Callable[[ScriptedWorker], Awaitable[None]]


class Conformance:
    """Runs the cases on one program, in any order. A case may leave the program dead; the next case starts it again."""

    def __init__(self, trial: SinkProcess) -> None:
        self._trial = trial
        self._cases_run: list[ScriptedWorker] = []

    async def run(self, case: ConformanceCase) -> Finding:
        """Run one case with its own instance."""
        script = ScriptedWorker(self._trial, f"case-{len(self._cases_run)}", tuple(self._cases_run))
        logged_bytes = self._trial.logged_bytes()
        try:
            async with asyncio.timeout(CASE_TIMEOUT_S):
                await case.play(script)
        except CrashPointNotReached:
            return Finding(CaseOutcome.NOT_REACHED, "it did not reach this crash point")
        except TimeoutError:
            return Finding(CaseOutcome.FAILED, f"it did not answer within {CASE_TIMEOUT_S:g} s")
        except (AssertionError, ConnectionError) as error:
            why = str(error) or type(error).__name__
            message = await self._trial.last_lines(logged_bytes, ENDING_S if FAILED in why else SOON_S)
            return Finding(CaseOutcome.FAILED, f"{why}. The sink's error: {message}" if message else why)
        finally:
            self._trial.disarm()
            script.close()
            self._cases_run.append(script)
        script.has_passed = True
        return Finding(CaseOutcome.PASSED)


def dies_at(point: str, commit: bool) -> ConformanceCase:
    async def play(script: ScriptedWorker) -> None:
        worker = await script.greet()
        await script.round(worker, b"before the crash\n")
        txn_id, data = script.next_id(), b"one\ntwo\n"
        script.trial.arm(point)
        worker.data(script.end, b"one\n", b"two\n")
        decision = await _send_round(worker, txn_id, script.end, script.end + len(data), commit)
        if script.trial.is_armed:
            raise CrashPointNotReached
        await script.trial.died()
        worker = await script.settle(txn_id, data, decision)
        if not decision:
            await script.round(worker, data)
        await script.run_more_rounds(worker)

    way = "commit" if commit else "abort"
    return ConformanceCase(_short(point, way), f"killed at {point} in an epoch that ends with {way}, it recovers", play)


async def _send_round(worker: Worker, txn_id: str, start: int, end: int, commit: bool) -> bool | None:
    """Send a vote request and a decision to a sink that dies in the round. Returns the decision; None: there was no
    vote."""
    worker.send(two_phase_commit.wrap(Phase1(txn_id, ((DATA_STREAM, start, end),))))
    vote = await reply(worker)
    if vote is None:
        return None
    expect(vote.commit, f"it voted abort on {txn_id}, although it had received all bytes")
    worker.send(two_phase_commit.wrap(Phase2(txn_id, commit)))
    await reply(worker)
    return commit


def dies_in_recovery(point: str, commit: bool) -> ConformanceCase:
    async def play(script: ScriptedWorker) -> None:
        worker = await script.greet()
        await script.round(worker, b"before the crash\n")
        txn_id, data = script.next_id(), b"one\ntwo\n"
        await script.prepare(worker, txn_id, data)
        script.trial.arm(point)
        worker = await script.connect()
        with suppress(AssertionError):
            await worker.hello(instance=script.instance)
        if script.trial.is_armed:
            raise CrashPointNotReached
        await script.trial.died()
        worker = await script.settle(txn_id, data, commit)
        await script.run_more_rounds(worker)

    way = "commit" if commit else "abort"
    return ConformanceCase(_short(point, way), f"killed at {point}, it keeps a prepared transaction until {way}", play)


def _short(point: str, way: str) -> str:
    return f"{point.removeprefix('sink:')}-{way}"


def killed_after_its_vote(commit: bool) -> ConformanceCase:
    async def play(script: ScriptedWorker) -> None:
        worker = await script.greet()
        await script.round(worker, b"first\n")
        txn_id, data = script.next_id(), b"second\n"
        await script.prepare(worker, txn_id, data)
        for _ in range(2):
            await script.restart()
            worker = await script.greet(listed=(txn_id,))
            script.check_output()
        await worker.phase2(txn_id, commit)
        if commit:
            script.committed += data
        script.check_output()
        await script.run_more_rounds(worker)

    way = "commit" if commit else "abort"
    return ConformanceCase(
        f"killed-{way}", f"killed after its vote, it lists the transaction and accepts the {way}", play
    )


CASES: tuple[ConformanceCase, ...] = (
    ConformanceCase(
        "visible",
        "exactly the committed output is visible",
        conformance_cases.exactly_the_committed_output_is_visible,
    ),
    ConformanceCase(
        "other-bytes",
        "after an abort, other bytes may follow at the same position",
        conformance_cases.other_bytes_may_follow_an_abort,
    ),
    ConformanceCase("empty-epoch", "an epoch may be empty", conformance_cases.an_epoch_may_be_empty),
    ConformanceCase("bytes", "a payload may be any bytes", conformance_cases.a_payload_may_be_any_bytes),
    ConformanceCase("large", "a transaction may be large", conformance_cases.a_transaction_may_be_large),
    ConformanceCase("gap", "it votes abort if bytes are missing", conformance_cases.a_gap_is_refused),
    ConformanceCase(
        "range", "it votes abort if the range is not what it received", conformance_cases.a_wrong_range_is_refused
    ),
    ConformanceCase(
        "refused",
        "a transaction that it voted abort on is never committed",
        conformance_cases.a_refused_transaction_is_never_committed,
    ),
    ConformanceCase(
        "below",
        "an id below the position ends the session and changes nothing else",
        conformance_cases.an_id_below_the_position,
    ),
    ConformanceCase(
        "early-data",
        "data between vote and decision ends the session; the vote stays valid",
        conformance_cases.no_data_before_the_decision,
    ),
    ConformanceCase(
        "unknown-abort",
        "an abort of a transaction that is not open changes nothing",
        conformance_cases.an_abort_of_an_unknown_transaction_changes_nothing,
    ),
    ConformanceCase(
        "newer-session",
        "a newer session of an instance replaces the older one",
        conformance_cases.a_newer_session_supersedes_the_older,
    ),
    ConformanceCase(
        "two-workers",
        "two workers are independent, also after a crash",
        conformance_cases.two_workers_are_independent,
    ),
    ConformanceCase(
        "unvoted",
        "data without a vote is dropped at a crash and at a new session",
        conformance_cases.data_without_a_vote_is_dropped,
    ),
    *(killed_after_its_vote(commit) for commit in BOTH),
    *(dies_at(point, commit) for point, decisions in POINTS.items() for commit in decisions),
    *(dies_in_recovery(point, commit) for point in RECOVERY_POINTS for commit in BOTH),
    ConformanceCase(
        "restart-at-end",
        "after all cases, a restarted sink has the same output and position for every instance",
        conformance_cases.nothing_changes_at_a_restart,
    ),
)
