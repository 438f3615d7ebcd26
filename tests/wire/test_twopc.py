"""A participant's round: every state by every step, from the table, and the rules that the table stands for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from procession.errors import RemoteProtocolError
from procession.wire.twopc import ROUND, Participant, Round, Step

T = "t:c_id=1"
TAKE: dict[Step, Callable[[Participant], None]] = {
    Step.DATA: lambda participant: participant.data(),
    Step.PHASE1: lambda participant: participant.phase1(T),
    Step.VOTE_COMMIT: lambda participant: participant.vote(True),
    Step.VOTE_ABORT: lambda participant: participant.vote(False),
    Step.PHASE2_COMMIT: lambda participant: participant.phase2(T, True),
    Step.PHASE2_ABORT: lambda participant: participant.phase2(T, False),
}


def in_state(state: Round) -> Participant:
    participant = Participant(prepared=(T, "other") if state is Round.SETTLING else ())
    if state in (Round.VOTING, Round.PREPARED, Round.REFUSED):
        participant.phase1(T)
    if state in (Round.PREPARED, Round.REFUSED):
        participant.vote(state is Round.PREPARED)
    assert participant.state is state
    return participant


@pytest.mark.parametrize("state", Round)
@pytest.mark.parametrize("step", TAKE)
def test_a_participant_moves_as_the_table_says_or_not_at_all(state: Round, step: Step) -> None:
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
    participant = Participant(prepared=("a", "b"))
    participant.phase2("b", False)
    with pytest.raises(RemoteProtocolError, match="data while settling"):
        participant.data()
    participant.phase2("a", True)
    participant.data()


def test_phase_2_names_a_transaction_that_is_open_here() -> None:
    participant = in_state(Round.PREPARED)
    with pytest.raises(RemoteProtocolError, match="not open"):
        participant.phase2("another", True)
    assert participant.state is Round.PREPARED
