"""Maps PostgreSQL's types to Arrow types, and encodes values for COPY.

Invariant: a value is stored exactly or refused; it is never rounded or truncated. If all types of a table have a
binary encoding here, it is written with COPY BINARY, otherwise with COPY in text format, which the server parses.
Upstream: `connectors/postgres_rows`; downstream: `connectors/postgres_table`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

DECIMAL_DIGITS_MAX = 38
UNBOUNDED_NUMERIC = pa.decimal256(76, 30)
"""For `numeric` without precision: 46 digits before the point and 30 after it."""
DAYS_TO_2000 = 10_957
MICROSECONDS_TO_2000 = DAYS_TO_2000 * 86_400_000_000

INTEGERS: dict[str, Any] = {"int2": np.int16, "int4": np.int32, "int8": np.int64, "oid": np.uint32}
FLOATS: dict[str, Any] = {"float4": np.float32, "float8": np.float64}
TEXTS = frozenset({"text", "varchar", "bpchar", "name", "citext"})
JSONS = frozenset({"json", "jsonb"})

EncodedValues: TypeAlias = pa.Array | npt.NDArray[Any]
"""Values in the format of COPY BINARY: an Arrow array of binaries, or a numpy array if no value is null and all have
the same length."""

BINARY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
BINARY_TRAILER = b"\xff\xff"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        name: Its name.
        type_name: Its type as PostgreSQL prints it, for messages.
        base: Internal name of the type; for a domain, of its base type.
        is_enum: Its type is an enumeration.
        type_modifier: Precision and scale of a `numeric`, or -1.
        is_required: It has no default and accepts no null.
        is_own: The database fills it: it has a default, is an identity or is generated.
        is_generated: It cannot be written.
    """

    name: str
    type_name: str
    base: str
    is_enum: bool = False
    type_modifier: int = -1
    is_required: bool = False
    is_own: bool = False
    is_generated: bool = False

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of values. Values of unknown types are texts in PostgreSQL's notation."""
        if self.base == "bool":
            return pa.bool_()
        if self.base in INTEGERS:
            return pa.int64()
        if self.base in FLOATS:
            return pa.float64()
        if self.base == "numeric":
            return self._decimal()
        if self.base == "date":
            return pa.date32()
        if self.base == "timestamp":
            return pa.timestamp("us")
        if self.base == "timestamptz":
            return pa.timestamp("us", "UTC")
        return pa.string()

    def _decimal(self) -> pa.DataType:
        if self.type_modifier < 4:
            return UNBOUNDED_NUMERIC
        precision, scale = (self.type_modifier - 4) >> 16, (self.type_modifier - 4) & 0x7FF
        if scale > precision or precision > 76:  # a negative scale, or more digits than Arrow supports
            return UNBOUNDED_NUMERIC
        return pa.decimal128(precision, scale) if precision <= DECIMAL_DIGITS_MAX else pa.decimal256(precision, scale)

    @property
    def has_binary(self) -> bool:
        """Whether values have a binary encoding here."""
        return self.is_enum or self.base in _BINARY

    def as_binary(self, values: pa.Array) -> EncodedValues:
        """Return the values in the format of COPY BINARY, without their lengths. Raises ArrowInvalid."""
        return _plain(values) if self.is_enum else _BINARY[self.base](values, self)

    def as_text(self, values: pa.Array) -> pa.Array:
        """Return the values in COPY's text format, without nulls."""
        if pa.types.is_binary(values.type) and self.base == "bytea":
            texts = pc.binary_join_element_wise(pa.scalar(r"\\x"), _hex(values), pa.scalar(""))
        elif values.type == UNBOUNDED_NUMERIC:
            # PostgreSQL would store and show the zeros that Arrow adds. Arrow writes a small number with an exponent.
            zero = pc.replace_substring_regex(values.cast(pa.string()), r"^0E-\d+$", "0")
            zeros = pc.replace_substring_regex(zero, r"(\.\d*?)0+(E-\d+)?$", r"\1\2")
            texts = pc.replace_substring_regex(zeros, r"\.(E-\d+)?$", r"\1")
        else:
            texts = values.cast(pa.string())
            for character, escaped in (("\\", r"\\"), ("\t", r"\t"), ("\n", r"\n"), ("\r", r"\r")):
                texts = pc.replace_substring(texts, character, escaped)
        return texts.fill_null(r"\N").cast(pa.binary())


def binary_rows(columns: Sequence[tuple[Column, pa.Array]]) -> pa.Array:
    """Return each row in the format of COPY BINARY: the number of fields, then the length and bytes of each. numpy
    joins adjacent fields of fixed length, because Arrow's join has a high cost per field."""
    pieces: list[pa.Array] = []
    fixed: list[Any] = [np.array(len(columns), ">i2")]
    for column, values in columns:
        encoded = column.as_binary(values)
        if isinstance(encoded, np.ndarray):
            fixed += [np.array(encoded.dtype.itemsize, ">i4"), encoded]
            continue
        lengths = pc.fill_null(pc.binary_length(encoded).cast(pa.int32()), -1).to_numpy(zero_copy_only=False)
        pieces += [_side_by_side([*fixed, lengths.astype(">i4")], len(values)), encoded.fill_null(b"")]
        fixed = []
    if fixed:
        pieces.append(_side_by_side(fixed, len(columns[0][1])))
    if len(pieces) == 1:
        return pieces[0]
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary()))


def _side_by_side(parts: Sequence[npt.NDArray[Any]], count: int) -> pa.Array:
    """Concatenate the parts of each row. A part with a single value is used for all rows."""
    rows = np.empty(count, [(f"part_{index}", part.dtype) for index, part in enumerate(parts)])
    for index, part in enumerate(parts):
        rows[f"part_{index}"] = part
    return _binaries(rows)


def text_rows(columns: Sequence[tuple[Column, pa.Array]]) -> pa.Array:
    """Return each row as a line of COPY's text format."""
    joined = pc.binary_join_element_wise(
        *(column.as_text(values) for column, values in columns), pa.scalar(b"\t", pa.binary())
    )
    newline = pa.scalar(b"\n", pa.binary())
    return pc.binary_join_element_wise(joined, pa.scalar(b"", pa.binary()), newline)


def fixed_bytes(numbers: npt.NDArray[Any], values: pa.Array) -> EncodedValues:
    """Return the encoded numbers of these values, with the same nulls."""
    if not values.null_count:
        return numbers
    return pc.if_else(values.is_valid(), _binaries(numbers), pa.scalar(None, pa.binary()))


def _binaries(rows: npt.NDArray[Any]) -> pa.Array:
    """Return each element's bytes."""
    width = rows.dtype.itemsize
    buffer = pa.py_buffer(np.ascontiguousarray(rows).view(np.uint8))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(rows), [None, buffer]).cast(pa.binary())


def _numbers(values: pa.Array) -> npt.NDArray[Any]:
    """Return the values without nulls, as numpy has them."""
    return np.asarray(values.fill_null(0).to_numpy(zero_copy_only=False))


def _bool(values: pa.Array, column: Column) -> EncodedValues:
    return fixed_bytes(np.asarray(values.fill_null(False).to_numpy(zero_copy_only=False)).astype("u1"), values)


def _integer(values: pa.Array, column: Column) -> EncodedValues:
    numbers, limits = _numbers(values), np.iinfo(INTEGERS[column.base])
    if len(numbers) and (numbers.min() < limits.min or numbers.max() > limits.max):
        outside = numbers[(numbers < limits.min) | (numbers > limits.max)][0]
        raise pa.ArrowInvalid(f"{outside} is out of the range of {column.type_name}")
    return fixed_bytes(numbers.astype(limits.dtype.newbyteorder(">")), values)


def _float(values: pa.Array, column: Column) -> EncodedValues:
    numbers = _numbers(values)
    with np.errstate(over="ignore"):
        narrow = numbers.astype(FLOATS[column.base])
    if (is_lost := np.isinf(narrow) & ~np.isinf(numbers)).any():
        raise pa.ArrowInvalid(f"{numbers[is_lost][0]} is out of the range of {column.type_name}")
    return fixed_bytes(narrow.astype(narrow.dtype.newbyteorder(">")), values)


def _plain(values: pa.Array, column: Column | None = None) -> pa.Array:
    return values.cast(pa.binary())


def _jsonb(values: pa.Array, column: Column) -> pa.Array:
    version = pa.scalar(b"\x01", pa.binary())
    return pc.binary_join_element_wise(version, values.cast(pa.binary()), pa.scalar(b"", pa.binary()))


def _date(values: pa.Array, column: Column) -> EncodedValues:
    return fixed_bytes((_numbers(values.cast(pa.int32())) - DAYS_TO_2000).astype(">i4"), values)


def _moment(values: pa.Array, column: Column) -> EncodedValues:
    numbers = _numbers(values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64()))
    return fixed_bytes((numbers - MICROSECONDS_TO_2000).astype(">i8"), values)


_DIGITS = np.full(256, 255, np.uint8)
_DIGITS[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_DIGITS[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)
_DASHES = (8, 13, 18, 23)
_NOT_DASHES = [place for place in range(36) if place not in _DASHES]
_NIL = "00000000-0000-0000-0000-000000000000"


def _uuid(values: pa.Array, column: Column) -> EncodedValues:
    texts = values.fill_null(_NIL)
    if not pc.all(pc.equal(pc.binary_length(texts), 36)).as_py() and len(texts):
        bad = texts.filter(pc.not_equal(pc.binary_length(texts), 36))[0].as_py()
        raise pa.ArrowInvalid(f"{bad!r} is no uuid of 36 characters")
    characters = np.frombuffer(b"".join(texts.cast(pa.binary()).to_pylist()), np.uint8).reshape(len(texts), 36)
    digits = _DIGITS[characters[:, _NOT_DASHES]]
    is_bad = (digits == 255).any(axis=1) | (characters[:, _DASHES] != ord("-")).any(axis=1)
    if is_bad.any():
        raise pa.ArrowInvalid(f"{texts[int(is_bad.argmax())].as_py()!r} is no uuid")
    packed = np.ascontiguousarray(digits[:, ::2] << 4 | digits[:, 1::2])
    return fixed_bytes(packed.view("V16").reshape(len(texts)), values)


def _hex(values: pa.Array) -> pa.Array:
    return pa.array([None if value is None else value.hex() for value in values.to_pylist()], pa.string())


_BINARY: dict[str, Callable[[pa.Array, Column], EncodedValues]] = {
    "bool": _bool,
    **dict.fromkeys(INTEGERS, _integer),
    **dict.fromkeys(FLOATS, _float),
    **dict.fromkeys(TEXTS | {"json", "bytea"}, _plain),
    "jsonb": _jsonb,
    "date": _date,
    "timestamp": _moment,
    "timestamptz": _moment,
    "uuid": _uuid,
}
