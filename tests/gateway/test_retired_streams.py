"""Retired streams: which positions are stored, for how long, and how they are read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.gateway.gateway_events import (
    EpochCommitted,
    RetireStreams,
    SessionClosed,
)
from procession.gateway.gateway_limits import Limits
from procession.gateway.retired_streams import ENTRY, HEADER, RetiredStreams
from tests.gateway.gateway_rig import A, GatewayRig

S = 7


def test_the_oldest_are_forgotten_above_the_limit_and_counted() -> None:
    retired = RetiredStreams(Limits(streams_retired_max=3))
    for stream_id in range(5):
        assert retired.forget(0.0, 1, 0.0) >= 1
        retired.retired(retired.retiring({stream_id: stream_id}, 0.0))
    assert [retired.committed(stream_id) for stream_id in range(5)] == [None, None, 2, 3, 4]
    assert retired.forgotten == 2
    assert retired.forget(10.0, 2, 11.0) == 0, (
        "with other gateways, no stream younger than this is kept: the space is used up"
    )
    assert retired.forget(11.0, 2, 11.0) == 2


def test_the_age_of_a_retired_stream_counts_only_while_the_gateway_runs() -> None:
    limits = Limits(streams_retired_age_s=100)
    retired = RetiredStreams(limits, now=5000.0)
    write = retired.retiring({S: 1}, 5010.0)
    retired.retired(write)
    mark = retired.marked(5040.0)
    assert mark is not None
    assert mark.clock_s == 40
    again = RetiredStreams(limits, mark, write.data, now=7.0)  # another clock; the time in between does not count
    again.forget(83.0, 0, 0.0)
    assert again.forgetting == set(), "a sixteenth longer, so that the file is rarely written"
    again.forget(84.0, 0, 0.0)
    again.retired(again.retiring({}, 84.0))
    assert again.committed(S) is None
    assert again.forgotten == 1


def test_at_the_limit_a_sixteenth_is_forgotten_at_once() -> None:
    """Forgetting streams rewrites the whole file: 24 MB for a million streams, which is too much for each tick."""
    retired = RetiredStreams(Limits(streams_retired_max=160))
    rewritten = 0
    for stream_id in range(1000):
        assert retired.forget(0.0, 1, 0.0) >= 1
        write = retired.retiring({stream_id: stream_id}, 0.0)
        rewritten += write.position == 0
        retired.retired(write)
        assert len(retired) <= 160
    assert rewritten <= 1 + 1000 / 10
    assert retired.committed(849) is None or len(retired) > 150
    assert retired.committed(850) == 850, "no more than a sixteenth"


def test_a_stream_at_the_age_limit_is_forgotten_with_all_others_of_that_age() -> None:
    retired = RetiredStreams(Limits(streams_retired_age_s=160))
    for second in range(160):
        retired.retired(retired.retiring({second: 1}, float(second)))
    rewritten = []
    for now in range(160, 200):
        retired.forget(float(now), 0, 0.0)
        if retired.forgetting:
            rewritten.append(len(retired.forgetting))
            retired.retired(retired.retiring({}, float(now)))
    assert rewritten == [11, 11, 11]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_stream_is_not_forgotten_while_a_commit_may_name_it_again(is_restarted: bool) -> None:
    """A round record repeats positions until the driver knows that they are on disk at every gateway."""
    limits = Limits(streams_retired_max=1)
    retired = RetiredStreams(limits)
    write = retired.retiring({S: 100}, 0.0)
    retired.retired(write, epoch=5)
    if is_restarted:
        retired = RetiredStreams(limits, write.mark, write.data, epoch=5)
    retired.settle(4)
    assert retired.forget(1.0, 1, 0.0) == 0
    assert retired.forgetting == set()
    retired.settle(5)
    assert retired.forget(1.0, 1, 0.0) == 1
    assert retired.forgetting == {S}


def test_a_commit_that_names_a_stream_again_is_accepted_although_streams_are_forgotten_at_once() -> None:
    """The driver does not know yet that the first commit is on disk, so the second one repeats its positions."""
    rig = GatewayRig(Limits(credits_max=100, streams_retire_after_s=0, streams_retired_age_s=0))
    rig.open(A, S)
    rig.message(A, S, 0, 1, 2)
    rig.do(SessionClosed(A))
    for epoch, kept in enumerate((0, 0, 0, 1)):
        assert not rig.state.retired.forgotten
        rig.do(EpochCommitted(1, epoch, len(rig.rows), {S: 2} if not kept else {}, epochs_kept=kept))
        rig.do(RetireStreams())
        rig.do(RetireStreams())
    assert rig.state.retired.forgotten == 1


def test_a_stream_is_forgotten_only_with_a_file_on_disk_that_leaves_it_out() -> None:
    limits = Limits(streams_retired_max=1)
    retired = RetiredStreams(limits)
    retired.retired(retired.retiring({S: 100}, 0.0))
    retired.forget(1.0, 1, 0.0)
    write = retired.retiring({8: 1}, 1.0)
    assert retired.committed(S) == 100, "after a crash now it would be there again"
    retired.retired(write)
    assert retired.committed(S) is None
    assert write.position == 0
    assert RetiredStreams(limits, write.mark, write.data).committed(S) is None


def test_a_stream_that_returns_is_not_forgotten_before_the_snapshot_has_it() -> None:
    limits = Limits(streams_retired_max=1)
    retired = RetiredStreams(limits)
    retired.retired(retired.retiring({S: 100}, 0.0))
    assert retired.returning(S) == 100
    assert retired.forget(1.0, 1, 0.0) == 0
    assert retired.forgetting == set()


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["retire", "return", "kept", "restart"]), st.integers(0, 5), st.integers(0, 9)),
        max_size=40,
    )
)
def test_any_order_of_retiring_and_returning_is_read_back(steps: list[tuple[str, int, int]]) -> None:
    """A stream that returns is written to the snapshot before it can be retired again, as in a gateway."""
    retired, data = RetiredStreams(Limits()), b""
    expected: dict[int, int] = {}
    hot: set[int] = set()
    for step, stream_id, committed in steps:
        if step == "retire":
            write = retired.retiring({stream_id: committed}, 0.0)
            data = data[: write.position] + write.data
            retired.retired(write)
            expected[stream_id] = committed
            hot.discard(stream_id)
        elif step == "return":
            assert retired.returning(stream_id) == expected.get(stream_id)
        elif step == "kept":
            retired.returning(stream_id)
            retired.returned([stream_id])
            expected.pop(stream_id, None)
            hot.add(stream_id)
        else:
            assert retired.mark is None or len(data) == retired.mark.length
            retired = RetiredStreams(Limits(), retired.mark, data, hot)
        assert {number: retired.committed(number) for number in range(6)} == {
            stream_id: expected.get(stream_id) for stream_id in range(6)
        }


def test_a_file_with_many_obsolete_entries_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("procession.gateway.retired_streams.DEAD_ENTRIES_MAX", 10)
    retired = RetiredStreams(Limits())
    numbers, lengths = [], []
    for message_id in range(100):
        write = retired.retiring({S: message_id, 8: 0}, 0.0)
        retired.retired(write)
        assert write.mark is not None
        numbers.append(write.mark.number)
        lengths.append(write.mark.length)
    assert max(lengths) < len(HEADER) + ENTRY.size * 20
    assert numbers == sorted(numbers)
    assert numbers[-1] > 5
