"""Named types: the dataclasses, named tuples, pydantic models and enums whose values may be stored.

Invariant: a stored value names its type, and the name is looked up in the list of the app, never imported. So a file
cannot choose which code runs. `Pipeline(types=[…])` makes the list; `operators/value_codec` and `planner/keys` use it
to store values and keys. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from procession.errors import PlanError


@dataclass(frozen=True)
class NamedTypes:
    """The types that an app lists. A type is identified by its `__name__`."""

    classes: tuple[type[Any], ...] = ()

    @classmethod
    def of(cls, classes: Iterable[type[Any]]) -> NamedTypes:
        """Create the list of these types. Raises PlanError if a type cannot be stored, or two types have one name."""
        listed: dict[str, type[Any]] = {}
        for kind in classes:
            if not is_storable(kind):
                raise PlanError(
                    f"types= has {kind!r}, which is not a dataclass, a named tuple, a pydantic model or an enum",
                    next_step="list classes of these kinds only; plain values need not be listed",
                )
            if listed.setdefault(kind.__name__, kind) is not kind:
                raise PlanError(
                    f"two classes of the pipeline have the name {kind.__name__!r}",
                    next_step="rename one of them: stored values refer to their type by this name",
                )
        return cls(tuple(listed.values()))

    def including(self, classes: Iterable[type[Any]]) -> NamedTypes:
        """Return these types and others."""
        return NamedTypes.of([*self.classes, *classes])

    def name_of(self, kind: type[Any]) -> str:
        """Return the name with which values of this type are stored. Raises TypeError if the app does not list it."""
        if kind not in self.classes:
            raise TypeError(f"{kind.__name__} is not listed: write Pipeline(…, types=[{kind.__name__}])")
        return kind.__name__

    def made_model(self, name: str, *state: Any) -> Any:
        """Create the pydantic model that a stored value describes, as `model_parts` returns it."""
        return _model(self.named(name), *state)

    def named(self, name: str) -> type[Any]:
        """Return the type with this name in stored values. Raises PlanError if the app does not list it."""
        for kind in self.classes:
            if kind.__name__ == name:
                return kind
        raise PlanError(
            f"a stored value is of type {name!r}, which the pipeline does not list",
            next_step=f"write Pipeline(…, types=[{name}]), or rename the class back; nothing of this epoch is"
            " committed",
        )

    def member(self, name: str, member: str | None, value: Any) -> Any:
        """Return the member of this enum, by its name, or by its value if it has no name. Raises PlanError if there is
        none."""
        return _member(self.named(name), member, value)

    def build(self, name: str, values: Mapping[str, Any]) -> Any:
        """Create a value of this dataclass or named tuple. Raises PlanError if its fields have changed."""
        return _made(self.named(name), values)


NO_TYPES = NamedTypes()


def is_storable(kind: Any) -> bool:
    """Whether values of this type can be stored, if the app lists it."""
    return isinstance(kind, type) and (
        is_dataclass(kind) or is_named_tuple(kind) or is_model(kind) or issubclass(kind, Enum)
    )


def is_named_tuple(kind: type[Any]) -> bool:
    return issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple)


def is_model(kind: type[Any]) -> bool:
    """Whether a class is a pydantic model. pydantic is not imported for this."""
    return hasattr(kind, "model_fields") and hasattr(kind, "model_validate_json")


def model_parts(value: Any) -> list[Any]:
    """Return the fields, the fields that were set, the extra fields and the private attributes of a pydantic model."""
    state = value.__getstate__()
    extra, private = state["__pydantic_extra__"], state["__pydantic_private__"]
    return [state["__dict__"], sorted(state["__pydantic_fields_set__"]), extra, private]


def _member(kind: type[Any], member: str | None, value: Any) -> Any:
    try:
        return kind(value) if member is None else kind[member]
    except (KeyError, ValueError):
        raise _changed(kind, f"no member {member or value!r}") from None


def _made(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """Create a named tuple or a dataclass with these fields. `__init__` is not called, as in a copy."""
    if is_named_tuple(kind):
        whole = {**kind._field_defaults, **values}
        if set(whole) != set(kind._fields):
            raise _changed(kind, f"the fields {', '.join(kind._fields)} instead of {', '.join(values)}")
        return kind._make(whole[name] for name in kind._fields)
    if not is_dataclass(kind):
        raise _changed(kind, "no fields")
    made = object.__new__(kind)
    known = {field.name: field for field in fields(kind)}
    if unknown := [name for name in values if name not in known]:
        raise _changed(kind, f"no field {unknown[0]!r}")
    for name, field in known.items():
        if name in values:
            value = values[name]
        elif field.default is not MISSING:
            value = field.default
        elif field.default_factory is not MISSING:
            value = field.default_factory()
        else:
            raise _changed(kind, f"a field {name!r} without a default, which stored values lack")
        object.__setattr__(made, name, value)
    return made


def _model(kind: type[Any], values: dict[str, Any], names: list[str], extra: Any, private: Any) -> Any:
    """Create a pydantic model with these fields. The fields are not validated again, as in a copy."""
    if not is_model(kind):
        raise _changed(kind, "no fields of a model")
    known = kind.model_fields
    if unknown := [name for name in values if name not in known]:
        raise _changed(kind, f"no field {unknown[0]!r}")
    if lacking := [name for name, field in known.items() if name not in values and field.is_required()]:
        raise _changed(kind, f"a field {lacking[0]!r} without a default, which stored values lack")
    whole = {
        name: values[name] if name in values else field.get_default(call_default_factory=True)
        for name, field in known.items()
    }
    made = object.__new__(kind)
    made.__setstate__(
        {
            "__dict__": whole,
            "__pydantic_fields_set__": set(names),
            "__pydantic_extra__": extra,
            "__pydantic_private__": private,
        }
    )
    return made


def _changed(kind: type[Any], what: str) -> PlanError:
    return PlanError(
        f"class {kind.__name__} has {what}: stored values are of an earlier version of it",
        next_step="restore the old fields and members of the class, or give new fields defaults; nothing of this epoch"
        " is committed",
    )
