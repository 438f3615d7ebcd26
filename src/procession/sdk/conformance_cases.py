"""The conformance cases: what a worker does to a sink, and what the sink must do, round by round.

Invariant: each function is one case and does not depend on the Output. `sdk/conformance` adds the crashes;
`sdk/scripted_worker` performs the steps.
"""

from __future__ import annotations

from procession.sdk.scripted_worker import ScriptedWorker, ended, expect, reply
from procession.wire import two_phase_commit
from procession.wire.messages import Phase2


async def data_without_a_vote_is_dropped(script: ScriptedWorker) -> None:
    worker = await script.greet()
    await script.round(worker, b"first\n")
    worker.data(script.end, b"never voted on\n")
    worker.send(two_phase_commit.wrap(Phase2("unknown", commit=False)))
    await reply(worker)
    await script.restart()
    worker = await script.greet()
    script.check_output()
    await script.round(worker, b"second\n")
    worker.data(script.end, b"never voted on\n")
    worker = await script.greet()
    await script.round(worker, b"third\n")
    await script.run_more_rounds(worker)


async def exactly_the_committed_output_is_visible(script: ScriptedWorker) -> None:
    worker = await script.greet()
    for number in range(12):
        await script.round(worker, b"line %d\n" % number, commit=number % 3 != 1)
    await script.run_more_rounds(worker)


async def other_bytes_may_follow_an_abort(script: ScriptedWorker) -> None:
    worker = await script.greet()
    await script.round(worker, b"first\n")
    await script.round(worker, b"a long line that is aborted\n", commit=False)
    await script.round(worker, b"short\n")
    txn_id = script.next_id()
    await script.prepare(worker, txn_id, b"another long line that is aborted\n")
    await script.restart()
    worker = await script.greet(listed=(txn_id,))
    await worker.phase2(txn_id, commit=False)
    await script.round(worker, b"brief\n")
    await script.run_more_rounds(worker)


async def an_epoch_may_be_empty(script: ScriptedWorker) -> None:
    worker = await script.greet()
    await script.round(worker, b"")
    await script.round(worker, b"", commit=False)
    await script.round(worker, b"not empty\n")
    await script.round(worker, b"")
    txn_id = script.next_id()
    await script.prepare(worker, txn_id, b"")
    await script.restart()
    worker = await script.greet(listed=(txn_id,))
    await worker.phase2(txn_id, commit=True)
    await script.run_more_rounds(worker)


async def a_payload_may_be_any_bytes(script: ScriptedWorker) -> None:
    worker = await script.greet()
    await script.round(worker, bytes(range(256)))
    await script.round(worker, b"\n\n\x00\r\n" * 7)
    await script.round(worker, "zwölf Boxkämpfer".encode())
    await script.run_more_rounds(worker)


async def a_transaction_may_be_large(script: ScriptedWorker) -> None:
    worker = await script.greet()
    payloads = [b"%08d " % number + b"x" * 100_000 + b"\n" for number in range(30)]
    txn_id, data = script.next_id(), b"".join(payloads)
    worker.data(script.end, *payloads)
    expect(await worker.phase1(txn_id, 0, len(data)), "it voted abort on three megabytes")
    await worker.phase2(txn_id, commit=True)
    script.committed = data
    script.check_output()
    await script.run_more_rounds(worker)


async def a_gap_is_refused(script: ScriptedWorker) -> None:
    worker = await script.greet()
    await script.round(worker, b"first\n")
    txn_id = script.next_id()
    worker.data(script.end, b"a")
    worker.data(script.end + 2, b"c")
    vote = await worker.phase1(txn_id, script.end, script.end + 3)
    expect(not vote, "it voted commit although a byte was missing")
    await worker.phase2(txn_id, commit=False)
    script.check_output()
    await script.round(worker, b"abc\n")
    await script.run_more_rounds(worker)


async def a_wrong_range_is_refused(script: ScriptedWorker) -> None:
    worker = await script.greet()
    await script.round(worker, b"first\n")
    for start, end in ((script.end, script.end + 5), (script.end, script.end + 3), (script.end - 1, script.end + 4)):
        txn_id = script.next_id()
        worker.data(script.end, b"four")
        expect(
            not await worker.phase1(txn_id, start, end),
            f"it voted commit on [{start}, {end}), which it did not receive",
        )
        await worker.phase2(txn_id, commit=False)
        script.check_output()
    await script.run_more_rounds(worker)


async def a_refused_transaction_is_never_committed(script: ScriptedWorker) -> None:
    worker = await script.greet()
    await script.round(worker, b"first\n")
    txn_id = script.next_id()
    worker.data(script.end + 1, b"after a gap\n")
    expect(not await worker.phase1(txn_id, script.end, script.end + 13), "it voted commit although a byte was missing")
    worker.send(two_phase_commit.wrap(Phase2(txn_id, commit=True)))
    await ended(worker)
    worker = await script.greet()
    script.check_output()
    await script.run_more_rounds(worker)


async def an_id_below_the_position(script: ScriptedWorker) -> None:
    worker = await script.greet()
    await script.round(worker, b"first\n")
    worker.data(script.end, b"second\n")
    worker.data(script.end + 1, b"x")
    await ended(worker)
    worker = await script.greet()
    script.check_output()
    await script.round(worker, b"second\n")
    await script.run_more_rounds(worker)


async def no_data_before_the_decision(script: ScriptedWorker) -> None:
    worker = await script.greet()
    await script.round(worker, b"first\n")
    txn_id, data = script.next_id(), b"second\n"
    await script.prepare(worker, txn_id, data)
    worker.data(script.end + len(data), b"too early\n")
    await ended(worker)
    worker = await script.greet(listed=(txn_id,))
    await worker.phase2(txn_id, commit=True)
    script.committed += data
    script.check_output()
    await script.run_more_rounds(worker)


async def an_abort_of_an_unknown_transaction_changes_nothing(script: ScriptedWorker) -> None:
    worker = await script.greet()
    await script.round(worker, b"first\n")
    txn_id, data = script.next_id(), b"second\n"
    await script.prepare(worker, txn_id, data)
    await worker.phase2("unknown", commit=False)
    await worker.phase2(txn_id, commit=True)
    script.committed += data
    script.check_output()
    await worker.phase2(txn_id, commit=False)
    script.check_output()
    await script.run_more_rounds(worker)


async def a_newer_session_supersedes_the_older(script: ScriptedWorker) -> None:
    older = await script.greet()
    await script.round(older, b"first\n")
    txn_id, data = script.next_id(), b"second\n"
    await script.prepare(older, txn_id, data)
    newer = await script.greet(listed=(txn_id,))
    await ended(older)
    script.check_output()
    await newer.phase2(txn_id, commit=True)
    script.committed += data
    script.check_output()
    await script.run_more_rounds(newer)


async def two_workers_are_independent(script: ScriptedWorker) -> None:
    other = ScriptedWorker(script.trial, f"{script.instance}-other")
    try:
        worker, others = await script.greet(), await other.greet()
        await script.round(worker, b"mine\n")
        await other.round(others, b"theirs, longer\n")
        first_id, second_id = script.next_id(), other.next_id()
        await script.prepare(worker, first_id, b"mine again\n")
        await other.prepare(others, second_id, b"theirs again\n")
        await worker.phase2(first_id, commit=True)
        script.committed += b"mine again\n"
        script.check_output()
        other.check_output()
        await script.restart()
        worker, others = await script.greet(), await other.greet(listed=(second_id,))
        await script.round(worker, b"mine\n")
        await others.phase2(second_id, commit=False)
        script.check_output()
        other.check_output()
        await other.round(others, b"theirs\n")
        await script.run_more_rounds(worker)
        await other.run_more_rounds(await other.greet())
    finally:
        other.close()


async def nothing_changes_at_a_restart(script: ScriptedWorker) -> None:
    await script.restart()
    for earlier in script.earlier:
        if earlier.has_passed:
            await earlier.greet()
            earlier.check_output()
            earlier.close()
