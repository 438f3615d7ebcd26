"""Payloads are a sequence of bytes, however the underlying array is sliced."""

from __future__ import annotations

import doctest

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.sdk import payloads as payloads_module
from procession.sdk.payloads import Payloads


def test_the_example_in_the_docstring_runs() -> None:
    results = doctest.testmod(payloads_module)
    assert results.attempted
    assert not results.failed


@given(st.lists(st.binary(max_size=5), max_size=8), st.integers(0, 8), st.integers(0, 8), st.booleans())
def test_payloads_equal_the_list_of_their_messages_also_as_a_slice(
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


def test_payloads_are_sliced_in_order_only() -> None:
    with pytest.raises(ValueError, match="step 1"):
        Payloads.of([b"a", b"b"])[::-1]
