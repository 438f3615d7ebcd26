"""The command `procession simulate`: words in, one call out.

The one rule: as in `cli/main`, it parses and prints. Status 1 if an invariant was breached or nothing was shown, 130
if it was interrupted. Before it `cli/main`; after it `sim/runner`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from procession.exit_status import Status, hear_interrupts


def simulate(
    runs: Annotated[int, typer.Option(min=1, help="How many runs, each by a seed of its own.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the first run; the others count up from it.")] = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="How many processes run them.", show_default="one for each core")
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Run this plan instead: a file that holds one, as printed."),
    ] = None,
    story: Annotated[bool, typer.Option("--story", help="Tell what happened in the first run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Simulate gateway, driver, Spark, sinks and producers, with faults at every step, each run from a seed."""
    from procession.sim.fault_plan import Plan
    from procession.sim.runner import cores, run_again, run_seeds

    hear_interrupts()
    if plan is not None:
        report = run_again(Plan.from_json(plan.read_text(errors="replace")), is_told=story)
    else:
        where = sys.stderr if as_json else sys.stdout
        report = run_seeds(
            seed, runs, jobs=jobs or cores(), is_told=story, say=lambda line: print(line, file=where, flush=True)
        )
    print(json.dumps(report.as_dict()) if as_json else "\n".join(report.lines()), flush=True)
    if report.verdict != "clean":
        raise typer.Exit(Status.INTERRUPTED if report.is_stopped and report.failure is None else Status.UNCLEAN)
