"""The conformance cases: what a worker may do to a sink, and what the sink must do, round by round.

Invariant: each function is one case and does not depend on the Output. `sdk/conformance` adds the crashes;
`sdk/scripted_worker` performs the steps.
"""

from __future__ import annotations

from procession.sdk.scripted_worker import ScriptedWorker, ended, expect, reply
from procession.wire import two_phase_commit
from procession.wire.messages import Phase2


async def drops_what_was_not_voted_on(story: ScriptedWorker) -> None:
    worker = await story.greet()
    await story.round(worker, b"first\n")
    worker.data(story.end, b"never voted on\n")
    worker.send(two_phase_commit.wrap(Phase2("never heard of", commit=False)))
    await reply(worker)
    await story.restart()
    worker = await story.greet()
    story.look()
    await story.round(worker, b"second\n")
    worker.data(story.end, b"never voted on\n")
    worker = await story.greet()
    await story.round(worker, b"third\n")
    await story.goes_on(worker)


async def shows_what_is_committed_and_nothing_else(story: ScriptedWorker) -> None:
    worker = await story.greet()
    for number in range(12):
        await story.round(worker, b"line %d\n" % number, commit=number % 3 != 1)
    await story.goes_on(worker)


async def other_bytes_come_where_some_were_aborted(story: ScriptedWorker) -> None:
    worker = await story.greet()
    await story.round(worker, b"first\n")
    await story.round(worker, b"a long line that is aborted\n", commit=False)
    await story.round(worker, b"short\n")
    txn_id = story.next_id()
    await story.prepare(worker, txn_id, b"another long line that is aborted\n")
    await story.restart()
    worker = await story.greet(listed=(txn_id,))
    await worker.phase2(txn_id, commit=False)
    await story.round(worker, b"brief\n")
    await story.goes_on(worker)


async def an_epoch_may_be_empty(story: ScriptedWorker) -> None:
    worker = await story.greet()
    await story.round(worker, b"")
    await story.round(worker, b"", commit=False)
    await story.round(worker, b"not empty\n")
    await story.round(worker, b"")
    txn_id = story.next_id()
    await story.prepare(worker, txn_id, b"")
    await story.restart()
    worker = await story.greet(listed=(txn_id,))
    await worker.phase2(txn_id, commit=True)
    await story.goes_on(worker)


async def bytes_are_bytes(story: ScriptedWorker) -> None:
    worker = await story.greet()
    await story.round(worker, bytes(range(256)))
    await story.round(worker, b"\n\n\x00\r\n" * 7)
    await story.round(worker, "zwölf Boxkämpfer".encode())
    await story.goes_on(worker)


async def a_transaction_may_be_large(story: ScriptedWorker) -> None:
    worker = await story.greet()
    payloads = [b"%08d " % number + b"x" * 100_000 + b"\n" for number in range(30)]
    txn_id, data = story.next_id(), b"".join(payloads)
    worker.data(story.end, *payloads)
    expect(await worker.phase1(txn_id, 0, len(data)), "it voted abort on three megabytes")
    await worker.phase2(txn_id, commit=True)
    story.committed = data
    story.look()
    await story.goes_on(worker)


async def a_gap_is_refused(story: ScriptedWorker) -> None:
    worker = await story.greet()
    await story.round(worker, b"first\n")
    txn_id = story.next_id()
    worker.data(story.end, b"a")
    worker.data(story.end + 2, b"c")
    vote = await worker.phase1(txn_id, story.end, story.end + 3)
    expect(not vote, "it voted commit though a byte was missing")
    await worker.phase2(txn_id, commit=False)
    story.look()
    await story.round(worker, b"abc\n")
    await story.goes_on(worker)


async def a_wrong_range_is_refused(story: ScriptedWorker) -> None:
    worker = await story.greet()
    await story.round(worker, b"first\n")
    for start, end in ((story.end, story.end + 5), (story.end, story.end + 3), (story.end - 1, story.end + 4)):
        txn_id = story.next_id()
        worker.data(story.end, b"four")
        expect(not await worker.phase1(txn_id, start, end), f"it voted commit on [{start}, {end}), which did not come")
        await worker.phase2(txn_id, commit=False)
        story.look()
    await story.goes_on(worker)


async def what_it_refused_is_never_committed(story: ScriptedWorker) -> None:
    worker = await story.greet()
    await story.round(worker, b"first\n")
    txn_id = story.next_id()
    worker.data(story.end + 1, b"after a gap\n")
    expect(not await worker.phase1(txn_id, story.end, story.end + 13), "it voted commit though a byte was missing")
    worker.send(two_phase_commit.wrap(Phase2(txn_id, commit=True)))
    await ended(worker)
    worker = await story.greet()
    story.look()
    await story.goes_on(worker)


async def an_id_below_the_position(story: ScriptedWorker) -> None:
    worker = await story.greet()
    await story.round(worker, b"first\n")
    worker.data(story.end, b"second\n")
    worker.data(story.end + 1, b"x")
    await ended(worker)
    worker = await story.greet()
    story.look()
    await story.round(worker, b"second\n")
    await story.goes_on(worker)


async def no_data_before_the_decision(story: ScriptedWorker) -> None:
    worker = await story.greet()
    await story.round(worker, b"first\n")
    txn_id, data = story.next_id(), b"second\n"
    await story.prepare(worker, txn_id, data)
    worker.data(story.end + len(data), b"too early\n")
    await ended(worker)
    worker = await story.greet(listed=(txn_id,))
    await worker.phase2(txn_id, commit=True)
    story.committed += data
    story.look()
    await story.goes_on(worker)


async def an_abort_of_what_is_not_open_changes_nothing(story: ScriptedWorker) -> None:
    worker = await story.greet()
    await story.round(worker, b"first\n")
    txn_id, data = story.next_id(), b"second\n"
    await story.prepare(worker, txn_id, data)
    await worker.phase2("never heard of", commit=False)
    await worker.phase2(txn_id, commit=True)
    story.committed += data
    story.look()
    await worker.phase2(txn_id, commit=False)
    story.look()
    await story.goes_on(worker)


async def a_newer_session_supersedes_the_older(story: ScriptedWorker) -> None:
    older = await story.greet()
    await story.round(older, b"first\n")
    txn_id, data = story.next_id(), b"second\n"
    await story.prepare(older, txn_id, data)
    newer = await story.greet(listed=(txn_id,))
    await ended(older)
    story.look()
    await newer.phase2(txn_id, commit=True)
    story.committed += data
    story.look()
    await story.goes_on(newer)


async def two_workers_go_their_own_ways(story: ScriptedWorker) -> None:
    other = ScriptedWorker(story.trial, f"{story.instance}-other")
    try:
        worker, others = await story.greet(), await other.greet()
        await story.round(worker, b"mine\n")
        await other.round(others, b"theirs, longer\n")
        first_id, second_id = story.next_id(), other.next_id()
        await story.prepare(worker, first_id, b"mine again\n")
        await other.prepare(others, second_id, b"theirs again\n")
        await worker.phase2(first_id, commit=True)
        story.committed += b"mine again\n"
        story.look()
        other.look()
        await story.restart()
        worker, others = await story.greet(), await other.greet(listed=(second_id,))
        await story.round(worker, b"mine\n")
        await others.phase2(second_id, commit=False)
        story.look()
        other.look()
        await other.round(others, b"theirs\n")
        await story.goes_on(worker)
        await other.goes_on(await other.greet())
    finally:
        other.close()


async def all_is_as_it_was(story: ScriptedWorker) -> None:
    await story.restart()
    for earlier in story.earlier:
        if earlier.is_kept:
            await earlier.greet()
            earlier.look()
            earlier.close()
