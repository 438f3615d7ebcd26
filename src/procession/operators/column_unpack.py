"""Stored records as columns, a whole batch at once: the inverse of `operators/column_pack`.

Invariant: the records are those that `operators/value_codec` would decode one by one. Rows that were stored in another
way are not read: then there is no column, and they are decoded one by one. Used by `operators/chain_rows`. Pure.
"""

from __future__ import annotations

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from procession.operators.column_pack import FALSE, FLOAT64, INT64, MAP32, NIL, STR32, TRUE, UINT64, unpacked_field
from procession.operators.stage_rows import Numbers

WORD = 8
TAGS = {pa.float64(): (FLOAT64, np.float64), pa.uint64(): (UINT64, np.uint64)}
"""The tag and the type of each number type. Integer types that are not listed have those of int64."""
Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]


class _FormMismatch(Exception):
    """A row was stored in another way."""


def unpacked_records(payload: pa.Array, kind: pa.StructType) -> pa.StructArray | None:
    """Decode these stored values to records of this type. None: some of them were not made by `packed_records`."""
    if not len(payload) or payload.null_count or unpacked_field(kind) is not None:
        return None
    try:
        return _RowCursors(payload).records(kind)
    except (_FormMismatch, pa.ArrowInvalid):  # or a number beyond its type
        return None


class _RowCursors:
    """Reads all rows from left to right, a field of all rows at a time. `at` is the position that each row has
    reached."""

    def __init__(self, payload: pa.Array) -> None:
        _, offsets, data = payload.buffers()
        edges = np.frombuffer(offsets, np.int32)[payload.offset : payload.offset + len(payload) + 1].astype(np.int64)
        first, last = int(edges[0]), int(edges[-1])
        # With some bytes behind the last row, a word may be read anywhere.
        self.data: Bytes = np.zeros(last - first + WORD, np.uint8)
        if last > first:
            self.data[:-WORD] = np.frombuffer(data, np.uint8)[first:last]
        self.words: Words = np.ndarray(last - first + 1, "<u8", self.data.data, 0, (1,))
        self.at: Numbers = edges[:-1] - first
        self.ends: Numbers = edges[1:] - first

    def records(self, kind: pa.StructType) -> pa.StructArray:
        fields = list(kind)
        self.expect(bytes([MAP32]) + len(fields).to_bytes(4, "big"))
        columns = []
        for field in fields:
            self.expect(msgpack.packb(field.name))
            columns.append(self.texts() if types.is_string(field.type) else self.plain(field.type))
        _check((self.at == self.ends).all())
        return pa.StructArray.from_arrays(columns, fields=fields)

    def expect(self, text: bytes) -> None:
        """Read these bytes in every row."""
        for start in range(0, len(text), WORD):
            part = text[start : start + WORD]
            wanted = np.uint64(int.from_bytes(part, "little"))
            mask = np.uint64(2 ** (8 * len(part)) - 1)
            _check(((self.read(len(part)) & mask) == wanted).all())

    def read(self, count: int) -> Words:
        """Read this many bytes of every row, at most a word. The rest of the word is what follows."""
        found = self.words[self.at]
        self.at = self.at + count
        _check((self.at <= self.ends).all())
        return found

    def plain(self, kind: pa.DataType) -> pa.Array:
        """The values of a field of numbers or flags."""
        tags = self.read(1).astype(np.uint8)
        are_valid = tags != NIL[0]
        if types.is_boolean(kind):
            _check((~are_valid | (tags == TRUE[0]) | (tags == FALSE[0])).all())
            return pa.array(tags == TRUE[0], mask=~are_valid)
        tag, form = TAGS.get(kind, (INT64, np.int64))
        _check((~are_valid | (tags == tag)).all())
        found = np.where(are_valid, self.words[self.at], np.uint64(0))
        self.skip(np.where(are_valid, WORD, 0))
        numbers = found.byteswap().view(form)
        column = pa.array(numbers, mask=None if are_valid.all() else ~are_valid)
        return column if column.type == kind else column.cast(kind)

    def texts(self) -> pa.Array:
        """The values of a field of text."""
        tags = self.read(1).astype(np.uint8)
        are_valid = tags != NIL[0]
        _check((~are_valid | (tags == STR32)).all())
        lengths = np.where(are_valid, self.words[self.at].astype(np.uint32).byteswap(), 0).astype(np.int64)
        self.skip(np.where(are_valid, 4, 0))
        starts = self.at
        self.skip(lengths)
        edges = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=edges[1:])
        _check(edges[-1] < 2**31)
        places = np.arange(edges[-1]) + np.repeat(starts - edges[:-1], lengths)
        data = pa.py_buffer(self.data[places])
        valid = None if are_valid.all() else pa.py_buffer(np.packbits(are_valid, bitorder="little"))
        return pa.Array.from_buffers(pa.string(), len(lengths), [valid, pa.py_buffer(edges.astype(np.int32)), data])

    def skip(self, counts: Numbers) -> None:
        self.at = self.at + counts
        _check((self.at <= self.ends).all())


def _check(is_so: bool | np.bool_) -> None:
    if not is_so:
        raise _FormMismatch
