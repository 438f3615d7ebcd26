"""Conformance: what every sink must do, whatever its Output is; with a crash at each step.

Invariant: a case says what a worker does, and what must then be true of the sink's answers and of what a reader sees.
It does not depend on the Output. All cases use the same program; each uses its own instance. Used by `procession sink
check` and by the tests of an Output.

    with Trial(["python", "my_sink.py", "{dir}", "{listen}"], directory, visible) as trial:
        conformance = Conformance(trial)
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
from procession.sdk.scripted_worker import CrashPointNotReached, ScriptedWorker, expect, reply
from procession.sdk.sink_process import SinkProcess
from procession.sdk.sink_server import FAILED
from procession.sdk.testing import Worker
from procession.wire import two_phase_commit
from procession.wire.messages import DATA_STREAM, Phase1, Phase2

CASE_TIMEOUT_S = 120.0
ENDING_S, SOON_S = 10.0, 0.2
"""How long to wait for the end of a sink that says that it fails, and of one that broke a case."""

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
"""Where a sink made with the SDK can be made to die in a round, and what is to be decided there. Before the
vote the decision makes no difference: a transaction without a vote is aborted."""
RECOVERY_POINTS = ("sink:before-recover", "sink:after-recover")


class CaseOutcome(enum.StrEnum):
    """Of a case. A sink that was not made with the SDK has no points to die at."""

    KEPT = "kept"
    BROKEN = "broken"
    NOT_REACHED = "not reached"


@dataclass(frozen=True, slots=True)
class Finding:
    outcome: CaseOutcome
    why: str = ""


@dataclass(frozen=True, slots=True)
class ConformanceCase:
    """`name` is the sentence that must hold, `short` what it is called for by."""

    short: str
    name: str
    play: Callable[[ScriptedWorker], Awaitable[None]]


class Conformance:
    """One program on trial, case by case, in any order. A case may leave it dead: the next one starts it again."""

    def __init__(self, trial: SinkProcess) -> None:
        self._trial = trial
        self._cases_run: list[ScriptedWorker] = []

    async def run(self, case: ConformanceCase) -> Finding:
        """Play a case, with an instance of its own."""
        script = ScriptedWorker(self._trial, f"case-{len(self._cases_run)}", tuple(self._cases_run))
        said_bytes = self._trial.said_bytes()
        try:
            async with asyncio.timeout(CASE_TIMEOUT_S):
                await case.play(script)
        except CrashPointNotReached:
            return Finding(CaseOutcome.NOT_REACHED, "it did not come to the point where it was to die")
        except TimeoutError:
            return Finding(CaseOutcome.BROKEN, "it did not answer in time")
        except (AssertionError, ConnectionError) as error:
            why = str(error) or type(error).__name__
            words = await self._trial.last_lines(said_bytes, ENDING_S if FAILED in why else SOON_S)
            return Finding(CaseOutcome.BROKEN, f"{why}. The sink says: {words}" if words else why)
        finally:
            self._trial.disarm()
            script.close()
            self._cases_run.append(script)
        script.is_kept = True
        return Finding(CaseOutcome.KEPT)


def dies_at(point: str, commit: bool) -> ConformanceCase:
    async def play(script: ScriptedWorker) -> None:
        worker = await script.greet()
        await script.round(worker, b"before the crash\n")
        txn_id, data = script.next_id(), b"one\ntwo\n"
        script.trial.arm(point)
        worker.data(script.end, b"one\n", b"two\n")
        decision = await _as_far_as_it_goes(worker, txn_id, script.end, script.end + len(data), commit)
        if script.trial.is_armed:
            raise CrashPointNotReached
        await script.trial.died()
        worker = await script.settle(txn_id, data, decision)
        if not decision:
            await script.round(worker, data)
        await script.goes_on(worker)

    way = "commit" if commit else "abort"
    return ConformanceCase(_short(point, way), f"killed at {point} on the way to {way}, it keeps its word", play)


async def _as_far_as_it_goes(worker: Worker, txn_id: str, start: int, end: int, commit: bool) -> bool | None:
    """A round with a sink that dies in it: the decision, or None if there was no vote to decide on."""
    worker.send(two_phase_commit.wrap(Phase1(txn_id, ((DATA_STREAM, start, end),))))
    vote = await reply(worker)
    if vote is None:
        return None
    expect(vote.commit, f"it voted abort on {txn_id}, though all of its bytes had come")
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
        await script.goes_on(worker)

    way = "commit" if commit else "abort"
    return ConformanceCase(_short(point, way), f"killed at {point} it keeps what it voted for until {way}", play)


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
        await script.goes_on(worker)

    way = "commit" if commit else "abort"
    return ConformanceCase(
        f"killed-{way}", f"killed after its vote it lists the transaction, and takes the {way}", play
    )


CASES: tuple[ConformanceCase, ...] = (
    ConformanceCase(
        "visible",
        "it shows what is committed and nothing else",
        conformance_cases.shows_what_is_committed_and_nothing_else,
    ),
    ConformanceCase(
        "other-bytes",
        "other bytes may come where some were aborted",
        conformance_cases.other_bytes_come_where_some_were_aborted,
    ),
    ConformanceCase("empty-epoch", "an epoch may be empty", conformance_cases.an_epoch_may_be_empty),
    ConformanceCase("bytes", "bytes are bytes, not lines", conformance_cases.bytes_are_bytes),
    ConformanceCase("large", "a transaction may be large", conformance_cases.a_transaction_may_be_large),
    ConformanceCase("gap", "a gap is voted abort", conformance_cases.a_gap_is_refused),
    ConformanceCase(
        "range", "a range that is not what came is voted abort", conformance_cases.a_wrong_range_is_refused
    ),
    ConformanceCase(
        "refused", "what was voted abort is never committed", conformance_cases.what_it_refused_is_never_committed
    ),
    ConformanceCase(
        "below",
        "an id below the position ends the session and nothing else",
        conformance_cases.an_id_below_the_position,
    ),
    ConformanceCase(
        "early-data",
        "data between vote and decision ends the session, not the promise",
        conformance_cases.no_data_before_the_decision,
    ),
    ConformanceCase(
        "unknown-abort",
        "an abort of what is not open changes nothing",
        conformance_cases.an_abort_of_what_is_not_open_changes_nothing,
    ),
    ConformanceCase(
        "newer-session",
        "a newer session of an instance supersedes the older",
        conformance_cases.a_newer_session_supersedes_the_older,
    ),
    ConformanceCase(
        "two-workers",
        "two workers go their own ways, through a crash too",
        conformance_cases.two_workers_go_their_own_ways,
    ),
    ConformanceCase(
        "unvoted",
        "what was not voted on is dropped at a crash and at a new session",
        conformance_cases.drops_what_was_not_voted_on,
    ),
    *(killed_after_its_vote(commit) for commit in BOTH),
    *(dies_at(point, commit) for point, decisions in POINTS.items() for commit in decisions),
    *(dies_in_recovery(point, commit) for point in RECOVERY_POINTS for commit in BOTH),
    ConformanceCase(
        "all-as-it-was",
        "after all that, a restarted sink says and shows of every instance what it did",
        conformance_cases.all_is_as_it_was,
    ),
)
