"""Visible output without a decision is found, whatever its bytes are."""

from __future__ import annotations

from procession.commit.round_record import RoundRecord, SinkShare
from procession.commit.transaction_id import TransactionId
from procession.verify.decided import Decisions, Undecided
from procession.verify.verdict import Outcome, Verdict

CLEAN = Verdict(Outcome.CLEAN, 3, 3)


def txn(epoch: int, fence: int = 1, checkpoint: str = "abc") -> str:
    return str(TransactionId(epoch, fence, epoch + 1, checkpoint, "app", "out"))


def record(epoch: int, name: str, start: int, end: int) -> RoundRecord:
    return RoundRecord(epoch, 1, "f", 0, 0, {"out": SinkShare(name, start, end)})


DECISIONS = Decisions("abc", 2, {epoch: record(epoch, txn(epoch), 10 * epoch, 10 * epoch + 10) for epoch in (0, 1, 2)})


def judged(*visible: tuple[str, int, int], decisions: Decisions = DECISIONS) -> Verdict:
    undecided = Undecided()
    undecided.take(visible, decisions)
    return undecided.judge(CLEAN)


def test_what_is_decided_may_be_seen() -> None:
    assert judged((txn(0), 0, 10), (txn(1), 10, 20), (txn(2), 20, 30)) == CLEAN


def test_an_epoch_that_is_not_decided_may_not_be_seen() -> None:
    verdict = judged((txn(2), 20, 30), (txn(3), 30, 47))
    assert (verdict.outcome, verdict.uncommitted) == (Outcome.VIOLATED, 17)
    assert verdict.first["uncommitted"].record == repr(txn(3))
    assert "17 bytes visible but not committed" in verdict.sentence()


def test_another_attempt_of_a_decided_epoch_may_not_be_seen() -> None:
    assert judged((txn(2, fence=2), 20, 30)).uncommitted == 10


def test_other_positions_than_those_decided_may_not_be_seen() -> None:
    assert judged((txn(2), 20, 31)).uncommitted == 11
    assert judged((txn(2), 19, 30)).uncommitted == 11


def test_a_transaction_of_another_checkpoint_or_of_none_may_not_be_visible() -> None:
    assert judged((txn(2, checkpoint="def"), 20, 30)).uncommitted == 10
    assert judged(("somebody's", 20, 30)).uncommitted == 10


def test_of_an_old_epoch_whose_record_is_gone_only_the_number_is_known() -> None:
    undecided = Undecided()
    undecided.take([(txn(0), 0, 10), (txn(1), 10, 20)], Decisions("abc", 1, {1: record(1, txn(1), 10, 20)}))
    assert undecided.judge(CLEAN) == CLEAN
    assert (undecided.transactions, undecided.named) == (2, 1)


def test_an_unknown_verdict_becomes_a_violation_when_undecided_output_is_visible() -> None:
    undecided = Undecided()
    undecided.take([(txn(9), 0, 5)], DECISIONS)
    verdict = undecided.judge(Verdict(Outcome.UNKNOWN, 0, 0, why="nothing"))
    assert (verdict.outcome, verdict.why) == (Outcome.VIOLATED, "")
