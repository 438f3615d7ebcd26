"""The command `procession explain`: prints an app's plan.

As in `cli/main`, it only parses and prints, through `planner/explain` and `planner/drawing`. It starts no process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from procession.cli.command_options import AppSettings


def explain(
    app_file: Annotated[Path, typer.Argument(metavar="APP.PY", help="A Python file with a module-level Pipeline.")],
    inputs: Annotated[
        list[Path] | None, typer.Option("--input", help="A file that the app will be run with (repeatable).")
    ] = None,
    sets: AppSettings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    as_dot: Annotated[bool, typer.Option("--dot", help="Print a Graphviz graph.")] = False,
    as_svg: Annotated[bool, typer.Option("--svg", help="Print an SVG drawing.")] = False,
) -> None:
    """Show an app's plan: its chains and edges, and how each of them keeps the order."""
    from procession.deployment.run_inputs import read_inputs
    from procession.driver.app_file import load_app
    from procession.driver.app_values import export
    from procession.planner import drawing
    from procession.planner import explain as text

    if as_json + as_dot + as_svg > 1:
        raise typer.BadParameter("choose one of --json, --dot and --svg")
    write = text.as_json if as_json else text.as_dot if as_dot else drawing.as_svg if as_svg else text.explain
    export(sets or [])
    plan = load_app(
        app_file, is_to_run=False, input_streams=lambda graph: read_inputs(graph, inputs or []).streams
    ).plan
    print(write(plan), end="")
