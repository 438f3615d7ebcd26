"""The commands `procession run` and `procession demo`: run an app with all of its processes.

As in `cli/main`, they only parse and print; `jobs/run_app` and `jobs/demo` do the work.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from procession.cli.cluster_command import ClusterOptions
from procession.cli.command_options import (
    AppSettings,
    EpochSettings,
    Gateways,
    PipelineSettings,
    SpareDriver,
    with_groups,
)
from procession.exit_status import Status
from procession.log_format import note

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


Inputs = Annotated[
    list[Path] | None,
    typer.Option(
        "--input",
        help="Send this file, or the files of a pattern in quotes, and exit when they are committed (repeatable).",
    ),
]
EventTimeField = Annotated[
    str | None,
    typer.Option(
        "--event-time-field",
        "--event-time",
        metavar="FIELD",
        help="With --input: JSON field that holds a record's event time.",
    ),
]
EventTimeUnit = Annotated[str, typer.Option(help="Unit of numbers in that field: s, ms, us or ns since 1970.")]
Listen = Annotated[str, typer.Option(help="Address for producers, HOST:PORT.")]
AppFile = Annotated[Path, typer.Argument(metavar="APP.PY", help="A Python file with a module-level Pipeline.")]
Directory = Annotated[
    Path | None,
    typer.Option("--dir", show_default=".procession/NAME", help="The pipeline's directory: log, checkpoint, state."),
]


def event_time_arguments(field: str | None, unit: str) -> list[str]:
    """Return the options of a source for the event time of its records. Raises UsageError for an unknown unit."""
    from procession.sdk.event_time_field import checked_unit

    checked_unit(unit)
    return [] if field is None else ["--event-time-field", field, "--event-time-unit", unit]


def report(figures: dict[str, Any], *, as_json: bool) -> None:
    """Print the figures of a run of an app. Exits with UNCLEAN if it did not commit its whole input."""
    from procession.jobs.run_app import is_clean, sentence

    print(json.dumps(figures) if as_json else sentence(figures))
    if not is_clean(figures):
        raise typer.Exit(Status.UNCLEAN)


@with_groups
def demo(
    records: Annotated[int, typer.Option(min=1, help="Number of records.")] = 200_000,
    crash: Annotated[
        bool, typer.Option("--crash", help="Kill each process at least once; on a cluster also hosts and links.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(show_default="random", help="With --crash: seed that decides what is killed when."),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", show_default="a temporary directory", help="Work in this directory and keep it."),
    ] = None,
    as_json: Json = False,
    gateways: Gateways = None,
    spare_driver: SpareDriver = None,
    *,
    epochs: EpochSettings,
    cluster: ClusterOptions,
) -> None:
    """Stream records through a gateway, Spark and a file sink, and compare the output with the input, byte for byte."""
    import secrets

    from procession.deployment.settings import load_settings
    from procession.jobs.demo import Demo, sentence
    from procession.monitoring.progress import Display

    settings = load_settings(**epochs.chosen(), gateways=gateways, spare_driver=spare_driver)
    with Display() as display, cluster.joined(display.say) as hosts:
        chosen = secrets.randbelow(10_000) if seed is None else seed
        place = directory.resolve() if directory else None
        figures = Demo(records, settings, chosen, crash, place, display, hosts).run()
    print(json.dumps(figures) if as_json else sentence(figures))
    if figures["outcome"] != "clean":
        if not as_json and figures["outcome"] != "stopped":
            print(f"verdict: {figures['outcome']}")
        raise typer.Exit(Status.UNCLEAN)


@with_groups
def run(
    app_file: AppFile,
    inputs: Inputs = None,
    event_time: EventTimeField = None,
    event_time_unit: EventTimeUnit = "s",
    directory: Directory = None,
    listen: Listen = "127.0.0.1:7100",
    restore_from: Annotated[
        str | None,
        typer.Option(
            metavar="sos://HOST:PORT,…/NAME",
            help="Restore missing directories from these replicas, and continue to use the replicas.",
        ),
    ] = None,
    sets: AppSettings = None,
    as_json: Json = False,
    *,
    options: PipelineSettings,
    cluster: ClusterOptions,
) -> None:
    """Run an app with all of its processes: a gateway, the Spark driver and the app's file sinks."""
    from procession.deployment.settings import load_settings
    from procession.driver.app_values import export
    from procession.jobs.run_app import run_app

    values = options.chosen()
    if restore_from is not None:
        from procession.deployment.pipeline_replicas import parse_volume

        values["replicas"], values["replica_volume"] = parse_volume(restore_from)
    settings = load_settings(**values)
    export(sets or [])
    field = event_time_arguments(event_time, event_time_unit)
    with cluster.joined(note) as hosts:
        figures = run_app(
            app_file,
            directory,
            inputs or [],
            listen,
            settings,
            is_silent=as_json,
            event_time=field,
            cluster=hosts,
            is_restored=restore_from is not None,
        )
    report(figures, as_json=as_json)
