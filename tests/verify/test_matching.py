"""Matching: equal lines are in one bucket, and the n-th of equal output lines belongs to the n-th input line."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.verify import matching
from procession.verify.lines import Numbers
from procession.verify.matching import HASH, KEY, NUMBER, FiledLines, MemoryBuckets, file_lines, pair, put_sorted

LINES = st.lists(st.sampled_from([b"a", b"b", b"c", b"dd"]), max_size=12)
SMALL = st.lists(st.integers(-2, 2), max_size=8)


def numbers(values: list[int]) -> Numbers:
    return np.array(values, np.int64)


@given(LINES, st.integers(1, 4), st.integers(0, 9))
def test_every_line_is_filed_once_and_equal_lines_are_in_one_bucket(
    lines: list[bytes], buckets: int, begin: int
) -> None:
    storage = MemoryBuckets(2)
    filed = file_lines([line + b"\n" for line in lines], storage, buckets, begin=begin)
    assert filed == FiledLines(len(lines), ())
    found = {number: storage.take(number).tolist() for number in range(buckets)}
    rows = [tuple(row) for bucket in found.values() for row in bucket]
    assert sorted(rows, key=lambda row: row[NUMBER]) == [
        (hash(line), number) for number, line in enumerate(lines, begin)
    ]
    places = {row[HASH]: bucket for bucket, rows in found.items() for row in rows}
    assert all(places[row[HASH]] == bucket for bucket, rows in found.items() for row in rows)
    for bucket in found.values():
        assert [row[NUMBER] for row in bucket] == sorted(row[NUMBER] for row in bucket)


def test_lines_are_filed_in_parts_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "ROWS_FILED_AT_ONCE", 2)
    sizes = []

    class Counted(MemoryBuckets):
        def put(self, bucket: int, rows: matching.Rows) -> None:
            sizes.append(len(rows))
            super().put(bucket, rows)

    storage = Counted(2)
    assert file_lines([b"a\n", b"b\n", b"c\n", b"d\n", b"e\n"], storage, 1).lines == 5
    assert sizes == [2, 2, 1]
    assert storage.take(0)[:, NUMBER].tolist() == [0, 1, 2, 3, 4]


def test_a_line_without_its_newline_is_counted_and_in_no_bucket() -> None:
    storage = MemoryBuckets(2)
    assert file_lines([b"a\nb"], storage, 1, begin=7) == FiledLines(2, (8,))
    assert storage.take(0)[:, NUMBER].tolist() == [7]


def test_with_a_key_each_row_has_the_hash_of_its_key() -> None:
    storage = MemoryBuckets(3)
    file_lines([b"a1\nb1\na2\n"], storage, 1, key_of=lambda line: line[:1])
    assert storage.take(0)[:, KEY].tolist() == [hash(b"a"), hash(b"b"), hash(b"a")]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=10))
def test_each_row_is_put_into_its_bucket_in_order(rows: list[tuple[int, int]]) -> None:
    storage = MemoryBuckets(2)
    put_sorted(storage, np.array(rows, np.int64).reshape(-1, 2), numbers([at for at, _ in rows]))
    for bucket in range(4):
        assert storage.take(bucket).tolist() == [[at, value] for at, value in rows if at == bucket]


@given(SMALL, SMALL)
def test_the_nth_of_equal_lines_belongs_to_the_nth_and_more_are_duplicates(
    expected: list[int], actual: list[int]
) -> None:
    places: dict[int, list[int]] = defaultdict(list)
    for number, value in enumerate(expected):
        places[value].append(number)
    seen: dict[int, int] = defaultdict(int)
    place, doubled = [], []
    for value in actual:
        nth, known = seen[value], places.get(value, [])
        seen[value] += 1
        place.append(known[min(nth, len(known) - 1)] if known else -1)
        doubled.append(bool(known) and nth >= len(known))
    found = pair(numbers(expected), numbers(actual))
    assert found.place.tolist() == place
    assert found.is_doubled.tolist() == doubled
    assert found.is_present.tolist() == [number in place for number in range(len(expected))]
    assert found.has_repeats is (len(set(expected)) < len(expected))
