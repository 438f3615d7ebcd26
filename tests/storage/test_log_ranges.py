"""The layout of an epoch of several gateways: how it is divided, and how its ranges are found."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from procession.storage.log_ranges import LogLocation, cut, epoch_ranges, numbered_from, sequence_of

OFFSETS = st.dictionaries(st.sampled_from(["gateway-0", "gateway-1", "gateway-10", "gateway-2"]), st.integers(0, 50))


@given(starts=OFFSETS, more=OFFSETS, edges=st.lists(st.integers(0, 200), max_size=5))
def test_the_parts_of_an_epoch_are_the_epoch_and_numbers_continue_after_the_last_epoch(
    starts: dict[str, int], more: dict[str, int], edges: list[int]
) -> None:
    ends = {name: starts.get(name, 0) + more.get(name, 0) for name in {*starts, *more}}
    places = {name: LogLocation(name) for name in ends}
    pieces = list(epoch_ranges(starts, ends, places))
    rows = [(piece.gateway, sequence) for piece in pieces for sequence in range(piece.first, piece.last)]
    assert rows == [(name, one) for name in sorted(ends) for one in range(starts.get(name, 0), ends[name])]
    assert numbered_from(starts) + len(rows) == numbered_from(ends)
    marks = sorted({0, len(rows), *(edge for edge in edges if edge < len(rows))})
    parts = list(cut(pieces, marks))
    assert len(parts) == len(marks) - 1
    sizes = [sum(one.last - one.first for one in part) for part in parts]
    assert sizes == [last - first for first, last in pairwise(marks)]
    assert [(one.gateway, at) for part in parts for one in part for at in range(one.first, one.last)] == rows
    first = numbered_from(starts)
    for number, (gateway, sequence) in enumerate(rows, first):
        found = sequence_of(number, first, pieces)
        assert found is not None
        assert (found[0].gateway, found[1]) == (gateway, sequence)
    assert sequence_of(first + len(rows), first, pieces) is None


def test_with_one_gateway_numbers_are_its_own_sequence() -> None:
    places = {"gateway-0": LogLocation("log")}
    (piece,) = epoch_ranges({"gateway-0": 5}, {"gateway-0": 9}, places)
    assert (piece.first, piece.last) == (5, 9)
    assert numbered_from({"gateway-0": 5}) == 5
