"""The command `procession simulate`.

As in `cli/main`, it only parses and prints; `sim/runner` runs the simulations. The status is 1 if an invariant was
violated or nothing was verified, and 130 after an interrupt.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from procession.errors import UsageError
from procession.exit_status import Status, hear_interrupts


def simulate(
    runs: Annotated[int, typer.Option(min=1, help="Number of runs, each with its own seed.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first run. Later runs use the following seeds.")] = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Number of processes.", show_default="one for each core")
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Run the plan in this file, as a failed run printed it."),
    ] = None,
    machines: Annotated[
        bool,
        typer.Option(
            "--machines",
            help="Simulate object services and replicated directories; machines are lost with their disks.",
        ),
    ] = False,
    events: Annotated[bool, typer.Option("--events", help="Print the events of the first run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Simulate gateways, driver, Spark, sinks and producers, with faults at every step. A seed determines each run."""
    from procession.sim.fault_plan import FaultPlan
    from procession.sim.lost_machine_runs import LossReport, run_losses
    from procession.sim.runner import SimulationReport, run_again, run_seeds
    from procession.sim.seed_blocks import cores

    hear_interrupts()
    where = sys.stderr if as_json else sys.stdout
    report: SimulationReport | LossReport
    if machines:
        if plan is not None or events:
            raise UsageError("--machines takes no plan and prints no events", next_step="give --seed and --runs")
        report = run_losses(seed, runs, jobs=jobs or cores(), say=lambda line: print(line, file=where, flush=True))
    elif plan is not None:
        report = run_again(FaultPlan.from_json(plan.read_text(errors="replace")), is_recorded=events)
    else:
        report = run_seeds(
            seed, runs, jobs=jobs or cores(), is_recorded=events, say=lambda line: print(line, file=where, flush=True)
        )
    print(json.dumps(report.as_dict()) if as_json else "\n".join(report.lines()), flush=True)
    if report.verdict != "clean":
        raise typer.Exit(Status.INTERRUPTED if report.is_stopped and report.failure is None else Status.UNCLEAN)
