"""Payloads: a sequence of bytes, however the array behind it is cut."""

from __future__ import annotations

import doctest

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.sdk import payloads as payloads_module
from procession.sdk.payloads import Payloads


def test_the_example_is_true() -> None:
    results = doctest.testmod(payloads_module)
    assert results.attempted
    assert not results.failed


@given(st.lists(st.binary(max_size=5), max_size=8), st.integers(0, 8), st.integers(0, 8), st.booleans())
def test_they_are_the_list_of_their_messages_also_when_they_are_a_part_of_more(
    messages: list[bytes], start: int, stop: int, is_large: bool
) -> None:
    whole = Payloads(pa.array(messages, pa.large_binary() if is_large else pa.binary()))
    some, expected = whole[start:stop], messages[start:stop]
    assert list(some) == expected
    assert some == expected
    assert len(some) == len(expected)
    assert [some[index] for index in range(len(expected))] == expected
    assert bytes(some.joined) == b"".join(expected)
    assert some.edges.tolist() == [sum(map(len, expected[:index])) for index in range(len(expected) + 1)]


def test_they_are_not_cut_out_of_order() -> None:
    with pytest.raises(ValueError, match="order"):
        Payloads.of([b"a", b"b"])[::-1]
