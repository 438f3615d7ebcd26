"""Typed records: JSON that becomes objects of a class of the user, validated when it is decoded.

Invariant: a function after a typed source sees objects of its class only. A payload that does not fit the class is an
error of the record, which names the field and the reason. The validator is made where the pipeline is declared and is
sent with it, so a task need not import the app. Apps declare it with `json_of`; `operators/chain` decodes the records.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from procession.errors import PlanError
from procession.operators.named_types import is_model, is_storable

SHOWN_MAX = 60
ERRORS_SHOWN_MAX = 3
CAUSE = "Value error, "


@dataclass(frozen=True)
class TypedJson:
    """A codec: JSON of objects of one class."""

    record: type[Any]
    validator: Any
    """A `pydantic_core.SchemaValidator`."""
    is_strict: bool
    classes: tuple[type[Any], ...]
    """The class itself, and the dataclasses, named tuples, models and enums in its fields."""

    @property
    def shown(self) -> str:
        """The name of the class."""
        return self.record.__name__

    def is_record(self, value: Any) -> bool:
        """Whether the codec may decode a payload to this value."""
        return isinstance(value, self.record)

    def decode(self, payload: bytes) -> Any:
        """Decode the object in a payload. Raises ValueError with one sentence if the payload does not fit the class."""
        try:
            return self.validator.validate_json(payload, strict=self.is_strict)
        except ValueError as error:
            name = self.record.__name__
            raise ValueError(f"not {'an' if name[0] in 'AEIOU' else 'a'} {name}: {reason_of(error)}") from None


def json_of(record: type[Any], *, strict: bool = True) -> TypedJson:
    """Make a codec for JSON whose records are objects of this class: `source(codec=json_of(Call))`.

    Each record is validated when it enters the pipeline. A record that does not fit becomes a dead letter with the
    reason, or stops the pipeline, like any record on which a function raises. Fields that the class does not have are
    ignored. The class need not be listed in `Pipeline(types=…)`. A sink with `codec="json"` writes such objects as JSON
    again.

    Args:
        record: A dataclass or a pydantic model. Its fields may have the types that pydantic knows, such as `Decimal`,
            `datetime`, `UUID`, enums, `Literal`, lists, and other such classes.
        strict: Refuse values of another JSON type: "7" is not an int, 1 is neither a bool nor a datetime. `False`
            converts them as pydantic does.

    Raises:
        PlanError: The class is of another kind, or has a field whose type cannot be validated.

    Example:
        >>> from dataclasses import dataclass
        >>> from decimal import Decimal
        >>> from procession import Pipeline, json_of
        >>> @dataclass
        ... class Call:
        ...     caller: str
        ...     minutes: Decimal
        >>> json_of(Call).decode(b'{"caller": "a", "minutes": "1.50"}')
        Call(caller='a', minutes=Decimal('1.50'))
        >>> long = Pipeline("calls").source(codec=json_of(Call)).filter(lambda call: call.minutes > 60)
    """
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    if not isinstance(record, type) or not (is_dataclass(record) or is_model(record)):
        raise PlanError(
            f"json_of() was given {record!r}, which is neither a dataclass nor a pydantic model",
            next_step='pass such a class; for plain values write codec="json"',
        )
    try:
        adapter = TypeAdapter(record)
        classes = tuple(dict.fromkeys(_classes(adapter.core_schema)))
    except (PydanticUserError, NameError, TypeError) as error:
        raise PlanError(
            f"json_of({record.__name__}) cannot validate its fields: {str(error).splitlines()[0]}",
            next_step="use types that pydantic knows, and import their names at the top of the app",
        ) from error
    return TypedJson(record, adapter.validator, bool(strict), classes)


def _classes(schema: Any) -> Iterator[type[Any]]:
    """Yield the classes in pydantic's schema of a class whose values have to be listed to be stored."""
    if isinstance(schema, dict):
        yield from (schema[name] for name in ("cls", "function") if is_storable(schema.get(name)))
        for part in schema.values():
            yield from _classes(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            yield from _classes(part)


def reason_of(error: ValueError) -> str:
    """Return the reason in one line: the first fields that do not fit."""
    errors = getattr(error, "errors", None)
    if errors is None:  # such as bytes that are not text
        return str(error).splitlines()[0]
    found = errors(include_url=False, include_context=False)
    problems = [_problem(problem) for problem in found[:ERRORS_SHOWN_MAX]]
    more = len(found) - len(problems)
    return "; ".join(problems) + (f"; and {more} more" if more else "")


def _problem(problem: dict[str, Any]) -> str:
    place = ".".join(map(str, problem["loc"])) or "it"
    if problem["type"] == "missing":
        return f"{place} is missing"
    if problem["type"] == "json_invalid":
        return str(problem["msg"])
    shown = repr(problem["input"])
    shown = shown if len(shown) <= SHOWN_MAX else f"{shown[: SHOWN_MAX - 1]}…"
    return f"{place} is {shown}, but {problem['msg'].removeprefix(CAUSE).removeprefix('Input ')}"


def as_fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass or a model, for JSON. None: the value is neither."""
    if is_model(type(value)):
        dumped: dict[str, Any] = value.model_dump(by_alias=True)
        return dumped
    if is_dataclass(type(value)):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None
