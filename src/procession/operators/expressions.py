"""Column expressions: functions of a record that can also be computed for whole Arrow columns.

Invariant: an expression is a function of one record, which defines its meaning. `over` computes it for many records at
once and returns the same values. Rows for which Arrow might differ from Python (None, a division by zero, a large
number) are *doubtful*, and are computed one by one. Apps make expressions with `col`; `operators/chain` computes them,
as `operators/column_stages` decides. Pure.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from procession.errors import PlanError
from procession.operators.column_values import ColumnValues, Flags, NotColumnar, any_of, large, nulls

LITERALS = (bool, int, float, str, Decimal, date, datetime)

COMPARED = {
    "==": (operator.eq, pc.equal),
    "!=": (operator.ne, pc.not_equal),
    "<": (operator.lt, pc.less),
    "<=": (operator.le, pc.less_equal),
    ">": (operator.gt, pc.greater),
    ">=": (operator.ge, pc.greater_equal),
}
COMBINED = {"&": (operator.and_, pc.and_), "|": (operator.or_, pc.or_)}
ADDED = {
    "+": (operator.add, pc.add_checked),
    "-": (operator.sub, pc.subtract_checked),
    "*": (operator.mul, pc.multiply_checked),
}
DIVIDED = {"/": (operator.truediv, None), "//": (operator.floordiv, None), "%": (operator.mod, None)}
NUMPY = {"/": np.true_divide, "//": np.floor_divide, "%": np.remainder}
"""Operations of numpy, which divide as Python does. Arrow rounds towards 0."""
OPERATIONS: Mapping[str, tuple[Callable[[Any, Any], Any], Any]] = COMPARED | COMBINED | ADDED | DIVIDED


class Expression:
    """A function of one record that can be computed for whole columns. Expressions are made with `col`."""

    def __call__(self, record: Any) -> Any:
        """Return the value for one record."""
        raise NotImplementedError

    def type_in(self, fields: pa.StructType) -> pa.DataType:
        """Return the type of the values. Raises NotColumnar if the expression cannot be computed for columns of these
        types."""
        raise NotImplementedError

    def over(self, records: pa.StructArray) -> ColumnValues:
        """Compute the values for many records. Raises ArrowInvalid if they do not fit a column."""
        raise NotImplementedError

    # Python itself compares functions with other objects, such as classes.
    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return Operation("==", self, _operand(other)) if _is_operand(other) else NotImplemented

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return Operation("!=", self, _operand(other)) if _is_operand(other) else NotImplemented

    def __lt__(self, other: Any) -> Expression:
        return Operation("<", self, _operand(other))

    def __le__(self, other: Any) -> Expression:
        return Operation("<=", self, _operand(other))

    def __gt__(self, other: Any) -> Expression:
        return Operation(">", self, _operand(other))

    def __ge__(self, other: Any) -> Expression:
        return Operation(">=", self, _operand(other))

    def __and__(self, other: Any) -> Expression:
        return Operation("&", self, _operand(other))

    def __or__(self, other: Any) -> Expression:
        return Operation("|", self, _operand(other))

    def __invert__(self) -> Expression:
        return Negation(self)

    def __add__(self, other: Any) -> Expression:
        return Operation("+", self, _operand(other))

    def __radd__(self, other: Any) -> Expression:
        return Operation("+", _operand(other), self)

    def __sub__(self, other: Any) -> Expression:
        return Operation("-", self, _operand(other))

    def __rsub__(self, other: Any) -> Expression:
        return Operation("-", _operand(other), self)

    def __mul__(self, other: Any) -> Expression:
        return Operation("*", self, _operand(other))

    def __rmul__(self, other: Any) -> Expression:
        return Operation("*", _operand(other), self)

    def __truediv__(self, other: Any) -> Expression:
        return Operation("/", self, _operand(other))

    def __floordiv__(self, other: Any) -> Expression:
        return Operation("//", self, _operand(other))

    def __mod__(self, other: Any) -> Expression:
        return Operation("%", self, _operand(other))

    def is_null(self) -> Expression:
        """Return an expression that is true if the value is None."""
        return IsNull(self)

    def is_in(self, values: Any) -> Expression:
        """Return an expression that is true if the value is one of these."""
        return IsIn(self, tuple(_literal(value) for value in values))

    def __bool__(self) -> bool:
        raise PlanError(
            f"the expression {self} has no truth value before there are records",
            next_step="write & | ~ instead of and, or, not, with parentheses: (col('a') > 1) & (col('a') < 9)",
        )

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, eq=False, repr=False)
class Field(Expression):
    """The value of a field."""

    name: str

    def __call__(self, record: Any) -> Any:
        return record[self.name]

    def type_in(self, fields: pa.StructType) -> pa.DataType:
        place = fields.get_field_index(self.name)
        if place < 0:
            raise NotColumnar(f"the records have no field {self.name!r}")
        kind = fields.field(place).type
        if types.is_timestamp(kind):
            return pa.timestamp("us", kind.tz)
        return pa.int64() if types.is_integer(kind) and kind != pa.uint64() else kind

    def over(self, records: pa.StructArray) -> ColumnValues:
        values = records.field(self.name)
        kind = self.type_in(records.type)
        return ColumnValues(values if values.type == kind else values.cast(kind))

    def __str__(self) -> str:
        return f"col({self.name!r})"


@dataclass(frozen=True, eq=False, repr=False)
class Literal(Expression):
    """A fixed value for every record."""

    value: Any

    def __call__(self, _: Any) -> Any:
        return self.value

    def type_in(self, _: pa.StructType) -> pa.DataType:
        try:
            kind = pa.scalar(self.value).type
        except (pa.ArrowInvalid, OverflowError):
            kind = None
        if kind is None or types.is_decimal(kind) or (types.is_timestamp(kind) and kind.tz not in (None, "UTC")):
            raise NotColumnar(f"{self.value!r} has no column")
        return kind

    def over(self, records: pa.StructArray) -> ColumnValues:
        return ColumnValues(pa.repeat(pa.scalar(self.value, self.type_in(records.type)), len(records)))

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, eq=False, repr=False)
class Operation(Expression):
    """An operation with two operands, with Python's semantics."""

    sign: str
    left: Expression
    right: Expression

    def __call__(self, record: Any) -> Any:
        return OPERATIONS[self.sign][0](self.left(record), self.right(record))

    def type_in(self, fields: pa.StructType) -> pa.DataType:
        kinds = left, right = self.left.type_in(fields), self.right.type_in(fields)
        are_numbers = all(kind in (pa.int64(), pa.float64()) for kind in kinds)
        if self.sign in COMPARED:
            is_ordered = left == right and (left in (pa.string(), pa.date32()) or types.is_timestamp(left))
            if are_numbers or is_ordered or (left == right == pa.bool_() and self.sign in ("==", "!=")):
                return pa.bool_()
        elif self.sign in COMBINED:
            if left == right == pa.bool_():
                return pa.bool_()
        elif are_numbers and self.sign == "/":
            return pa.float64()
        elif are_numbers and self.sign in ADDED:
            return pa.int64() if left == right == pa.int64() else pa.float64()
        elif (left == right == pa.int64() and self.sign in DIVIDED) or (
            left == right == pa.string() and self.sign == "+"
        ):
            return left
        raise NotColumnar(f"{self.sign} of {left} and {right} is not computed on columns")

    def over(self, records: pa.StructArray) -> ColumnValues:
        (left, left_doubts), (right, right_doubts) = self.left.over(records), self.right.over(records)
        doubts = any_of(left_doubts, right_doubts, nulls(left), nulls(right))
        if self.sign in DIVIDED:
            return self._divided(left, right, doubts)
        if left.type != right.type:  # an int and a float: Python compares them exactly
            if self.sign in COMPARED:
                doubts = any_of(doubts, large(left), large(right))
            left, right = left.cast(pa.float64(), safe=False), right.cast(pa.float64(), safe=False)
        if left.type == pa.string() and self.sign == "+":
            return ColumnValues(pc.binary_join_element_wise(left, right, ""), doubts)
        return ColumnValues(OPERATIONS[self.sign][1](left, right), doubts)

    def _divided(self, left: pa.Array, right: pa.Array, doubts: Flags | None) -> ColumnValues:
        upper, lower = (pc.fill_null(column, 1).to_numpy() for column in (left, right))
        # Python raises for a division by 0, and the least int64 divided by -1 does not fit.
        are_odd = (lower == 0) if self.sign == "/" else (lower == 0) | (lower == -1)
        doubts = any_of(doubts, are_odd if are_odd.any() else None, large(left), large(right))
        lower = np.where(are_odd, np.ones_like(lower), lower)
        with np.errstate(all="ignore"):
            return ColumnValues(pa.array(NUMPY[self.sign](upper, lower)), doubts)

    def __str__(self) -> str:
        return f"({self.left} {self.sign} {self.right})"


@dataclass(frozen=True, eq=False, repr=False)
class Negation(Expression):
    """Whether an expression is false."""

    of: Expression

    def __call__(self, record: Any) -> Any:
        return not self.of(record)

    def type_in(self, fields: pa.StructType) -> pa.DataType:
        if (kind := self.of.type_in(fields)) != pa.bool_():
            raise NotColumnar(f"~ of {kind} is not computed on columns")
        return kind

    def over(self, records: pa.StructArray) -> ColumnValues:
        values, doubts = self.of.over(records)
        return ColumnValues(pc.invert(values), any_of(doubts, nulls(values)))

    def __str__(self) -> str:
        return f"~{self.of}"


@dataclass(frozen=True, eq=False, repr=False)
class IsNull(Expression):
    """Whether a value is None."""

    of: Expression

    def __call__(self, record: Any) -> Any:
        return self.of(record) is None

    def type_in(self, fields: pa.StructType) -> pa.DataType:
        self.of.type_in(fields)
        return pa.bool_()

    def over(self, records: pa.StructArray) -> ColumnValues:
        values, doubts = self.of.over(records)
        return ColumnValues(pc.is_null(values), doubts)

    def __str__(self) -> str:
        return f"{self.of}.is_null()"


@dataclass(frozen=True, eq=False, repr=False)
class IsIn(Expression):
    """Whether a value is one of these."""

    of: Expression
    values: tuple[Any, ...]

    def __call__(self, record: Any) -> Any:
        return self.of(record) in self.values

    def type_in(self, fields: pa.StructType) -> pa.DataType:
        kind = self.of.type_in(fields)
        allowed = {pa.int64(): int, pa.string(): str}.get(kind)
        if allowed is None or any(type(value) is not allowed for value in self.values):
            raise NotColumnar(f"is_in of {kind} with these values is not computed on columns")
        return pa.bool_()

    def over(self, records: pa.StructArray) -> ColumnValues:
        values, doubts = self.of.over(records)
        return ColumnValues(
            pc.is_in(values, value_set=pa.array(self.values, values.type)), any_of(doubts, nulls(values))
        )

    def __str__(self) -> str:
        return f"{self.of}.is_in({list(self.values)})"


@dataclass(frozen=True, eq=False, repr=False)
class Struct(Expression):
    """A record with these fields."""

    fields: tuple[tuple[str, Expression], ...]

    def __call__(self, record: Any) -> Any:
        return {name: expression(record) for name, expression in self.fields}

    def type_in(self, fields: pa.StructType) -> pa.DataType:
        kinds = [(name, expression.type_in(fields)) for name, expression in self.fields]
        if inner := next((name for name, kind in kinds if types.is_nested(kind)), None):
            raise NotColumnar(f"its field {inner!r} is nested")
        return pa.struct(kinds)

    def over(self, records: pa.StructArray) -> ColumnValues:
        columns = [expression.over(records) for _, expression in self.fields]
        names = [name for name, _ in self.fields]
        whole = pa.StructArray.from_arrays([column.values for column in columns], names)
        return ColumnValues(whole, any_of(*(column.doubts for column in columns)))

    def __str__(self) -> str:
        return f"struct({', '.join(f'{name}={expression}' for name, expression in self.fields)})"


def col(name: str) -> Expression:
    """Return an expression for the field of a record. It can be computed for whole columns.

    Expressions consist of fields, values and `+ - * / // % == != < <= > >= & | ~`, `is_null()` and `is_in([…])`. They
    are functions of a record with the semantics of Python. So you can use them wherever a stage takes a function of one
    record. After a source with a `schema`, the expressions of `filter`, `map`, `key_by`, `add_timestamps`, and of the
    keys and times of stages with state, are computed for whole columns.

    Args:
        name: Name of the field.

    Example:
        >>> from procession import col
        >>> is_long = (col("seconds") > 60) & ~col("caller").is_in(["test"])
        >>> is_long({"caller": "a", "seconds": 61})
        True
    """
    if not isinstance(name, str):
        raise PlanError(f"col({name!r}) is not the name of a field", next_step='write a text, such as col("seconds")')
    return Field(name)


def struct(**fields: Any) -> Expression:
    """Return an expression for a record with these fields. Its value is a dict.

    Args:
        fields: Expressions or plain values, by the name of the field.

    Example:
        >>> from procession import col, struct
        >>> struct(caller=col("caller"), minutes=col("seconds") / 60)({"caller": "a", "seconds": 90})
        {'caller': 'a', 'minutes': 1.5}
    """
    if not fields:
        raise PlanError("struct() has no fields", next_step='name some: struct(caller=col("caller"))')
    return Struct(tuple((name, _operand(value)) for name, value in fields.items()))


def _is_operand(value: object) -> bool:
    return isinstance(value, Expression) or type(value) in LITERALS


def _operand(value: Any) -> Expression:
    return value if isinstance(value, Expression) else Literal(_literal(value))


def _literal(value: Any) -> Any:
    if type(value) not in LITERALS:
        raise PlanError(
            f"{value!r} is a {type(value).__name__}, which cannot be part of an expression",
            next_step="use numbers, text, dates, times and other expressions; for None write .is_null()",
        )
    return value
