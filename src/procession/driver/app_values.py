"""Collects the settings of an app from the environment and from the table `[app]` of `procession.toml`.

Invariant: `--set NAME=VALUE` is put into the environment, which all parts of a pipeline inherit, so every process that
loads the app sees the same values. The environment overrides the file. Used by `driver/app_file` and the command line.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from procession.api.app_settings import FILE_TABLE, VARIABLE_PREFIX, Provided, Setting, variable_of
from procession.errors import ConfigError, UsageError
from procession.planner.validation import NAME

FILE = Path("procession.toml")
_SET: dict[str, Provided] = {}
"""The variables that the command line of this process has set, with the names of their settings."""


def export(pairs: Iterable[str]) -> None:
    """Put the values of `--set NAME=VALUE` into the environment. Raises UsageError for a pair of another form."""
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not NAME.fullmatch(name):
            raise UsageError(f"--set {pair!r} is not a setting", next_step="write --set NAME=VALUE")
        os.environ[variable_of(name)] = value
        _SET[variable_of(name)] = Provided(value, f"--set {name}")


def provided() -> dict[str, Provided]:
    """Return the values for settings of an app, by their environment variables. Raises ConfigError for an invalid
    file."""
    found = {}
    if FILE.is_file():
        try:
            table = tomllib.loads(FILE.read_text()).get(FILE_TABLE, {})
        except (ValueError, OSError) as error:
            raise ConfigError(f"{FILE} cannot be read: {error}", next_step="correct the file") from error
        if not isinstance(table, dict):
            raise ConfigError(f"{FILE} has {FILE_TABLE} = {table!r}", next_step=f"write a table: [{FILE_TABLE}]")
        found = {variable_of(name): Provided(value, f"{FILE}") for name, value in table.items()}
    variables = {name: Provided(value, name) for name, value in os.environ.items() if name.startswith(VARIABLE_PREFIX)}
    typed = {name: given for name, given in _SET.items() if name in variables and variables[name].value == given.value}
    return found | variables | typed


def check_known(values: Mapping[str, Provided], settings: Iterable[Setting], app: Path) -> None:
    """Raise ConfigError if a value names a setting that the app does not use: the name may be misspelt."""
    known = {variable_of(setting.name): setting.name for setting in settings}
    for variable, value in values.items():
        if variable not in known:
            names = ", ".join(sorted(known.values())) or "none"
            name = variable.removeprefix(VARIABLE_PREFIX).lower()
            raise ConfigError(
                f"the app {app} has no setting {name!r}, which {value.origin} sets",
                next_step=f"correct the name or remove it; the app has: {names}",
            )
