"""Shared code of the commands `procession bench NAME`: options, and printing of results."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from procession.errors import UsageError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Rounds = Annotated[int, typer.Option(min=1, help="Number of measurements of each variant, in turn.")]


def print_figures(context: typer.Context, figures: dict[str, Any], lines: Iterable[str]) -> None:
    """Print the lines, or with --json the figures, and the command that repeats the measurement."""
    command = command_line(context)
    if context.params["as_json"]:
        print(json.dumps({**figures, "command": command}))
        return
    for line in lines:
        print(line)
    print(f"({command})")


def command_line(context: typer.Context) -> str:
    return " ".join([f"procession bench {context.command.name}", *_options(context)])


def _options(context: typer.Context) -> Iterable[str]:
    """Yield the options of a command as they are typed, without output options and options that are not set."""
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if (
            option.name not in ("as_json", "report", "figures_file", "plots")
            and value is not None
            and value is not False
        ):
            for each in value if isinstance(value, tuple | list) else [value]:
                yield option.opts[0] if each is True else f"{option.opts[0]} {each}"


def check_writable(path: Path) -> None:
    """Raise UsageError before a long measurement if its result cannot be written."""
    try:
        path.open("a").close()
    except OSError as error:
        raise UsageError(
            f"The file {path} cannot be written: {error.strerror}.",
            next_step="Name a file in a directory that you can write to.",
        ) from error
