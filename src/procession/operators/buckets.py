"""Buckets: which task after an exchange gets a record, and which connection of a sink.

Invariant: within a bucket records keep their order. If records are distributed by key, the same key always goes to
the same bucket, in every process and every version. Used by `operators/partitioning`; `storage/run_store` stores a run
for each bucket. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from procession.operators.stage_rows import Numbers
from procession.planner.ownership import separate

SHARES = 4096
"""Keys are hashed into this many shares, whatever the number of tasks. Of n tasks, each has every n-th share."""


def split_evenly(rows: int, buckets: int, turn: int) -> Iterator[tuple[int, int, int]]:
    """Split rows evenly: (bucket, first row, number of rows). Ranges are contiguous, so nothing is copied and a merge
    finds long stretches. `turn` is the first bucket to fill, so that small batches do not all go to bucket 0."""
    edges = [rows * number // buckets for number in range(buckets + 1)]
    for number in range(buckets):
        if count := edges[number + 1] - edges[number]:
            yield (number + turn) % buckets, edges[number], count


def split_by_key(keys: pa.Array, buckets: int) -> Iterator[tuple[int, Numbers]]:
    """Split rows by their key: (bucket, rows in their order)."""
    # Each distinct key is hashed once. The arithmetic is that of `share_of`, vectorised.
    encoded = keys.dictionary_encode()
    hashes = np.fromiter(map(zlib.crc32, encoded.dictionary.to_pylist()), np.uint32, len(encoded.dictionary))
    of_key = (hashes % SHARES % buckets).astype(np.uint16)
    yield from _in_buckets(of_key[encoded.indices.to_numpy()])


def split_by_stream(streams: pa.Array, buckets: int) -> Iterator[tuple[int, Numbers]]:
    """Split rows by the id of their stream. Consecutive ids go to consecutive buckets."""
    yield from _in_buckets(streams.to_numpy() % np.uint64(SHARES) % np.uint64(buckets))


def _in_buckets(of_row: Any) -> Iterator[tuple[int, Numbers]]:
    if not len(of_row):
        return
    order = np.argsort(of_row, kind="stable")
    found, firsts = np.unique(of_row[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, firsts[1:]), strict=True)


def share_of(key: bytes) -> int:
    return zlib.crc32(key) % SHARES


def as_result_list(
    function: Callable[[Any], Any], *, is_exposed: bool = True, is_changing: bool = True
) -> Callable[[Any], list[Any]]:
    """The function with its results as a list, each as it was when the function produced it. `is_exposed`: a later
    stage may change a result. `is_changing`: the function itself may change one before it produces the next."""
    if not is_exposed and not is_changing:
        return lambda value: list(function(value))

    def results(value: Any) -> list[Any]:
        given = function(value)
        return separate(given) if is_exposed or type(given) not in (list, tuple) else list(given)

    return results
