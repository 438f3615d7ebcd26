"""Places: where a result stands that is fired at a record, or at an end, beside others.

The one rule: results of one record stand in the order of their times and then of their keys, whichever tasks they come
from; the numbers that say so go behind the record's own order key. Before it the stages that fire, `plan/timed` and
others; after it `merge/merger`, which puts their results in order by these numbers. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from typing import Any

import numpy as np
import pyarrow as pa

from procession.plan.flow import Flow
from procession.plan.keyed import States

KEY_WORDS, DIGEST_WORDS = 4, 2
PLACE = 1 + KEY_WORDS + DIGEST_WORDS
"""How many numbers say where a result stands among those of its record: its end, then its key. The first 32 bytes of
keys count as they are; keys that are longer and alike so far stand in the order of a digest."""

AFTER = 2**63 - 1
"""The end, as it were, of what a record itself lets out: it stands behind what its time has fired."""

TAKEN_MAX = 4096
"""So many states are taken at a time when all are."""

Result = tuple[int, tuple[int, ...], bytes, Any]
"""The row that it stands at, its place there, its key, and the result."""


def flow_of(results: Sequence[Result]) -> Flow:
    places = np.array([place for _, place, _, _ in results], np.int64).reshape(-1, PLACE)
    return Flow(
        [value for *_, value in results],
        np.array([row for row, *_ in results], np.int64),
        tuple(np.ascontiguousarray(column) for column in places.T),
        pa.array([key for _, _, key, _ in results], pa.binary()),
    )


def place_of(key: bytes) -> tuple[int, ...]:
    """Numbers that stand in the order of keys."""
    words = np.frombuffer(key[: 8 * KEY_WORDS].ljust(8 * KEY_WORDS, b"\0"), ">u8")
    digest = np.frombuffer(hashlib.blake2b(key, digest_size=8 * DIGEST_WORDS).digest(), ">i8")
    return (*(int(word) - 2**63 for word in words), *map(int, digest))


def taken_in_order(states: States, prefix: bytes = b"k") -> Iterator[list[tuple[bytes, Any]]]:
    """All states whose names begin so, with their keys, in the order of places and some at a time. They are gone then.
    No more keys are held than the states may hold in memory: if there are more, all are looked through again."""

    def names() -> Iterator[bytes]:
        return (name for some in states.all_keys() for name in some if name.startswith(prefix))

    while found := nsmallest(states.keys_max, names(), key=lambda name: place_of(name[len(prefix) :])):
        for start in range(0, len(found), TAKEN_MAX):
            some = found[start : start + TAKEN_MAX]
            known = states.take(some)
            taken = [(name[len(prefix) :], known.pop(name)) for name in some]
            states.touch(some)
            yield taken
