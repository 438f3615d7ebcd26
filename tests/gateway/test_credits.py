"""Fixed credits in the gateway's decisions: when they are replenished, and when they are withheld."""

from __future__ import annotations

from procession.gateway.gateway_events import (
    AckIntervalPassed,
    FrameReceived,
    RowsAppended,
    SendFrame,
    SessionClosed,
    SessionOpened,
)
from procession.gateway.gateway_limits import Limits
from procession.wire.messages import (
    Ack,
    Messages,
    Notify,
)
from tests.gateway.gateway_rig import A, B, GatewayRig, sent


def test_credits_are_replenished_only_after_records_are_in_the_log() -> None:
    rig = GatewayRig(appends=False)
    rig.open(A, 7)
    assert sent(rig.message(A, 7, *range(60)), A) == []
    assert sent(rig.do(RowsAppended(60)), A) == [Ack(61, ())]


def test_credits_spent_on_duplicates_and_refused_streams_are_replenished_too() -> None:
    rig = GatewayRig()
    rig.open(A, 7)
    rig.message(A, 7, *range(60))
    rig.do(SessionClosed(A))
    rig.open(B, 7)
    assert sent(rig.message(B, 7, *range(60)), B) == [Ack(61, ())]
    rig.open(3, 8)
    for _ in range(23):
        rig.notify(3, 7)
    assert sent(rig.do(FrameReceived(3, Notify(7, "s", 0))), 3)[-1] == Ack(25, ())


def test_every_idle_session_gets_an_ack_at_each_tick_and_a_busy_one_no_additional_one() -> None:
    rig = GatewayRig()
    rig.open(A, 7)
    rig.do(SessionOpened(B))
    assert rig.do(AckIntervalPassed()) == [SendFrame(A, Ack(1, ()))], "B has not said HELLO"
    assert rig.do(AckIntervalPassed()) == [SendFrame(A, Ack(0, ()))]
    assert sent(rig.message(A, 7, *range(30)), A) == [Ack(30, ())]
    assert rig.do(AckIntervalPassed()) == [], "A had its ACK in this interval"
    assert rig.do(AckIntervalPassed()) == [SendFrame(A, Ack(0, ()))]


def test_while_the_lag_is_too_large_credits_are_withheld_and_acks_continue() -> None:
    rig = GatewayRig(Limits(credits_max=8, lag_bytes_max=100))
    rig.open(A, 7)
    taken = 1
    for number in range(50):
        if taken >= 8:
            break
        actions = rig.do(FrameReceived(A, Messages.of([7], [number], [0], [b""], [b"x" * 50])))
        taken += 1 - sum(frame.credits for frame in sent(actions, A) if isinstance(frame, Ack))
    assert taken == 8, "the producer has used all its credits"
    assert len(rig.rows) < 15
    assert rig.do(AckIntervalPassed()) == []
    assert rig.do(AckIntervalPassed()) == [SendFrame(A, Ack(0, ()))]
    owed = rig.state.sessions[A].owed
    assert sent(rig.commit(0, s7=len(rig.rows) - 1), A) == [Ack(owed, ((7, len(rig.rows) - 1),))]
    assert rig.state.flow.lag.bytes == 0


def test_idle_sessions_also_get_withheld_credits_when_the_lag_is_small_again() -> None:
    rig = GatewayRig(Limits(credits_max=8, lag_bytes_max=0))
    rig.open(A, 7)
    rig.open(B, 8)
    rig.message(A, 7, 1)
    assert sent(rig.commit(0, s7=1), B) == [Ack(1, ())]
