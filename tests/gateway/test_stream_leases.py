"""Stream leases: what a gateway holds, releases and refuses, over every order of the events of a stream."""

from __future__ import annotations

import itertools

import pytest

from procession.gateway.stream_leases import HELD, STEPS, LeaseDecision, LeaseState, LeaseStep, StreamLeases
from procession.wire.messages import NOTHING_COMMITTED, Notify

S = 7
NOTIFY = Notify(S, "s", NOTHING_COMMITTED)


def leases(*held: int, until: int = 5, has_leader: bool = True) -> StreamLeases:
    made = StreamLeases(held, until)
    made.has_leader = has_leader
    return made


@pytest.mark.parametrize("step", LeaseStep)
@pytest.mark.parametrize("state", LeaseState)
def test_a_step_that_is_not_in_the_table_changes_nothing(state: LeaseState, step: LeaseStep) -> None:
    found = leases(S)
    found._claims[S] = state
    found._step(S, step)
    assert found[S] is STEPS[state].get(step, state)


def test_at_its_start_a_gateway_has_no_leader_and_may_have_others_beside_it() -> None:
    found = StreamLeases()
    assert [found.has_leader, found.is_alone, found.is_leading] == [False] * 3
    assert StreamLeases(is_leading=True).is_leading


def test_a_stream_is_held_only_after_the_leader_has_granted_it() -> None:
    found = leases()
    assert found.notify(1, NOTIFY) is LeaseDecision.ASK
    assert not found.holds(S)
    assert found.is_wanted(S)
    assert found.answered(S, is_granted=True) == (1, NOTIFY)
    assert found.holds(S)
    assert found.has_opened(S)
    assert found.held == [S]
    assert not found.is_wanted(S)


def test_a_refusal_leaves_nothing_behind_and_names_the_session_that_waits() -> None:
    found = leases()
    found.notify(1, NOTIFY)
    assert found.answered(S, is_granted=False) == (1, NOTIFY)
    assert len(found) == 0
    assert found.asking == 0


def test_a_second_session_is_refused_while_the_first_waits_for_the_leader() -> None:
    found = leases()
    found.notify(1, NOTIFY)
    assert found.notify(2, NOTIFY) is LeaseDecision.REFUSED
    assert found.answered(S, is_granted=True) == (1, NOTIFY)


def test_a_grant_that_no_session_waits_for_is_released_again() -> None:
    found = leases()
    found.notify(1, NOTIFY)
    found.leave(1)
    assert found.asking == 0
    assert found.answered(S, is_granted=True) is None
    assert found[S] is LeaseState.PENDING_CLOSE
    assert found.settle(0) == [S], "it has no rows, so nothing keeps it here"


def test_only_the_requests_of_the_session_that_has_ended_are_forgotten() -> None:
    found = leases()
    found.notify(1, NOTIFY)
    found.notify(2, Notify(8, "t", 0))
    found.leave(1)
    assert found.answered(8, is_granted=True) == (2, Notify(8, "t", 0))


def test_a_closed_stream_is_released_when_all_its_rows_are_committed() -> None:
    found = leases()
    found.notify(1, NOTIFY)
    found.answered(S, is_granted=True)
    found.close([S], until=9)
    assert found.closing == {S}
    assert found.settle(8) == []
    assert found.holds(S)
    assert found.settle(9) == [S]
    assert not found.holds(S)
    assert found.notify(1, NOTIFY) is LeaseDecision.REFUSED, "the leader has not confirmed the release"
    found.relinquished(S)
    assert len(found) == 0


def test_rows_may_turn_out_to_end_earlier_and_never_later() -> None:
    found = leases()
    found.notify(1, NOTIFY)
    found.answered(S, is_granted=True)
    found.place(S, 1)
    found.close([S], until=9)
    found.place(S, 12)
    assert found.settle(8) == []
    found.place(S, 4)
    assert found.settle(4) == [S]


def test_nothing_is_released_without_a_leader() -> None:
    found = leases(S, has_leader=False)
    assert found.settle(100) == []
    found.has_leader = True
    assert found.settle(100) == [S]


def test_a_session_opens_a_held_stream_again_without_the_leader() -> None:
    found = leases()
    found.notify(1, NOTIFY)
    found.answered(S, is_granted=True)
    found.close([S], until=9)
    found.lose_leader()
    assert found.notify(2, NOTIFY) is LeaseDecision.OURS
    assert found.closing == frozenset()


def test_the_position_of_a_stream_from_the_log_is_asked_of_the_leader() -> None:
    found = leases(S, until=5)
    assert not found.has_opened(S)
    assert found.notify(1, NOTIFY) is LeaseDecision.ASK
    assert found.holds(S), "its rows are here"
    assert not found.is_wanted(S), "the leader has granted it before"
    assert found.answered(S, is_granted=True) == (1, NOTIFY)
    assert found.has_opened(S)


def test_a_stream_from_the_log_is_refused_without_a_leader() -> None:
    found = leases(S, has_leader=False)
    assert found.notify(1, NOTIFY) is LeaseDecision.REFUSED, "it may have moved before the restart"
    assert found.notify(1, Notify(8, "t", 0)) is LeaseDecision.REFUSED
    assert found.held == [S]


@pytest.mark.parametrize("how", ["refused", "session left", "leader lost"])
def test_a_stream_from_the_log_whose_position_does_not_come_keeps_its_rows_and_its_end(how: str) -> None:
    found = leases(S, until=5)
    found.place(S, 3)
    found.notify(1, NOTIFY)
    if how == "leader lost":
        assert found.lose_leader() == [(1, NOTIFY)]
        found.has_leader = True
    else:
        if how == "session left":
            found.leave(1)
        found.answered(S, is_granted=how == "session left")
    assert found[S] is LeaseState.PENDING_CLOSE
    assert not found.has_opened(S)
    assert found.settle(2) == []
    assert found.settle(3) == [S]


def test_without_a_leader_waiting_sessions_are_refused_and_releases_are_over() -> None:
    found = leases(8, until=0)
    assert found.settle(0) == [8]
    found.notify(1, NOTIFY)
    assert found.lose_leader() == [(1, NOTIFY)]
    assert not found.has_leader
    assert len(found) == 0
    assert found.lose_leader() == []


def test_a_new_leader_learns_which_streams_are_held_with_uncommitted_records() -> None:
    found = leases(S, 8, until=5)
    assert found.held_beyond(4) == [S, 8]
    assert found.held_beyond(5) == []
    found.notify(1, NOTIFY)
    found.answered(S, is_granted=True)
    assert found.held_beyond(5) == [S], "a session has it"


STEPS_OF_A_RUN = ("notify", "granted", "refused", "leave", "close", "commit", "released", "lost", "new leader")


def test_in_no_order_of_events_is_a_stream_held_that_the_leader_did_not_grant() -> None:
    for steps in itertools.product(STEPS_OF_A_RUN, repeat=5):
        found = leases()
        may_hold = False
        for step in steps:
            match step:
                case "notify":
                    found.notify(1, NOTIFY)
                case "granted":
                    may_hold = may_hold or found[S] is LeaseState.PENDING_NOTIFY
                    found.answered(S, is_granted=True)
                case "refused":
                    found.answered(S, is_granted=False)
                case "leave":
                    found.leave(1)
                case "close":
                    found.close([S], until=1)
                case "commit":
                    if S in found.settle(1):
                        may_hold = False
                case "released":
                    found.relinquished(S)
                case "lost":
                    found.lose_leader()
                case "new leader":
                    found.has_leader = True
            assert found.holds(S) <= may_hold, steps
            assert (S in found.closing) == (found[S] is LeaseState.PENDING_CLOSE), steps
            assert found.holds(S) == (found[S] in HELD), steps
            if not found.has_leader:
                assert found.asking == 0, steps
