"""A scripted worker: drives one instance of a sink through rounds, as a coordinator would.

Invariant: the worker knows which bytes are committed. After each step it checks the sink's answers and the visible
output against them. The cases of `sdk/conformance_cases` drive the worker; `sdk/sink_process` runs the sink.
"""

from __future__ import annotations

import asyncio
import time

from procession.sdk.doubles import Worker
from procession.sdk.sink_process import POLL_INTERVAL_S, SinkProcess
from procession.wire.messages import Error, Reply

VISIBLE_TIMEOUT_S = 2.0
"""Maximum time until readers of a medium see a commit."""


class UnexpectedResult(AssertionError):
    """The sink did not do what a case requires."""


class CrashPointNotReached(Exception):
    """The program did not reach the point where it should die."""


def expect(is_true: bool, sentence: str) -> None:
    if not is_true:
        raise UnexpectedResult(sentence)


class ScriptedWorker:
    """The history of one instance, as a coordinator knows it. The sink is checked against this history."""

    def __init__(self, trial: SinkProcess, instance: str, earlier: tuple[ScriptedWorker, ...] = ()) -> None:
        self.trial = trial
        self.instance = instance
        self.earlier = earlier
        """Workers of other instances that ran before."""
        self.has_passed = False
        """Whether the case of this worker has passed."""
        self.committed = b""
        self._transactions = 0
        self._workers: list[Worker] = []

    @property
    def end(self) -> int:
        return len(self.committed)

    def next_id(self) -> str:
        self._transactions += 1
        return f"{self.instance}-w-out-id-1.e{self._transactions}.f1:c_id={self._transactions}"

    async def connect(self) -> Worker:
        worker = await self.trial.worker()
        self._workers.append(worker)
        return worker

    async def greet(self, listed: tuple[str, ...] = ()) -> Worker:
        """Open a session. The sink must report the committed end and exactly these open transactions."""
        worker = await self.connect()
        end, found = await worker.hello(instance=self.instance)
        expect(end == self.end, f"it reported that its output ends at {end}, but {self.end} bytes are committed")
        expect(found == listed, f"it listed {found}, but {listed} is open")
        return worker

    async def round(self, worker: Worker, data: bytes, *, commit: bool = True) -> None:
        """Run a round: send data, ask for a vote, send the decision and check the output."""
        txn_id = self.next_id()
        await self.prepare(worker, txn_id, data)
        await worker.phase2(txn_id, commit)
        if commit:
            self.committed += data
        self.check_output()

    async def prepare(self, worker: Worker, txn_id: str, data: bytes) -> None:
        if data:
            worker.data(self.end, data)
        vote = await worker.phase1(txn_id, self.end, self.end + len(data))
        expect(vote, f"it voted abort on {txn_id}, although it had received all bytes")
        self.check_output()

    def check_output(self, maybe: bytes = b"") -> None:
        """Check that the visible bytes are the committed bytes, optionally with all of `maybe` after them. A medium may
        show its readers a commit with a delay."""
        deadline_s = time.monotonic() + VISIBLE_TIMEOUT_S
        while (seen := self.trial.visible(self.instance)) is not None:
            if seen in (self.committed, self.committed + maybe):
                return
            if time.monotonic() < deadline_s:
                time.sleep(POLL_INTERVAL_S)
                continue
            same = next((i for i, (a, b) in enumerate(zip(seen, self.committed, strict=False)) if a != b), None)
            where = min(len(seen), self.end) if same is None else same
            raise UnexpectedResult(
                f"{self.end} bytes are committed and {len(seen)} are visible; the first difference is at byte {where}:"
                f" {seen[where : where + 40]!r} instead of {self.committed[where : where + 40]!r}"
            )

    async def restart(self) -> None:
        """Kill the program. The next session starts it again."""
        await asyncio.to_thread(self.trial.kill)

    async def settle(self, txn_id: str, data: bytes, decision: bool | None) -> Worker:
        """Act as a coordinator does after a crash: carry out the decision, and abort the transaction if there is
        none."""
        worker = await self.connect()
        end, listed = await worker.hello(instance=self.instance)
        expect(set(listed) <= {txn_id}, f"it listed {listed}, but only {txn_id} can be open")
        if decision and not listed:
            expect(
                end == self.end + len(data), f"it lost {txn_id}, which it had voted commit on: its output ends at {end}"
            )
        else:
            expect(end == self.end, f"its output ends at {end}, but {self.end} bytes are committed")
            if listed:
                # A commit may become visible before the sink's log records it.
                self.check_output(maybe=data if decision else b"")
        for listed_id in listed:
            await worker.phase2(listed_id, bool(decision))
        if decision:
            self.committed += data
        self.check_output()
        return worker

    async def run_more_rounds(self, worker: Worker) -> None:
        """Check that further rounds work as usual."""
        await self.round(worker, b"one more\n")
        await self.round(worker, b"aborted\n", commit=False)
        await self.round(worker, b"the last\n")

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


async def ended(worker: Worker) -> str:
    """Wait for the end of the session. Returns the reason that the sink gives, if any."""
    reason = ""
    while (event := await worker.receive()) is not None:
        if isinstance(event, Error):
            reason = event.reason
    return reason


async def reply(worker: Worker) -> Reply | None:
    """Return the sink's answer. None: the connection has ended."""
    try:
        answer = await worker.answer()
    except AssertionError:
        return None
    return answer if isinstance(answer, Reply) else None
