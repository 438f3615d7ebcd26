"""Credits: no more is spent than was granted, except for the allowed drift."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.errors import RemoteProtocolError
from procession.wire.lifecycle_walker import CreditWindow


def test_what_was_granted_can_be_spent_and_no_more() -> None:
    window = CreditWindow()
    window.grant(3)
    window.spend(2)
    window.spend()
    with pytest.raises(RemoteProtocolError, match="credits overspent"):
        window.spend()


def test_a_refused_payment_changes_nothing() -> None:
    window = CreditWindow()
    window.grant(3)
    with pytest.raises(RemoteProtocolError):
        window.spend(4)
    assert window.available == 3


def test_each_end_of_stream_is_one_frame_of_drift() -> None:
    window = CreditWindow()
    window.tolerate()
    window.spend()
    with pytest.raises(RemoteProtocolError):
        window.spend()
    window.tolerate()
    window.spend()
    assert window.available == -2


@given(st.lists(st.tuples(st.sampled_from(["grant", "spend", "tolerate"]), st.integers(0, 9)), max_size=50))
def test_spending_never_passes_what_was_granted_and_the_drift(steps: list[tuple[str, int]]) -> None:
    window = CreditWindow()
    granted = spent = drift = 0
    for step, count in steps:
        if step == "grant":
            window.grant(count)
            granted += count
        elif step == "tolerate":
            window.tolerate()
            drift += 1
        else:
            may = spent + count <= granted + drift
            try:
                window.spend(count)
                assert may
                spent += count
            except RemoteProtocolError:
                assert not may
    assert window.affordable == granted + drift - spent >= 0
