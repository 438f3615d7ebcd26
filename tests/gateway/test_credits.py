"""Fixed credits in the gateway's decisions: when they come back, and when they are withheld."""

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
from tests.gateway.bench import A, B, Bench, sent


def test_credits_come_back_when_records_are_in_the_log_and_not_before() -> None:
    bench = Bench(appends=False)
    bench.open(A, 7)
    assert sent(bench.message(A, 7, *range(60)), A) == []
    assert sent(bench.do(RowsAppended(60)), A) == [Ack(61, ())]


def test_credits_spent_on_duplicates_and_refused_streams_come_back_too() -> None:
    bench = Bench()
    bench.open(A, 7)
    bench.message(A, 7, *range(60))
    bench.do(SessionClosed(A))
    bench.open(B, 7)
    assert sent(bench.message(B, 7, *range(60)), B) == [Ack(61, ())]
    bench.open(3, 8)
    for _ in range(23):
        bench.notify(3, 7)
    assert sent(bench.do(FrameReceived(3, Notify(7, "s", 0))), 3)[-1] == Ack(25, ())


def test_every_idle_session_gets_an_ack_each_tick_and_a_busy_one_gets_none_extra() -> None:
    bench = Bench()
    bench.open(A, 7)
    bench.do(SessionOpened(B))
    assert bench.do(AckIntervalPassed()) == [SendFrame(A, Ack(1, ()))], "B has not said HELLO"
    assert bench.do(AckIntervalPassed()) == [SendFrame(A, Ack(0, ()))]
    assert sent(bench.message(A, 7, *range(30)), A) == [Ack(30, ())]
    assert bench.do(AckIntervalPassed()) == [], "A had its ACK in this interval"
    assert bench.do(AckIntervalPassed()) == [SendFrame(A, Ack(0, ()))]


def test_while_the_lag_is_too_large_credits_are_withheld_and_acks_go_on() -> None:
    bench = Bench(Limits(credits_max=8, lag_bytes_max=100))
    bench.open(A, 7)
    taken = 1
    for number in range(50):
        if taken >= 8:
            break
        actions = bench.do(FrameReceived(A, Messages.of([7], [number], [0], [b""], [b"x" * 50])))
        taken += 1 - sum(frame.credits for frame in sent(actions, A) if isinstance(frame, Ack))
    assert taken == 8, "the producer ran dry"
    assert len(bench.rows) < 15
    assert bench.do(AckIntervalPassed()) == []
    assert bench.do(AckIntervalPassed()) == [SendFrame(A, Ack(0, ()))]
    owed = bench.state.sessions[A].owed
    assert sent(bench.commit(0, s7=len(bench.rows) - 1), A) == [Ack(owed, ((7, len(bench.rows) - 1),))]
    assert bench.state.flow.lag.bytes == 0


def test_sessions_without_news_also_get_what_was_withheld_when_the_lag_is_gone() -> None:
    bench = Bench(Limits(credits_max=8, lag_bytes_max=0))
    bench.open(A, 7)
    bench.open(B, 8)
    bench.message(A, 7, 1)
    assert sent(bench.commit(0, s7=1), B) == [Ack(1, ())]
