"""The order of results that are fired at the same record or at the same end of input.

Invariant: results of one record are ordered by time and then by key, for results of any tasks. Numbers for both follow
the order key of the record. Used by operators that fire, such as `operators/timed`; `merge/kway` merges their results
by these numbers. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from typing import Any

import numpy as np
import pyarrow as pa

from procession.operators.operator import Result, StateAccess
from procession.operators.stage_rows import Numbers, StageRows

KEY_WORDS = 8
KEY_BYTES = 8 * KEY_WORDS
PLACE = 1 + KEY_WORDS + 2
"""How many numbers order a result among the results of its record: its time, its key (KEY_WORDS words, and one more for
the rest), and its number among the results of the key. Keys are ordered by the first 64 bytes of their encoding. Longer
keys with equal beginnings are ordered by a digest, which is the same in every run."""

AFTER = 2**63 - 1
"""The time of a record's own results, which come after all results that its event time has fired."""

TAKEN_MAX = 4096
"""Maximum number of states that are removed at a time when all are removed."""

_LONG = 2**62


def rows_of_results(results: Sequence[Result]) -> StageRows:
    """Return the results of an operator as rows."""
    places = [place for _, place, _, _ in results]
    return StageRows(
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
    """Return the sort rank of a key: its first bytes, and a number for keys with equal first bytes. The number is the
    length of the key, or for longer keys a digest that is greater than all lengths."""
    if len(key) <= KEY_BYTES:
        return key, len(key)
    digest = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
    return key[:KEY_BYTES], _LONG | digest >> 2


def _numbers_of(keys: Sequence[bytes]) -> tuple[Numbers, ...]:
    """Return the `rank_of` of many keys as columns of numbers that sort in the same order: their bytes, padded with
    zeros, as words."""
    if not any(keys):
        return (*(np.full(len(keys), -(2**63), np.int64),) * KEY_WORDS, np.zeros(len(keys), np.int64))
    ranks = list(map(rank_of, keys))
    data = b"".join([first.ljust(KEY_BYTES, b"\0") for first, _ in ranks])
    numbers = np.frombuffer(data, ">u8").astype(np.uint64).reshape(-1, KEY_WORDS) ^ np.uint64(2**63)
    columns = (np.ascontiguousarray(column) for column in numbers.view(np.int64).T)
    return (*columns, np.array([rest for _, rest in ranks], np.int64))


def take_in_order(states: StateAccess, prefix: bytes = b"k") -> Iterator[list[tuple[bytes, Any]]]:
    """Remove all states whose names have this prefix. Yields them with their keys, in the order of keys, in chunks. At
    most `keys_max` keys are in memory; if there are more, the names are read again."""

    def names() -> Iterator[bytes]:
        return (name for some in states.all_keys() for name in some if name.startswith(prefix))

    while found := nsmallest(states.keys_max, names(), key=lambda name: rank_of(name[len(prefix) :])):
        for start in range(0, len(found), TAKEN_MAX):
            some = found[start : start + TAKEN_MAX]
            known = states.take(some)
            taken = [(name[len(prefix) :], known.pop(name)) for name in some]
            states.touch(some)
            yield taken
