"""The command `procession traces`: sends a trace of each epoch to an OpenTelemetry collector.

As in `cli/main`, it only parses and prints; `monitoring/epoch_traces` does the work.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from procession.cli.command_options import PipelineDirectory
from procession.log_format import note

POLL_S = 1.0


def traces(
    directory: PipelineDirectory = None,
    to: Annotated[
        str,
        typer.Option(
            metavar="URL",
            envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
            help="The collector: an OTLP receiver for HTTP with JSON, without /v1/traces.",
        ),
    ] = "http://127.0.0.1:4318",
    once: Annotated[bool, typer.Option("--once", help="Send the stored history, then exit.")] = False,
) -> None:
    """Send a trace of each committed epoch to an OpenTelemetry collector, as epochs are committed, until Ctrl-C.

    It reads the epoch history, so you can start and stop it at any time without affecting the pipeline."""
    from procession.cli.streams_table import chosen_pipeline
    from procession.errors import ConfigError
    from procession.monitoring.epoch_traces import EpochTraces, send
    from procession.monitoring.job_status import pipeline_name

    directory = chosen_pipeline(directory)
    pipeline = pipeline_name(directory)
    found = EpochTraces(directory, from_now=not once)
    if once:
        print(f"sent {send(found.new(), pipeline, to):,} spans to {to}")
        return
    note(f"sending traces of pipeline {pipeline!r} to {to}; Ctrl-C stops")
    is_away = False
    while True:
        try:
            send(found.new(), pipeline, to)
            is_away = False
        except ConfigError as error:  # these spans are lost; the pipeline is not affected
            if not is_away:
                note(error.sentence)
            is_away = True
        time.sleep(POLL_S)
