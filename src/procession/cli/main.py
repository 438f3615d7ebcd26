"""The command line.

Invariant: a command parses its arguments, calls one function and prints the result. The module with the function is
imported only when the command runs, so that commands start quickly. An error is one sentence, a next step and a status
(`exit_status`).
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from procession.cache import find_place
from procession.cli.bench_all_command import compare_all
from procession.cli.bench_command import ALL, bench_app
from procession.cli.chaos_command import chaos
from procession.cli.cluster_command import ClusterOptions, cluster_app
from procession.cli.command_options import (
    AppSettings,
    DriverSettings,
    EpochSettings,
    Gateways,
    PipelineSettings,
    SpareDriver,
    with_groups,
)
from procession.cli.dashboard_command import dashboard
from procession.cli.explain_command import explain
from procession.cli.frames_command import frames_app
from procession.cli.gateway_command import gateway
from procession.cli.gateways_command import gateways_app
from procession.cli.host_command import host
from procession.cli.job_commands import drain, jobs, pause, resume, status, stop
from procession.cli.letters_command import letters_app
from procession.cli.merge_command import merge
from procession.cli.replica_options import restore
from procession.cli.savepoint_command import savepoint_app
from procession.cli.simulate_command import simulate
from procession.cli.sink_commands import sink_app
from procession.cli.sos_command import sos
from procession.cli.source_commands import source_app
from procession.cli.state_command import state_app
from procession.cli.streams_command import streams
from procession.cli.tls_options import ClientTlsOptions
from procession.cli.traces_command import traces
from procession.cli.upgrade_command import rollback, upgrade
from procession.cli.verify_command import cat, verify
from procession.errors import ProcessionError
from procession.exit_status import Status, status_of
from procession.log_format import keep_logs, note, tell_crash, tell_error
from procession.storage.secret import PRIVATE_UMASK
from procession.supervisor.supervisor import PartFailed

app = typer.Typer(
    help="Procession: every record, once, in order. A stream processor for Python, on Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(source_app, name="source")
app.add_typer(sink_app, name="sink")
app.add_typer(frames_app, name="frames")
bench_app.command(name=ALL)(compare_all)
app.add_typer(bench_app, name="bench")
app.add_typer(gateways_app, name="gateways")
app.add_typer(state_app, name="state")
app.add_typer(letters_app, name="letters")
app.add_typer(savepoint_app, name="savepoint")
app.add_typer(cluster_app, name="cluster")
app.command()(chaos)
app.command()(explain)
app.command()(gateway)
app.command()(host)
app.command()(sos)
app.command()(restore)
app.command()(jobs)
app.command()(merge)
app.command()(simulate)
app.command()(status)
app.command()(stop)
app.command()(pause)
app.command()(resume)
app.command()(drain)
app.command()(dashboard)
app.command()(upgrade)
app.command()(rollback)
app.command()(streams)
app.command()(traces)
app.command()(verify)
app.command()(cat)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@app.command()
@with_groups
def demo(
    records: Annotated[int, typer.Option(min=1, help="Number of records.")] = 200_000,
    crash: Annotated[bool, typer.Option("--crash", help="Kill each process at least once with SIGKILL.")] = False,
    seed: Annotated[
        int | None,
        typer.Option(show_default="random", help="With --crash: seed that decides which process is killed when."),
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

    from procession.supervisor.demo import Demo, sentence
    from procession.supervisor.progress import Display
    from procession.supervisor.settings import load_settings

    settings = load_settings(**epochs.given(), gateways=gateways, spare_driver=spare_driver)
    with Display() as display, cluster.joined(display.say) as hosts:
        chosen = secrets.randbelow(10_000) if seed is None else seed
        place = directory.resolve() if directory else None
        figures = Demo(records, settings, chosen, crash, place, display, hosts).run()
    print(json.dumps(figures) if as_json else sentence(figures))
    if figures["outcome"] != "clean":
        if not as_json and figures["outcome"] != "stopped":
            print(f"verdict: {figures['outcome']}")
        raise typer.Exit(Status.UNCLEAN)


@app.command()
@with_groups
def run(
    app_file: Annotated[Path, typer.Argument(metavar="APP.PY", help="A Python file with a module-level Pipeline.")],
    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--input",
            help="Send this file, or the files of a pattern in quotes, and exit when they are committed (repeatable).",
        ),
    ] = None,
    event_time: Annotated[
        str | None,
        typer.Option(
            "--event-time-field",
            "--event-time",
            metavar="FIELD",
            help="With --input: JSON field that holds a record's event time.",
        ),
    ] = None,
    event_time_unit: Annotated[
        str, typer.Option(help="Unit of numbers in that field: s, ms, us or ns since 1970.")
    ] = "s",
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", show_default=".procession/NAME", help="The pipeline's directory: log, checkpoint, state."
        ),
    ] = None,
    listen: Annotated[str, typer.Option(help="Address for producers, HOST:PORT.")] = "127.0.0.1:7100",
    sets: AppSettings = None,
    as_json: Json = False,
    *,
    given: PipelineSettings,
    cluster: ClusterOptions,
) -> None:
    """Run an app with everything it needs: a gateway, the Spark driver and the app's file sinks."""
    from procession.driver.app_values import export
    from procession.sdk.event_time_field import checked_unit
    from procession.supervisor.run_app import is_clean, run_app, sentence
    from procession.supervisor.settings import load_settings

    settings = load_settings(**given.given())
    export(sets or [])
    checked_unit(event_time_unit)
    field = ["--event-time-field", event_time, "--event-time-unit", event_time_unit] if event_time is not None else []
    with cluster.joined(note) as hosts:
        figures = run_app(
            app_file, directory, inputs or [], listen, settings, is_silent=as_json, event_time=field, cluster=hosts
        )
    print(json.dumps(figures) if as_json else sentence(figures))
    if not is_clean(figures):
        raise typer.Exit(Status.UNCLEAN)


@app.command()
def semantics() -> None:
    """Show the meanings of "once": examples/doubler.py on 1, 2, 3 in five cases, each with its verdict."""
    from procession.cli.semantics_command import five_cases

    print(five_cases())


@app.command()
@with_groups
def driver(
    app_file: Annotated[Path, typer.Argument(metavar="APP.PY", help="A Python file with a module-level Pipeline.")],
    directory: Annotated[Path, typer.Option("--dir", help="The pipeline's directory.")],
    gateway_at: Annotated[
        str | None,
        typer.Option("--gateway", show_default="found in --dir", help="The gateway's control address, HOST:PORT."),
    ] = None,
    sink: Annotated[
        list[str] | None,
        typer.Option(help="Address of a sink, NAME=HOST:PORT (repeatable). NAME.1 is its second connection."),
    ] = None,
    input_stream: Annotated[
        list[int] | None, typer.Option(help="Id of a stream that belongs to an input that ends (repeatable).")
    ] = None,
    spare: Annotated[
        bool, typer.Option("--spare", help="Start Spark, and take over when a line arrives on standard input.")
    ] = False,
    sets: AppSettings = None,
    *,
    given: DriverSettings,
    tls: ClientTlsOptions,
) -> None:
    """Run a driver alone. It runs the app on Spark, commits its epochs, and replaces any earlier driver."""
    from procession.driver.app_values import export
    from procession.driver.driver import DriverConfig, run_driver
    from procession.storage.secret import Secret, make_pipeline_private, make_secret
    from procession.supervisor.cookies import read_cookie
    from procession.supervisor.settings import load_settings

    settings = load_settings(**given.given(), **vars(tls))
    export(sets or [])
    directory = directory.resolve()
    sink_cookie = read_cookie(settings.sink_cookie_file)
    make_pipeline_private(directory)
    config = DriverConfig(
        app=app_file.resolve(),
        directory=directory,
        gateway=gateway_at or directory / "gateway",
        sinks=dict(map(_named_address, sink or [])),
        epoch_interval_s=settings.epoch_interval_s,
        epoch_target_s=settings.epoch_target_s,
        epoch_records_max=settings.epoch_records_max,
        epoch_bytes_max=settings.epoch_bytes_max,
        answer_timeout_s=settings.answer_timeout_s,
        sink_refusals_max=settings.sink_refusals_max,
        emitters=settings.emitters,
        state_keys_max=settings.state_keys_max,
        dead_letter_share_max=settings.dead_letter_share_max,
        dead_letter_records_min=settings.dead_letter_records_min,
        jvm_timeout_s=settings.jvm_timeout_s,
        history_bytes_max=settings.history_bytes_max,
        changed_stages=tuple(name.strip() for name in (settings.changed_stages or "").split(",") if name.strip()),
        input_streams=frozenset(input_stream or []),
        runs=settings.runs,
        master=settings.master,
        spark_properties=settings.conf or {},
        host_services=settings.host_services,
        driver_files=settings.driver_files,
        control_cookie=settings.control_cookie or make_secret(directory, Secret.CONTROL),
        sink_cookie=sink_cookie,
        file_sink_cookie=sink_cookie or make_secret(directory, Secret.SINKS),
        tls=settings.client_tls,
    )
    run_driver(config, say=note, promotion=sys.stdin if spare else None)


@app.command()
def doctor(
    directory: Annotated[
        Path, typer.Option("--dir", help="Where a pipeline would keep its data. It need not exist.")
    ] = Path(".procession"),
    listen: Annotated[str, typer.Option(help="Address for producers, HOST:PORT.")] = "127.0.0.1:7100",
    as_json: Json = False,
) -> None:
    """Check whether this machine can run a pipeline: Java, ports, disk, memory, limits, clock and packages.

    Exits with status 3 if it cannot.
    """
    from procession.supervisor.doctor import examine, is_ready, report, summary
    from procession.supervisor.settings import load_settings

    findings = list(examine(directory, listen, load_settings()))
    print(json.dumps(summary(findings)) if as_json else "\n".join(report(findings)))
    if not is_ready(findings):
        raise typer.Exit(Status.ACT)


@app.command()
def warm() -> None:
    """Prepare caches that make Spark and the gateway start faster. Optional; `make setup` runs it once."""
    from procession.spark.class_archive import warm as make
    from procession.wire import columns

    columns.make_ready()
    archive = make()
    print(f"wrote the class archive {archive}" if archive else "this Java has no class archives; nothing was written")


def _named_address(text: str) -> tuple[str, str]:
    name, equals, address = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{text!r} is not NAME=HOST:PORT", param_hint="--sink")
    return name, address


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(f"procession {version('procession')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Procession: every record, once, in order. A stream processor for Python, on Spark."""


def main() -> NoReturn:
    """Run the command `procession`."""
    # Only the owner may read payloads, secrets and positions. Child processes, also Spark's, inherit the umask.
    os.umask(PRIVATE_UMASK)
    try:
        keep_logs()
        find_place()
        app()
    except ProcessionError as error:
        tell_error(error)
        sys.exit(Status.ACT if isinstance(error, PartFailed) else status_of(error))
    except BrokenPipeError:
        sys.exit(Status.UNCLEAN)
    except Exception:  # a bug, ours or a library's: print the traceback
        tell_crash(traceback.format_exc())
        sys.exit(Status.UNCLEAN)
    sys.exit(Status.DONE)
