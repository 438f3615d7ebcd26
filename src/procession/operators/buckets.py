"""Buckets: which task behind an exchange gets a record, and which connection of a sink.

The one rule: within a bucket records keep their order; and where they are told apart by key, the same key always goes
to the same bucket, in every process and every version. Pure. Before it `operators/chain`; after it `storage/run_store`,
which keeps a run for each bucket.
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
"""Keys are told apart in this many shares, whatever the number of tasks; a task has every n-th of them."""


def dealt(rows: int, buckets: int, turn: int) -> Iterator[tuple[int, int, int]]:
    """Deal rows out evenly: (bucket, first row, number of rows). Contiguous, so that nothing is copied and a merge
    finds long stretches; `turn` says where to begin, so that a few rows at a time do not all go to the first."""
    edges = [rows * number // buckets for number in range(buckets + 1)]
    for number in range(buckets):
        if count := edges[number + 1] - edges[number]:
            yield (number + turn) % buckets, edges[number], count


def parted(keys: pa.Array, buckets: int) -> Iterator[tuple[int, Numbers]]:
    """Part rows by their key: (bucket, rows in their order)."""
    # Each key is hashed once, however many rows have it. The arithmetic is that of `share_of`, on all of them.
    encoded = keys.dictionary_encode()
    hashes = np.fromiter(map(zlib.crc32, encoded.dictionary.to_pylist()), np.uint32, len(encoded.dictionary))
    of_key = (hashes % SHARES % buckets).astype(np.uint16)
    yield from _in_buckets(of_key[encoded.indices.to_numpy()])


def parted_by_stream(streams: pa.Array, buckets: int) -> Iterator[tuple[int, Numbers]]:
    """Part rows by the id of their stream, likewise: ids that follow one another go round the buckets."""
    yield from _in_buckets(streams.to_numpy() % np.uint64(SHARES) % np.uint64(buckets))


def _in_buckets(of_row: Any) -> Iterator[tuple[int, Numbers]]:
    if not len(of_row):
        return
    order = np.argsort(of_row, kind="stable")
    found, firsts = np.unique(of_row[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, firsts[1:]), strict=True)


def share_of(key: bytes) -> int:
    return zlib.crc32(key) % SHARES


def listed(
    function: Callable[[Any], Any], *, is_exposed: bool = True, is_changing: bool = True
) -> Callable[[Any], list[Any]]:
    """A function's results as a list, whatever it gives them as, each as it was when it was given. `is_exposed`: a
    stage behind may change a result; `is_changing`: the function itself may, before it gives the next."""
    if not is_exposed and not is_changing:
        return lambda value: list(function(value))

    def results(value: Any) -> list[Any]:
        given = function(value)
        return separate(given) if is_exposed or type(given) not in (list, tuple) else list(given)

    return results
