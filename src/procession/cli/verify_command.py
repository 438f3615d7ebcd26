"""The commands `procession verify` and `procession cat`: verify and print the committed output of sinks.

As in `cli/main`, they only parse and print; `verify/comparison`, `verify/live_check` and `verify/sink_outputs` read the
output. They change nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from procession.storage.driver_claim import checkpoint_of


def verify(
    sources: Annotated[list[Path], typer.Argument(metavar="INPUT...", help="The input, one record per line.")],
    directory: Annotated[Path, typer.Argument(metavar="OUTDIR", help="Directory of a file sink or an epochs sink.")],
    instance: Annotated[
        str | None, typer.Option(help="Only this output of the directory: PIPELINE-SINK-0, or PIPELINE-SINK for all.")
    ] = None,
    order: Annotated[str, typer.Option(help="The promised order: total, key, stream or none.")] = "total",
    key_field: Annotated[
        int | None,
        typer.Option(min=1, help="With --order key: number of the key's field in a line, separated by blanks."),
    ] = None,
    prefix: Annotated[
        bool,
        typer.Option(
            "--prefix", help="The pipeline is still running: do not report records that are missing at the end."
        ),
    ] = False,
    every: Annotated[
        float | None, typer.Option(min=0.01, help="Check again every this many seconds, until a fault is found.")
    ] = None,
    pipeline: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            help="The pipeline's directory: also check that its checkpoint has decided to commit all visible output.",
        ),
    ] = None,
    acks: Annotated[list[Path] | None, typer.Option(help="File that a source wrote with --acks (repeatable).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Compare committed output with the input, and report lost, duplicated, reordered and corrupt records.

    Exits with status 0 if there are none, else 1. The connections of one sink count as one output, unless total order
    was promised.
    """
    from procession.exit_status import hear_interrupts
    from procession.verify.comparison import ComparisonRequest, run_verify
    from procession.verify.live_check import run_watch
    from procession.verify.order import PromisedOrder
    from procession.verify.order import key_field as key_at

    if order not in set(PromisedOrder):
        raise typer.BadParameter("choose one of total, key, stream, none", param_hint="--order")
    request = ComparisonRequest(
        inputs=sources,
        directory=directory,
        instance=instance,
        order=PromisedOrder(order),
        key_of=key_at(key_field) if key_field else None,
        is_complete=not (prefix or every),
        checkpoint=checkpoint_of(pipeline) if pipeline else None,
        acks=acks or [],
    )
    hear_interrupts()
    status = run_watch(request, every, as_json=as_json) if every else run_verify(request, as_json=as_json)
    raise typer.Exit(status)


def cat(
    directory: Annotated[Path, typer.Argument(metavar="OUTDIR", help="Directory of a file sink or an epochs sink.")],
    instance: Annotated[
        str | None, typer.Option(help="Only this output of the directory: PIPELINE-SINK-0, or PIPELINE-SINK for all.")
    ] = None,
) -> None:
    """Print the committed output of a file sink or an epochs sink, also while the pipeline runs."""
    from procession.verify.sink_outputs import committed_output

    for piece in committed_output(directory, instance):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
