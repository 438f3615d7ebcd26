"""The commands that examine and prepare this machine: `procession doctor` and `procession warm`.

As in `cli/main`, they only parse and print; `jobs/doctor`, `spark/class_archive` and `wire/columns` do the work.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from procession.exit_status import Status

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def doctor(
    directory: Annotated[
        Path, typer.Option("--dir", help="The pipeline's directory, which need not exist yet.")
    ] = Path(".procession"),
    listen: Annotated[str, typer.Option(help="Address for producers, HOST:PORT.")] = "127.0.0.1:7100",
    as_json: Json = False,
) -> None:
    """Check whether this machine can run a pipeline: Java, ports, disk, memory, limits, clock and packages.

    Exits with status 3 if it cannot.
    """
    from procession.deployment.settings import load_settings
    from procession.jobs.doctor import examine, is_ready, report, summary

    findings = list(examine(directory, listen, load_settings()))
    print(json.dumps(summary(findings)) if as_json else "\n".join(report(findings)))
    if not is_ready(findings):
        raise typer.Exit(Status.ACT)


def warm() -> None:
    """Prepare caches that make Spark and the gateway start faster. Optional; `make setup` runs it once."""
    from procession.spark.class_archive import warm as make
    from procession.wire import columns

    columns.make_ready()
    archive = make()
    print(f"wrote the class archive {archive}" if archive else "this Java has no class archives; nothing was written")
