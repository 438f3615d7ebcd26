"""A generator as a source: records made of a seed and their own number, for tests and measurements.

The one rule: a record's message id is its number, and its content depends on nothing but seed, stream and number; so
it can be read again from anywhere. Made by column operations: no step is taken per record. Before it on the walk:
nothing. After it: the gateway.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from procession.connectors.framing import RECORD_BYTES_MAX
from procession.errors import UsageError
from procession.record import stream_id
from procession.sdk.source_records import Batch, Stream

BATCH_RECORDS_MAX = 8192
BATCH_BYTES_MAX = 1024 * 1024
KEYS_MAX = 1_000_000
STREAMS_MAX = 1024

# Sixty-four letters, so that six bits are one: text without blanks or newlines, which any sink and eye can part again.
ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
LETTERS = ALPHABET * 4
"""The letter of each byte."""
HEAD_BYTES = 16
POOL_PIECES = 64 * 1024
STEP = np.uint64(0x9E3779B97F4A7C15)

Numbers = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is made."""

    records: int | None = None
    """Of each stream; without end if None."""
    size: int = 100
    """Bytes of a payload."""
    keys: int = 0
    """How many different keys there are; without keys if 0."""
    seed: int = 0
    streams: int = 1
    name: str = "generator"

    def __post_init__(self) -> None:
        for what, value, low, high in (
            ("records", self.records if self.records is not None else 0, 0, 2**63),
            ("bytes in a record", self.size, 0, RECORD_BYTES_MAX),
            ("keys", self.keys, 0, KEYS_MAX),
            ("streams", self.streams, 1, STREAMS_MAX),
        ):
            if not low <= value <= high:
                raise UsageError(f"{value} {what} cannot be made.", next_step=f"Give a number from {low} to {high}.")


class GeneratorSource:
    """Streams of made records. The same recipe gives the same records, in every run and on every machine."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._streams = [Stream.named(f"{recipe.name}-{recipe.seed}-{number}") for number in range(recipe.streams)]
        self._batch_records = max(1, min(BATCH_RECORDS_MAX, BATCH_BYTES_MAX // max(1, recipe.size)))
        rest = max(1, recipe.size - HEAD_BYTES)
        pool = _letters(_mixed(np.arange((POOL_PIECES + rest) // 8 + 1, dtype=np.uint64) * STEP))
        self._pieces = np.lib.stride_tricks.sliding_window_view(pool, rest)[:POOL_PIECES]
        self._keys = pc.binary_join_element_wise("key-", pa.array(np.arange(recipe.keys)).cast(pa.string()), "")

    def streams(self) -> list[Stream]:
        return list(self._streams)

    def read(self, stream: Stream, after: int | None) -> Iterator[Batch]:
        first, end = 0 if after is None else after + 1, self._recipe.records
        while end is None or first < end:
            count = self._batch_records if end is None else min(self._batch_records, end - first)
            yield self.batch(stream, first, count)
            first += count

    def batch(self, stream: Stream, first: int, count: int) -> Batch:
        """So many records from number `first` on."""
        ids = np.arange(first, first + count, dtype=np.uint64)
        salt = np.uint64(stream_id(f"{self._recipe.seed} {stream.name}".encode()))
        return Batch(ids, np.zeros(count, np.int64), self._payloads(ids, salt), self._keys_of(ids, salt))

    def _keys_of(self, ids: Numbers, salt: np.uint64) -> pa.Array | None:
        if not len(self._keys):
            return None
        return self._keys.take(pa.array(_mixed(~ids * STEP ^ salt) % np.uint64(len(self._keys)))).cast(pa.binary())

    def _payloads(self, ids: Numbers, salt: np.uint64) -> pa.Array:
        """Sixteen letters that no other record has, then a piece of the pool, at a place that depends on the record."""
        size, count = self._recipe.size, len(ids)
        counters = np.arange(2 * count, dtype=np.uint64).reshape(count, 2) + 2 * ids[:1]
        counters *= STEP
        counters ^= salt
        words = _mixed(counters)
        text = np.empty((count, size), np.uint8)
        text[:, :HEAD_BYTES] = _letters(words).reshape(count, HEAD_BYTES)[:, :size]
        if size > HEAD_BYTES:
            text[:, HEAD_BYTES:] = self._pieces[words[:, 0] % np.uint64(len(self._pieces))]
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def _letters(words: Numbers) -> npt.NDArray[np.uint8]:
    """Eight letters of each word; little-endian on every machine, so that they are the same."""
    return np.frombuffer(words.astype("<u8", copy=False).tobytes().translate(LETTERS), np.uint8)


def _mixed(values: Numbers) -> Numbers:
    """Splitmix64's last step, in place: every bit of a counter moves every bit of the result."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values ^= values >> np.uint64(shift)
        values *= np.uint64(factor)
    values ^= values >> np.uint64(31)
    return values
