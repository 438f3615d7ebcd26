"""The order of results that are fired at the same record or at the same end of input.

The one rule: results of one record are ordered by time and then by key, whichever tasks they come from. The numbers
that say so follow the record's own order key. Used by the stages that fire, such as `operators/window_operator`;
`merge/kway` merges their results by these numbers. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from typing import Any

import numpy as np
import pyarrow as pa

from procession.operators.keyed import States
from procession.operators.stage_rows import Flow, Numbers

KEY_WORDS = 8
KEY_BYTES = 8 * KEY_WORDS
PLACE = 1 + KEY_WORDS + 2
"""How many numbers say where a result stands among those of its record: its end, its key (so many words, and one for
what they do not tell), and its number among those of the key. The first 64 bytes of an encoded key count as they are;
longer keys that are alike so far stand in the order of a digest, which is the same in every run."""

AFTER = 2**63 - 1
"""The end, as it were, of what a record itself lets out: it stands behind what its time has fired."""

TAKEN_MAX = 4096
"""So many states are taken at a time when all are."""

_LONG = 2**62

Place = tuple[int, bytes, int]
"""An end, a key (encoded; empty where it does not count), and a number."""

Result = tuple[int, Place, bytes, Any]
"""The row that it stands at, its place there, its key, and the result."""


def flow_of(results: Sequence[Result]) -> Flow:
    places = [place for _, place, _, _ in results]
    return Flow(
        [value for *_, value in results],
        np.array([row for row, *_ in results], np.int64),
        (
            np.array([end for end, _, _ in places], np.int64),
            *_numbers_of([key for _, key, _ in places]),
            np.array([number for _, _, number in places], np.int64),
        ),
        pa.array([key for _, _, key, _ in results], pa.binary()),
    )


def rank_of(key: bytes) -> tuple[bytes, int]:
    """What a key is sorted by: its first bytes, and a number that tells apart those that have the same. It is the
    length; of longer keys, a digest behind all lengths."""
    if len(key) <= KEY_BYTES:
        return key, len(key)
    digest = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
    return key[:KEY_BYTES], _LONG | digest >> 2


def _numbers_of(keys: Sequence[bytes]) -> tuple[Numbers, ...]:
    """`rank_of` of many, as columns of numbers that sort alike: the bytes, with NULs behind, as words."""
    if not any(keys):
        return (*(np.full(len(keys), -(2**63), np.int64),) * KEY_WORDS, np.zeros(len(keys), np.int64))
    ranks = list(map(rank_of, keys))
    data = b"".join([first.ljust(KEY_BYTES, b"\0") for first, _ in ranks])
    words = np.frombuffer(data, ">u8").astype(np.uint64).reshape(-1, KEY_WORDS) ^ np.uint64(2**63)
    columns = (np.ascontiguousarray(column) for column in words.view(np.int64).T)
    return (*columns, np.array([rest for _, rest in ranks], np.int64))


def taken_in_order(states: States, prefix: bytes = b"k") -> Iterator[list[tuple[bytes, Any]]]:
    """All states whose names begin so, with their keys, in the order of places and some at a time. They are gone then.
    No more keys are held than the states may hold in memory: if there are more, all are looked through again."""

    def names() -> Iterator[bytes]:
        return (name for some in states.all_keys() for name in some if name.startswith(prefix))

    while found := nsmallest(states.keys_max, names(), key=lambda name: rank_of(name[len(prefix) :])):
        for start in range(0, len(found), TAKEN_MAX):
            some = found[start : start + TAKEN_MAX]
            known = states.take(some)
            taken = [(name[len(prefix) :], known.pop(name)) for name in some]
            states.touch(some)
            yield taken
