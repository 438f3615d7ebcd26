"""The settings of an app: values that `pipeline.setting` reads and that the process that loads the app provides.

Invariant: a setting is read once, when the pipeline is declared, so it has one value in all tasks. Values are provided
by `driver/app_file` from the command line, the environment and the file, and by a test with `with_settings`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    """Stands for a missing default of a setting."""

    def __repr__(self) -> str:
        return "no default"


NO_DEFAULT = _NoDefault()


@dataclass(frozen=True)
class Provided:
    """The value that is provided for a setting, and where it comes from."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Setting:
    """A setting that an app has read."""

    name: str
    kind: Any
    value: Any
    origin: str
    is_secret: bool = False

    @property
    def shown(self) -> str:
        """The setting's value as text for people. A secret is hidden."""
        return HIDDEN if self.is_secret else repr(self.value)


PROVIDED: ContextVar[Mapping[str, Provided]] = ContextVar("PROVIDED", default=MappingProxyType({}))
"""The provided values for the app that is being loaded. The keys are the settings' environment variables
(`variable_of`)."""


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return VARIABLE_PREFIX + name.upper().replace("-", "_")


@contextmanager
def with_settings(**values: Any) -> Iterator[None]:
    """Give values for `pipeline.setting` to the pipelines that are declared inside the block.

    >>> from procession import Pipeline
    >>> from procession.testing import with_settings
    >>> with with_settings(threshold=5):
    ...     Pipeline("alerts").setting("threshold", float)
    5.0
    """
    given = {variable_of(name): Provided(value, "with_settings") for name, value in values.items()}
    token = PROVIDED.set({**PROVIDED.get(), **given})
    try:
        yield
    finally:
        PROVIDED.reset(token)


def read_setting(pipeline: str, name: str, kind: Any, default: Any, *, is_secret: bool) -> Setting:
    """Read a setting: its provided value, else its default. Raises PlanError if there is neither, or if the value has
    another type."""
    from pydantic import TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    checked_name(name, "a setting")
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
    except PydanticUserError as error:
        raise PlanError(
            f"setting {name!r} is of type {kind!r}, which cannot be read",
            next_step="use float, int, str, bool or another type that pydantic reads",
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
                )  # 80 stays 80 if a float is wanted, and "80" stays a text
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
