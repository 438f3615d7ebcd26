"""A scripted worker: drives one instance of a sink through rounds, as a coordinator would.

Invariant: the worker knows what is committed. After each step it compares the sink's answers, and what a reader sees,
with that. The cases of `sdk/conformance_cases` drive it; `sdk/sink_process` runs the sink.
"""

from __future__ import annotations

import asyncio

from procession.sdk.sink_process import SinkProcess
from procession.sdk.testing import Worker
from procession.wire.messages import Error, Reply


class PromiseBroken(AssertionError):
    """A promise was not kept."""


class CrashPointNotReached(Exception):
    """The program did not come to the point where it was to die."""


def expect(is_true: bool, sentence: str) -> None:
    if not is_true:
        raise PromiseBroken(sentence)


class ScriptedWorker:
    """One instance's history, as a coordinator knows it: what the sink is held against."""

    def __init__(self, trial: SinkProcess, instance: str, earlier: tuple[ScriptedWorker, ...] = ()) -> None:
        self.trial = trial
        self.instance = instance
        self.earlier = earlier
        """Workers of other instances that ran before."""
        self.is_kept = False
        """Whether the history has ended without a violation."""
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
        """A session; the sink must stand where we know it to stand, with these transactions open."""
        worker = await self.connect()
        end, found = await worker.hello(instance=self.instance)
        expect(end == self.end, f"it says that its output ends at {end}, but {self.end} bytes are committed")
        expect(found == listed, f"it lists {found}, but {listed} is open")
        return worker

    async def round(self, worker: Worker, data: bytes, *, commit: bool = True) -> None:
        """Data, vote, decision, and what a reader sees after it."""
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
        expect(vote, f"it voted abort on {txn_id}, though all of its bytes had come")
        self.check_output()

    def check_output(self, maybe: bytes = b"") -> None:
        """What is visible is what is committed; and perhaps, all of it, what is about to be."""
        seen = self.trial.visible(self.instance)
        if seen is not None and seen not in (self.committed, self.committed + maybe):
            same = next((i for i, (a, b) in enumerate(zip(seen, self.committed, strict=False)) if a != b), None)
            where = min(len(seen), self.end) if same is None else same
            raise PromiseBroken(
                f"{self.end} bytes are committed and {len(seen)} are visible; they differ from byte {where} on:"
                f" {seen[where : where + 40]!r} for {self.committed[where : where + 40]!r}"
            )

    async def restart(self) -> None:
        """The program is killed; the next session starts it again."""
        await asyncio.to_thread(self.trial.kill)

    async def settle(self, txn_id: str, data: bytes, decision: bool | None) -> Worker:
        """After a crash do as a coordinator does: carry out the decision; what was not decided is aborted."""
        worker = await self.connect()
        end, listed = await worker.hello(instance=self.instance)
        expect(set(listed) <= {txn_id}, f"it lists {listed}, but only {txn_id} can be open")
        if decision and not listed:
            expect(end == self.end + len(data), f"{txn_id} was voted for and is gone: the output ends at {end}")
        else:
            expect(end == self.end, f"its output ends at {end}, but {self.end} bytes are committed")
            if listed:
                # Where it is decided, it may have been shown before the sink's log knew.
                self.check_output(maybe=data if decision else b"")
        for listed_id in listed:
            await worker.phase2(listed_id, bool(decision))
        if decision:
            self.committed += data
        self.check_output()
        return worker

    async def goes_on(self, worker: Worker) -> None:
        """Further rounds, with normal results."""
        await self.round(worker, b"after all that\n")
        await self.round(worker, b"to be dropped\n", commit=False)
        await self.round(worker, b"and on\n")

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


async def ended(worker: Worker) -> str:
    """The reason that the sink gives when it ends the session, if it gives one."""
    reason = ""
    while (event := await worker.receive()) is not None:
        if isinstance(event, Error):
            reason = event.reason
    return reason


async def reply(worker: Worker) -> Reply | None:
    """The answer of the sink; None if the connection has ended."""
    try:
        answer = await worker.answer()
    except AssertionError:
        return None
    return answer if isinstance(answer, Reply) else None
