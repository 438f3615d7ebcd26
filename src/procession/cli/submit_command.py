"""The commands `procession submit` and `procession pack`: run an app on a Spark cluster without Procession.

As in `cli/main`, they only parse and print; `jobs/submit_app` and `jobs/run_app` do the work.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from procession.cli.command_options import AppSettings, PipelineSettings, with_groups
from procession.cli.run_commands import (
    AppFile,
    Directory,
    EventTimeField,
    EventTimeUnit,
    Inputs,
    Json,
    Listen,
    event_time_arguments,
    report,
)
from procession.log_format import note

Packages = Annotated[
    list[str] | None,
    typer.Option(
        "--package",
        metavar="NAME",
        help="Also pack this installed package (repeatable). Packages that the app's files import are found"
        " automatically.",
    ),
]
WithPython = Annotated[
    bool, typer.Option("--with-python", help="Also pack this Python, for machines without a Python of this version.")
]


@with_groups
def submit(
    app_file: AppFile,
    inputs: Inputs = None,
    event_time: EventTimeField = None,
    event_time_unit: EventTimeUnit = "s",
    directory: Directory = None,
    listen: Listen = "127.0.0.1:7100",
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            show_default="found by the route to the master",
            help="Name or address of this machine for executors.",
        ),
    ] = None,
    packages: Packages = None,
    with_python: WithPython = False,
    sets: AppSettings = None,
    as_json: Json = False,
    *,
    options: PipelineSettings,
) -> None:
    """Run an app on a Spark cluster whose executors have only Spark and a plain Python. Only the tasks run there."""
    from procession.deployment.settings import load_settings
    from procession.driver.app_values import export
    from procession.jobs.run_app import run_app
    from procession.jobs.submit_app import submitted

    settings = load_settings(**options.chosen())
    export(sets or [])
    fields = event_time_arguments(event_time, event_time_unit)
    place, settings = submitted(
        app_file, directory, settings, note, address=address, packages=packages or [], has_python=with_python
    )
    figures = run_app(app_file, place, inputs or [], listen, settings, is_silent=as_json, event_time=fields)
    report(figures, as_json=as_json)


def pack(
    app_file: Annotated[
        Path | None, typer.Argument(metavar="APP.PY", help="Pack what this app imports, and its modules.")
    ] = None,
    output: Annotated[Path, typer.Option(metavar="FILE", help="The archive. It must end in .tar.gz.")] = Path(
        "environment.tar.gz"
    ),
    packages: Packages = None,
    with_python: WithPython = False,
    as_json: Json = False,
) -> None:
    """Pack Procession, its dependencies and an app's modules for executors, as `submit` does."""
    from procession.deployment.app_packages import app_packages
    from procession.deployment.environment_archive import archive_files, write_archive
    from procession.errors import UsageError
    from procession.spark.shipped_environment import SUFFIX

    if not output.name.endswith(SUFFIX):
        raise UsageError(
            f"{output} does not end in {SUFFIX}: Spark would lose the modes of its files.",
            next_step=f"Use a name that ends in {SUFFIX}.",
        )
    needed = app_packages(app_file, packages or [])
    write_archive(output.resolve(), archive_files(needed, has_python=with_python))
    size = output.stat().st_size
    figures = {"archive": str(output), "bytes": size, "packages": sorted(needed.distributions)}
    packed = f"{len(needed.distributions)} packages and {len(needed.modules)} modules of the app"
    print(json.dumps(figures) if as_json else f"{output}: {size / 1e6:.0f} MB, {packed}")
