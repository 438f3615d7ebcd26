"""Lines of a stream of bytes: the same however the stream arrives, and two streams compared up to their difference."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.verify import lines
from procession.verify.lines import CommonLines, count_lines, hashes, sameness, shown, split_lines, terminated

DATA = st.lists(st.sampled_from([b"a", b"b", b"\n"])).map(b"".join)
CUTS = st.lists(st.integers(0, 20), max_size=5)


def chunks(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    """Yield the bytes in pieces, some of them empty."""
    start = 0
    for cut in [*sorted(cuts), len(data)]:
        yield data[start:cut]
        start = max(start, cut)


@given(DATA, CUTS)
def test_a_missing_newline_at_the_end_is_added_and_nothing_else(data: bytes, cuts: list[int]) -> None:
    expected = data if not data or data.endswith(b"\n") else data + b"\n"
    assert b"".join(terminated(chunks(data, cuts))) == expected


@given(DATA, CUTS)
def test_lines_are_whole_if_they_have_their_newline(data: bytes, cuts: list[int]) -> None:
    found = [(line, is_whole) for some, is_whole in split_lines(chunks(data, cuts)) for line in some]
    *whole, rest = data.split(b"\n")
    assert found == [(line, True) for line in whole] + [(rest, False)] * bool(rest)


def test_an_endless_line_is_yielded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "RECORD_BYTES_MAX", 4)
    found = [(line, is_whole) for some, is_whole in split_lines([b"abc", b"de", b"fg\nh\n"]) for line in some]
    assert found == [(b"abcde", False), (b"fg", True), (b"h", True)]


@given(DATA, CUTS, st.none() | st.integers(0, 25))
def test_newlines_are_counted_in_total_or_before_a_position(data: bytes, cuts: list[int], end: int | None) -> None:
    assert count_lines(chunks(data, cuts), end) == data[:end].count(b"\n")


@given(DATA, DATA, CUTS, CUTS)
def test_two_streams_are_compared_up_to_their_first_difference(
    expected: bytes, actual: bytes, expected_cuts: list[int], actual_cuts: list[int]
) -> None:
    found = sameness(chunks(expected, expected_cuts), chunks(actual, actual_cuts))
    is_prefix = expected.startswith(actual) and actual.endswith(b"\n")
    assert found.is_prefix is is_prefix
    assert found.is_equal is (is_prefix and expected == actual)
    common = next((n for n, (a, b) in enumerate(zip(expected, actual, strict=False)) if a != b), len(actual))
    assert found.lines <= expected[:common].count(b"\n")
    if is_prefix:
        assert found.lines == actual.count(b"\n")


def test_equal_streams_have_all_their_lines_in_common() -> None:
    assert sameness(iter([b"a\nb", b"\n"]), iter([b"a", b"\nb\n"])) == CommonLines(2, True, True)
    assert sameness(iter([]), iter([])) == CommonLines(0, False, False), "nothing proves nothing"


def test_equal_lines_have_equal_hashes_and_others_do_not() -> None:
    found = hashes([b"a", b"b", b"a", b""])
    assert found[0] == found[2]
    assert len({*found.tolist()}) == 3
    assert found.dtype == "int64"


def test_a_line_is_shown_by_its_number_and_a_long_one_in_part() -> None:
    data = [b"a\n\xff\t", b"\n" + b"x" * 300 + b"\nrest"]
    assert [shown(data, number) for number in (0, 1, 3)] == ["'a'", r"'\xff\t'", "'rest'"]
    assert shown(data, 2) == f"'{'x' * lines.SHOWN_BYTES_MAX}'… (300 bytes)"
    assert shown(data, 4) == "(gone)"
