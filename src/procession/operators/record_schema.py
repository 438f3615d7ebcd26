"""Records with a schema: JSON objects that become dicts with the fields of an Arrow schema.

Invariant: a function after such a source sees dicts that have the schema's fields, in the schema's order, each with a
value of its type. A payload that does not fit is an error of the record, which names the field and the reason. Values
are those that an Arrow column of that type would return: a decimal has the scale of its type, a time the time zone.
Apps declare it with `source(schema=…)`; `operators/chain` decodes the records. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from datetime import UTC, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyarrow import types

from procession.errors import PlanError
from procession.operators.typed_json import reason_of

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

TYPES = "bool, integers, float64, string, decimal128, date32, timestamp in s, ms or us, and lists and structs of these"

MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}


@dataclass(frozen=True)
class SchemaJson:
    """A codec: JSON objects with the fields of a schema."""

    schema: pa.Schema
    validator: Any = dataclass_field(compare=False)
    """A `pydantic_core.SchemaValidator`."""

    @property
    def shown(self) -> str:
        """The schema as text for people."""
        return ", ".join(map(_shown, self.schema))

    @property
    def record_type(self) -> pa.StructType:
        """The type of a column of records."""
        return pa.struct([field.with_nullable(True) for field in self.schema])

    @property
    def classes(self) -> tuple[type[Any], ...]:
        """The classes in records. There are none, because records are plain dicts."""
        return ()

    def is_record(self, _: Any) -> bool:
        """Whether the codec may decode a payload to this value. Whether a dict fits is known only after decoding."""
        return False

    def decode(self, payload: bytes) -> dict[str, Any]:
        """Decode the record in a payload. Raises ValueError with one sentence if the payload does not fit the
        schema."""
        try:
            record: dict[str, Any] = self.validator.validate_json(payload, strict=True)
        except ValueError as error:
            raise ValueError(f"not a record of the schema: {reason_of(error)}") from None
        return record


def json_with(schema: pa.Schema, owner: str) -> SchemaJson:
    """Return the codec for JSON objects with this schema. Raises PlanError if it is not a schema, or has a type that
    JSON records cannot have."""
    from pydantic_core import SchemaValidator

    if not isinstance(schema, pa.Schema):
        raise PlanError(
            f"schema={schema!r} of {owner} is not a pyarrow.Schema",
            next_step='write schema=pyarrow.schema([("caller", pyarrow.string()), …]); for your own class write'
            " codec=json_of(…)",
        )
    names = schema.names
    if not names or len(set(names)) < len(names):
        problem = "has no fields" if not names else f"has two fields {max(names, key=names.count)!r}"
        raise PlanError(f"the schema of {owner} {problem}", next_step="give each field a different name")
    return SchemaJson(schema.remove_metadata(), SchemaValidator(_record(schema, owner, "")))


def _record(fields: Any, owner: str, path: str) -> CoreSchema:
    """Return the validator of an object with these fields. Other fields are ignored."""
    from pydantic_core import core_schema

    return core_schema.typed_dict_schema(
        {part.name: core_schema.typed_dict_field(_field(part, owner, f"{path}{part.name}")) for part in fields},
        extra_behavior="ignore",
    )


def _field(part: pa.Field, owner: str, path: str) -> CoreSchema:
    """Return the validator of a field. A field that may be null may be missing, too."""
    from pydantic_core import core_schema

    value = _value(part.type, owner, path)
    if not part.nullable:
        return value
    return core_schema.with_default_schema(core_schema.nullable_schema(value), default=None)


def _value(kind: pa.DataType, owner: str, path: str) -> CoreSchema:
    from pydantic_core import core_schema as of

    if types.is_boolean(kind):
        return of.bool_schema()
    if types.is_integer(kind):
        least = -(2 ** (kind.bit_width - 1)) if types.is_signed_integer(kind) else 0
        return of.int_schema(ge=least, le=least + 2**kind.bit_width - 1)
    if types.is_float64(kind):
        return of.float_schema(allow_inf_nan=False)
    if types.is_string(kind):
        return of.str_schema()
    if types.is_date32(kind):
        return of.date_schema()
    if types.is_decimal128(kind):
        return _after(partial(_scaled, kind.precision, kind.scale), of.decimal_schema())
    if types.is_timestamp(kind) and kind.unit in MICROSECONDS and kind.tz in (None, "UTC"):
        zone: Literal["naive", "aware"] = "naive" if kind.tz is None else "aware"
        time = of.datetime_schema(tz_constraint=zone, microseconds_precision="error")
        return _after(partial(_in_unit, kind.unit, kind.tz is not None), time)
    if types.is_list(kind):
        return of.list_schema(_item(kind.value_field, owner, f"{path}[]"))
    if types.is_struct(kind) and kind.num_fields:
        return _record([kind.field(place) for place in range(kind.num_fields)], owner, f"{path}.")
    raise PlanError(
        f"field {path!r} in the schema of {owner} has the type {kind}",
        next_step=f"use one of these types: {TYPES}; the time zone of a timestamp is UTC or none",
    )


def _item(part: pa.Field, owner: str, path: str) -> CoreSchema:
    from pydantic_core import core_schema

    value = _value(part.type, owner, path)
    return core_schema.nullable_schema(value) if part.nullable else value


def _after(function: Callable[[Any], Any], schema: CoreSchema) -> CoreSchema:
    from pydantic_core import core_schema

    return core_schema.no_info_after_validator_function(function, schema)


def _scaled(precision: int, scale: int, value: Decimal) -> Decimal:
    """Return the number with this many digits after the point, as in a column."""
    context = Context(prec=precision, traps=[InvalidOperation, Inexact])
    try:
        scaled = value.quantize(Decimal((0, (1,), -scale)), context=context)
    except (InvalidOperation, Inexact):
        whole = precision - scale
        raise ValueError(f"should have at most {whole} digits before the point and {scale} after it") from None
    return scaled if scaled else abs(scaled)  # because a column has no negative zero


def _in_unit(unit: str, is_aware: bool, value: datetime) -> datetime:
    """Return the time in UTC, or without a time zone. Raises ValueError if it is more exact than its type."""
    if value.microsecond % MICROSECONDS[unit]:
        raise ValueError(f"should be exact to {unit} at most")
    try:
        return value.astimezone(UTC) if is_aware else value
    except OverflowError:
        raise ValueError("should be in the years 1 to 9999 of UTC") from None


def _shown(part: pa.Field) -> str:
    return f"{part.name}: {part.type}{'' if part.nullable else ' not null'}"
