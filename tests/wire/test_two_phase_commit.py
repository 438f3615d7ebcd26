"""A participant's round: every step in every state of the table, and the rules that the table implements."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from procession.errors import RemoteProtocolError
from procession.wire.two_phase_commit import ROUND, ParticipantLifecycle, ParticipantState, ParticipantStep

T = "t:c_id=1"
TAKE: dict[ParticipantStep, Callable[[ParticipantLifecycle], None]] = {
    ParticipantStep.LIST: lambda participant: participant.listed(),
    ParticipantStep.DATA: lambda participant: participant.data(),
    ParticipantStep.PHASE1: lambda participant: participant.phase1(T),
    ParticipantStep.VOTE_COMMIT: lambda participant: participant.vote(True),
    ParticipantStep.VOTE_ABORT: lambda participant: participant.vote(False),
    ParticipantStep.PHASE2_COMMIT: lambda participant: participant.phase2(T, True),
    ParticipantStep.PHASE2_ABORT: lambda participant: participant.phase2(T, False),
    ParticipantStep.WORKERS_LEFT: lambda participant: participant.workers_left(),
}


def in_state(state: ParticipantState) -> ParticipantLifecycle:
    participant = ParticipantLifecycle(prepared=(T, "other") if state is ParticipantState.SETTLING else ())
    if state in (ParticipantState.VOTING, ParticipantState.PREPARED, ParticipantState.REFUSED):
        participant.phase1(T)
    if state in (ParticipantState.PREPARED, ParticipantState.REFUSED):
        participant.vote(state is ParticipantState.PREPARED)
    assert participant.state is state
    return participant


@pytest.mark.parametrize("state", ParticipantState)
@pytest.mark.parametrize("step", TAKE)
def test_a_participant_moves_as_the_table_says_or_not_at_all(state: ParticipantState, step: ParticipantStep) -> None:
    participant = in_state(state)
    following = ROUND[state].get(step)
    if following is None:
        open_before = set(participant.open_txn_ids)
        with pytest.raises(RemoteProtocolError):
            TAKE[step](participant)
        assert (participant.state, participant.open_txn_ids) == (state, open_before)
    else:
        TAKE[step](participant)
        assert participant.state is following


def test_new_data_waits_until_every_listed_transaction_is_settled() -> None:
    participant = ParticipantLifecycle(prepared=("a", "b"))
    participant.phase2("b", False)
    with pytest.raises(RemoteProtocolError, match="data while settling"):
        participant.data()
    participant.phase2("a", True)
    participant.data()


def test_phase_2_names_a_transaction_that_is_open_here() -> None:
    participant = in_state(ParticipantState.PREPARED)
    with pytest.raises(RemoteProtocolError, match="not open"):
        participant.phase2("another", True)
    assert participant.state is ParticipantState.PREPARED


def test_every_step_is_taken_but_the_one_that_follows_by_itself() -> None:
    assert set(TAKE) == set(ParticipantStep) - {ParticipantStep.SETTLED}
    assert {step for steps in ROUND.values() for step in steps} == set(ParticipantStep)


@pytest.mark.parametrize("state", [ParticipantState.VOTING, ParticipantState.PREPARED, ParticipantState.REFUSED])
def test_no_output_comes_between_phase_1_and_phase_2(state: ParticipantState) -> None:
    participant = in_state(state)
    with pytest.raises(RemoteProtocolError, match=f"data while {state.value}"):
        participant.data()
    with pytest.raises(RemoteProtocolError, match=f"phase 1 while {state.value}"):
        participant.phase1("another")


def test_what_was_voted_abort_is_never_committed() -> None:
    participant = in_state(ParticipantState.REFUSED)
    with pytest.raises(RemoteProtocolError, match="phase 2 commit while refused"):
        participant.phase2(T, True)
    participant.phase2(T, False)
    participant.data()


@pytest.mark.parametrize("state", [state for state in ParticipantState if state is not ParticipantState.VOTING])
def test_a_list_may_be_asked_for_and_workers_may_leave_anywhere_but_while_a_vote_is_made(
    state: ParticipantState,
) -> None:
    participant = in_state(state)
    participant.listed()
    participant.workers_left()
    assert participant.state is state
