"""The settings of an app: values that `pipeline.setting` asks for, and the process that loads the app provides.

Invariant: a setting is read once, when the pipeline is declared, so it has one value in all tasks. Values are provided
by `driver/app_file` from the command line, the environment and the file, and by `testing`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from procession.errors import PlanError
from procession.planner.validation import checked_name

VARIABLE_PREFIX = "PROCESSION_APP_"
FILE_TABLE = "app"
HIDDEN = "(secret)"


class _NoDefault:
    """Marks a setting without a default."""

    def __repr__(self) -> str:
        return "no default"


NO_DEFAULT = _NoDefault()


@dataclass(frozen=True)
class Provided:
    """A value for a setting, and where it is from."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Setting:
    """A setting that an app has asked for."""

    name: str
    kind: Any
    value: Any
    origin: str
    is_secret: bool = False

    @property
    def shown(self) -> str:
        """Its value for people."""
        return HIDDEN if self.is_secret else repr(self.value)


PROVIDED: ContextVar[Mapping[str, Provided]] = ContextVar("PROVIDED", default=MappingProxyType({}))
"""The values for the settings of the app that is being loaded, by `variable_of` their names."""


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return VARIABLE_PREFIX + name.upper().replace("-", "_")


def read_setting(pipeline: str, name: str, kind: Any, default: Any, *, is_secret: bool) -> Setting:
    """The setting with this name: its provided value, or its default. Raises PlanError if there is none, or if the
    value is not of this kind."""
    from pydantic import TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    checked_name(name, "a setting")
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
    except PydanticUserError as error:
        raise PlanError(
            f"setting {name!r} is of type {kind!r}, which cannot be read", next_step="use float, int, str, bool or such"
        ) from error
    found = PROVIDED.get().get(variable_of(name))
    how = f"write --set {name}=…, set {variable_of(name)}, or write {name} = … under [{FILE_TABLE}] in procession.toml"
    if found is None:
        if default is NO_DEFAULT:
            raise PlanError(f"pipeline {pipeline!r} needs the setting {name!r}, which has no value", next_step=how)
        if default is not None:
            try:
                value = adapter.validate_python(default)
                default = (
                    default if value == default else value
                )  # 80 stays 80 if a float is asked for, and "80" does not
            except ValidationError as error:
                reason = error.errors(include_url=False)[0]["msg"]
                raise PlanError(
                    f"the default of setting {name!r} is {HIDDEN if is_secret else repr(default)}: {reason}",
                    next_step="give it a default of the declared type",
                ) from None
        return Setting(name, kind, default, "default", is_secret)
    try:
        if isinstance(found.value, str):
            value = adapter.validate_strings(found.value)
        else:
            value = adapter.validate_python(found.value)
    except ValidationError as error:
        shown = HIDDEN if is_secret else repr(found.value)
        reason = error.errors(include_url=False)[0]["msg"]
        raise PlanError(f"setting {name!r} is {shown} from {found.origin}: {reason}", next_step=how) from None
    return Setting(name, kind, value, found.origin, is_secret)
