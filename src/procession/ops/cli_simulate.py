"""The command `procession simulate`: words in, one call out.

The one rule: as in `ops/cli`, it parses and prints. Status 1 if an invariant was breached. Before it `ops/cli`; after
it `chaos/simulator`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def simulate(
    runs: Annotated[int, typer.Option(min=1, help="How many runs, each by a seed of its own.")] = 1000,
    seed: Annotated[int, typer.Option(help="The seed of the first run; the others count up from it.")] = 0,
    plan: Annotated[
        Path | None, typer.Option(exists=True, help="Run this plan instead: a file that holds one, as printed.")
    ] = None,
    story: Annotated[bool, typer.Option("--story", help="Tell what happened in the first run.")] = False,
) -> None:
    """Simulate gateway, driver, Spark, sinks and producers in this process, with faults at every step, from a seed."""
    from procession.chaos.simulator import run_simulator

    if not run_simulator(runs, seed, plan_file=plan, is_told=story, say=lambda text: print(text, flush=True)):
        raise typer.Exit(1)
