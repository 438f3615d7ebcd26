"""The command `procession driver`: run a driver alone.

As in `cli/main`, it only parses; `driver/driver` does the work.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from procession.cli.command_options import AppSettings, DriverSettings, with_groups
from procession.cli.replica_options import ReplicationOptions
from procession.cli.tls_options import ClientTlsOptions
from procession.log_format import note


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
    early: Annotated[
        bool,
        typer.Option(
            "--early", help="Start Spark, and continue when a line with `go` and the sinks arrives on standard input."
        ),
    ] = False,
    sets: AppSettings = None,
    *,
    options: DriverSettings,
    tls: ClientTlsOptions,
    replication: ReplicationOptions,
) -> None:
    """Run a driver alone. It runs the app on Spark, commits its epochs, and replaces any earlier driver."""
    from procession.address import parse_addresses
    from procession.deployment.cookies import read_cookie
    from procession.deployment.settings import load_settings
    from procession.driver.app_values import export
    from procession.driver.early_jvm import start_early
    from procession.storage.secret import Secret, make_pipeline_private, make_secret

    settings = load_settings(**options.chosen(), **vars(tls))
    export(sets or [])
    directory = directory.resolve()
    sink_cookie = read_cookie(settings.sink_cookie_file)
    make_pipeline_private(directory)
    spark_secret = read_cookie(settings.spark_secret_file).decode()
    shipped = settings.environment_archive
    jvm = start_early(directory, app_file, settings.master, settings.conf or {}, shipped, spark_secret)
    # Imported late, because the JVM starts meanwhile.
    from procession.driver.driver import Turn, run_driver
    from procession.driver.driver_config import DriverConfig

    config = DriverConfig(
        app=app_file.resolve(),
        directory=directory,
        gateway=gateway_at or directory / "gateway",
        sinks=dict(map(_named_address, sink or [])),
        epoch_interval_s=settings.epoch_interval_s,
        epoch_target_s=settings.epoch_target_s,
        small_epoch_records_max=settings.small_epoch_records_max,
        epoch_records_max=settings.epoch_records_max,
        epoch_bytes_max=settings.epoch_bytes_max,
        answer_timeout_s=settings.answer_timeout_s,
        sink_refusals_max=settings.sink_refusals_max,
        emitters=settings.emitters,
        emitters_at=tuple(parse_addresses(settings.emitters_at)) if settings.emitters_at else (),
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
        environment_archive=shipped,
        spark_secret=spark_secret,
        control_cookie=settings.control_cookie or make_secret(directory, Secret.CONTROL),
        sink_cookie=sink_cookie,
        file_sink_cookie=sink_cookie or make_secret(directory, Secret.SINKS),
        tls=settings.client_tls,
        early_jvm=jvm,
    )
    turn = None if not (spare or early) else Turn(sys.stdin, is_spare=spare)
    try:
        run_driver(config, note, turn, replication.driver_host(directory))
    finally:
        if jvm is not None:
            jvm.close()


def _named_address(text: str) -> tuple[str, str]:
    name, equals, address = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{text!r} is not NAME=HOST:PORT", param_hint="--sink")
    return name, address
