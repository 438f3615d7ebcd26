"""Option groups: options that several commands share, defined once as the fields of a dataclass.

A command uses the group as the type of one parameter. `with_groups` declares the fields to Typer instead of that
parameter, and passes the command an instance with the values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar, get_type_hints

Command = TypeVar("Command", bound=Callable[..., None])


def with_groups(command: Command) -> Command:
    """Declare the fields of a command's groups as its own options. Groups may contain groups."""
    hints = get_type_hints(command, include_extras=True)
    declared = inspect.signature(command).parameters.values()
    shown = [
        option
        for parameter in declared
        for option in _options(parameter.name, hints[parameter.name], parameter.default)
    ]

    @wraps(command)
    def grouped(**given: Any) -> None:
        command(**{parameter.name: _collect(parameter.name, hints[parameter.name], given) for parameter in declared})

    grouped.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    grouped.__annotations__ = {option.name: option.annotation for option in shown}
    return grouped  # type: ignore[return-value]


def _options(name: str, hint: Any, default: Any) -> Iterator[inspect.Parameter]:
    if not is_dataclass(hint):
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        return
    hints = get_type_hints(hint, include_extras=True)
    for field in fields(hint):
        yield from _options(
            field.name, hints[field.name], inspect.Parameter.empty if field.default is MISSING else field.default
        )


def _collect(name: str, hint: Any, given: dict[str, Any]) -> Any:
    if not is_dataclass(hint):
        return given[name]
    hints = get_type_hints(hint, include_extras=True)
    return hint(**{field.name: _collect(field.name, hints[field.name], given) for field in fields(hint)})  # type: ignore[operator]
