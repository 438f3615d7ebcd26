"""The prefix check: every byte is compared once, and every difference is reported at its position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.verify.order import PromisedOrder, key_field
from procession.verify.prefix import PrefixCheck

GOOD = b"".join(b"%c record-%d\n" % (65 + number % 3, number) for number in range(30))


class Inputs:
    """Inputs in memory that count the bytes read from them."""

    def __init__(self, *data: bytes) -> None:
        self.data = list(data)
        self.bytes_read = 0

    def read(self, number: int, position: int, size: int) -> bytes:
        piece = self.data[number][position : position + size]
        self.bytes_read += len(piece)
        return piece


def check_of(inputs: Inputs, order: PromisedOrder = PromisedOrder.TOTAL, ahead_records_max: int = 1000) -> PrefixCheck:
    return PrefixCheck(
        len(inputs.data), inputs.read, order=order, key_of=key_field(1), ahead_records_max=ahead_records_max
    )


@pytest.mark.parametrize("order", list(PromisedOrder))
@pytest.mark.parametrize("size", [1, 7, 100, 1000])
def test_a_prefix_is_correct_in_any_parts_and_no_byte_is_read_twice(size: int, order: PromisedOrder) -> None:
    inputs = Inputs(GOOD)
    check = check_of(inputs, order)
    for start in range(0, len(GOOD), size):
        check.take(GOOD[start : start + size])
    assert (check.records, check.difference, check.doubt) == (30, None, "")
    assert inputs.bytes_read == len(GOOD)


@pytest.mark.parametrize("position", range(len(GOOD)))
def test_the_first_record_that_differs_is_named(position: int) -> None:
    check = check_of(Inputs(GOOD))
    damaged = bytearray(GOOD)
    damaged[position] ^= 1
    check.take(bytes(damaged) + b"\n")
    assert check.difference == GOOD[:position].count(b"\n")
    assert check.is_over


def test_an_input_may_grow_while_it_is_looked_at() -> None:
    inputs = Inputs(b"a\n")
    check = check_of(inputs)
    check.take(b"a\n")
    inputs.data[0] += b"b\nc"
    check.take(b"b\nc\n")
    assert (check.records, check.difference) == (3, None)


def test_an_output_that_is_ahead_of_its_input_differs() -> None:
    check = check_of(Inputs(b"a\n"))
    check.take(b"a\nb\n")
    assert check.difference == 1


def test_an_incomplete_record_waits_for_its_rest() -> None:
    check = check_of(Inputs(b"abc\n"))
    check.take(b"ab")
    assert (check.records, check.is_over) == (0, False)
    check.take(b"c\n")
    assert check.records == 1


def test_a_last_line_without_newline_is_a_record_of_any_input() -> None:
    check = check_of(Inputs(b"a0\na1", b"b0\nb1"), PromisedOrder.STREAM)
    check.take(b"b0\nb1\na0\na1\n")
    assert (check.records, check.difference) == (4, None)


@given(
    st.randoms(use_true_random=False),
    st.sampled_from([PromisedOrder.TOTAL, PromisedOrder.STREAM, PromisedOrder.KEY, PromisedOrder.NONE]),
)
def test_inputs_may_interleave_in_any_way(chance: object, order: PromisedOrder) -> None:
    streams = [[b"%c %d-%d" % (65 + number % 3, side, number) for number in range(20)] for side in range(3)]
    check = check_of(Inputs(*(b"\n".join(lines) + b"\n" for lines in streams)), order)
    sides = [side for side in range(3) for _ in range(20)]
    chance.shuffle(sides)  # type: ignore[attr-defined]
    turns = [iter(lines) for lines in streams]
    for side in sides:
        check.take(next(turns[side]) + b"\n")
    assert (check.records, check.difference, check.doubt) == (60, None, "")


def test_keys_may_overtake_each_other_but_not_themselves() -> None:
    lines = GOOD.splitlines(keepends=True)
    by_key = b"".join(sorted(lines, key=lambda line: bytes(line)[:1]))
    check = check_of(Inputs(GOOD), PromisedOrder.KEY)
    check.take(by_key)
    assert (check.records, check.difference) == (30, None)
    check = check_of(Inputs(GOOD), PromisedOrder.KEY)
    check.take(lines[3] + lines[0])
    assert check.difference == 0


def test_a_key_that_is_too_far_behind_ends_the_check_with_a_reason() -> None:
    data = b"A 1\n" * 1 + b"".join(b"B %d\n" % number for number in range(100)) + b"C 1\n"
    check = check_of(Inputs(data), PromisedOrder.KEY, ahead_records_max=50)
    check.take(b"C 1\n")
    assert check.difference is None
    assert "50 records" in check.doubt


def test_equal_lines_of_two_inputs_give_an_unknown_verdict_and_no_violation() -> None:
    check = check_of(Inputs(b"x\ny\n", b"x\nz\n"), PromisedOrder.STREAM)
    check.take(b"x\nz\n")
    assert check.difference is None
    assert "more than once" in check.doubt
