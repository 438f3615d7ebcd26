"""Generates random records with a key and a time: `b"a 17"`. Times increase, but some records are late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st


def key(value: bytes) -> bytes:
    return value.split()[0]


def time(value: bytes) -> int:
    return int(value.split()[1])


def shown(value: Any) -> bytes:
    return repr(value).encode()


def timed_records(later_max: int, late_by: Sequence[int], size_max: int) -> st.SearchStrategy[list[bytes]]:
    """Generate records, each up to `later_max` after the one before; some are late by one of the given lengths."""
    keys, later = st.sampled_from([b"a", b"b", b"c", b"dd"]), st.integers(0, later_max)
    return st.lists(st.tuples(keys, later, st.sampled_from(late_by)), max_size=size_max).map(_payloads)


def _payloads(records: list[tuple[bytes, int, int]]) -> list[bytes]:
    now, payloads = 0, []
    for name, later, back in records:
        now += later
        payloads.append(b"%s %d" % (name, now - back))
    return payloads
