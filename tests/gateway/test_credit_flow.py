"""Adaptive credits in the gateway's decisions: which are granted, withheld and replenished, and what an operator
sees."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.gateway.credit_flow import STEP_BYTES, Lag
from procession.gateway.gateway_events import AckIntervalPassed, Action, SendFrame, SessionClosed, SessionOpened
from procession.gateway.gateway_limits import Limits
from procession.wire.messages import Ack, Ok
from tests.gateway.gateway_rig import A, B, GatewayRig, sent
from tests.sdk.gateways import living_gateway

MIB = 1024 * 1024
ADAPTIVE = Limits(credits="adaptive", credits_max=100, credits_min=10, backlog_max=1000)


def granted(actions: list[Action], session: int) -> int:
    return sum(frame.credits for frame in sent(actions, session) if isinstance(frame, Ack))


def test_a_session_starts_with_its_share_of_the_window() -> None:
    rig = GatewayRig(ADAPTIVE)
    assert rig.hello(A) == [Ok(100)]
    assert rig.hello(B) == [Ok(50)]


def test_a_session_that_opens_while_the_window_is_full_gets_the_minimum() -> None:
    rig = GatewayRig(ADAPTIVE)
    rig.open(A, 7)
    rig.message(A, 7, *range(99))
    assert granted(rig.message(A, 7, 99), A) == 0
    assert rig.hello(B) == [Ok(10)]


def test_a_full_window_replenishes_no_credits_until_a_commit_and_then_those_of_all_sessions() -> None:
    rig = GatewayRig(ADAPTIVE)
    rig.open(A, 7)
    rig.open(B, 8)
    left = {A: 99, B: 49}
    for number in count():
        if not any(left.values()):
            break
        for session, stream_id in ((A, 7), (B, 8)):
            if left[session]:
                actions = rig.message(session, stream_id, number)
                left[session] -= 1
                for other in left:
                    left[other] += granted(actions, other)
    assert 100 <= len(rig.rows) < 100 + 100, "the window, and what was granted before it was full"
    actions = rig.commit(0)
    assert granted(actions, A) >= 10
    assert granted(actions, B) >= 10


def test_a_session_never_holds_more_than_the_maximum() -> None:
    rig = GatewayRig(ADAPTIVE)
    rig.open(A, 7)
    held, epoch = 99, 0
    for number in range(2000):
        if not held:
            actions = rig.commit(epoch)
            epoch += 1
        else:
            actions = rig.message(A, 7, number)
            held -= 1
        held += granted(actions, A)
        assert 0 <= held <= 100
    assert len(rig.rows) > 1000, "the session continued"


def test_with_a_fixed_window_credits_are_replenished_before_any_commit() -> None:
    rig = GatewayRig(Limits(credits_max=100, credits_min=10, backlog_max=10))
    rig.open(A, 7)
    assert granted(rig.message(A, 7, *range(99)), A) == 100
    assert [type(action) for action in rig.commit(0, end=50) if isinstance(action, SendFrame)] == []


def test_a_session_that_opens_while_the_lag_is_too_large_gets_the_minimum_also_with_a_fixed_window() -> None:
    rig = GatewayRig(Limits(credits_max=100, credits_min=10, lag_bytes_max=1000))
    rig.open(A, 7)
    rig.message(A, 7, *range(99))
    assert rig.hello(B) == [Ok(10)], "otherwise each reconnecting session could send a full window"
    rig.commit(0)
    assert rig.hello(3) == [Ok(100)]


def test_above_the_limits_only_sessions_before_hello_are_read() -> None:
    rig = GatewayRig(Limits(credits_max=100, lag_bytes_max=1000, overrun_bytes_max=1000))
    rig.open(A, 7)
    state, flow = rig.state, rig.state.flow
    for number in range(99):
        rig.message(A, 7, number)
        assert flow.is_over is state.holds(A) is (flow.lag.bytes > 2000)
    assert flow.is_over
    state.handle(SessionOpened(B))
    assert not state.holds(B)
    rig.commit(0)
    assert not state.holds(A)
    flow.is_disk_full = True
    assert state.holds(A)


def test_credits_of_notify_and_duplicates_are_replenished_even_while_the_lag_is_too_large() -> None:
    rig = GatewayRig(Limits(credits_max=100, credits_min=10, lag_bytes_max=1000))
    rig.open(A, 7)
    rig.message(A, 7, *range(80))
    rig.do(SessionClosed(A))
    rig.open(B, 7)
    rig.message(B, 7, *range(75, 84))
    assert granted(rig.do(AckIntervalPassed()), B) == 1 + 5, "its NOTIFY and the duplicates"
    assert granted(rig.do(AckIntervalPassed()), B) == 0, "once"
    assert len(rig.rows) == 84


@pytest.mark.parametrize("credits", ["fixed", "adaptive"])
def test_the_status_reports_the_window(tmp_path: Path, credits: str) -> None:  # noqa: A002
    with living_gateway(tmp_path, limits={"credits": credits, "latency_target_s": 30.0}) as gateway:
        status = gateway.client().status()
    assert status["credits"] == credits
    assert status["buffered"] == 0
    shown = {name: status[name] for name in ("window", "latency_target_s", "wait_s", "commits_per_s") if name in status}
    expected = {"window": 16384, "latency_target_s": 30.0, "wait_s": 0.0, "commits_per_s": 0.0}
    assert shown == (expected if credits == "adaptive" else {})


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3 * MIB)), max_size=60))
def test_the_lag_is_at_least_the_exact_value_and_at_most_one_step_more(steps: list[tuple[bool, int]]) -> None:
    lag, committed = Lag(), 0
    rows: list[int] = []
    for is_commit, number in steps:
        if is_commit:
            committed = min(len(rows), committed + number % 5)
            lag.commit(committed)
        else:
            rows.append(number)
            lag.add(len(rows), number)
        truth = sum(rows[committed:])
        assert truth <= lag.bytes < truth + STEP_BYTES + 3 * MIB
    lag.commit(len(rows))
    assert lag.bytes == 0
