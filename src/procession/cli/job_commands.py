"""The commands `procession jobs`, `procession status` and `procession stop`: pipelines on this machine.

As in `cli/main`, they only parse and print; `supervisor/job_status` reads, `supervisor/run_claim` stops.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from procession.cli.command_options import ControlCookieFile, PipelineDirectory, with_groups
from procession.cli.tls_options import ClientTlsOptions

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

COLUMNS = ("pipeline", "state", "pid", "epoch", "committed", "records_per_s", "lag")


def jobs(as_json: Json = False) -> None:
    """List the pipelines in .procession: which of them run, what they have committed, and how fast they are."""
    from procession.cli.streams_table import aligned
    from procession.supervisor.job_status import jobs as find

    found = find()
    if as_json:
        print(json.dumps({"jobs": found}))
        return
    rows = [[_cell(column, job[column]) for column in COLUMNS] for job in found]
    titles = [column.replace("records_per_s", "records/s") for column in COLUMNS]
    lines = aligned(titles, rows, ("pipeline", "state")) if rows else ["there is no pipeline in .procession"]
    print("\n".join(lines))


@with_groups
def status(
    directory: PipelineDirectory = None,
    control_cookie_file: ControlCookieFile = None,
    *,
    tls: ClientTlsOptions,
    as_json: Json = False,
) -> None:
    """Show whether a pipeline runs, what it has committed, its rate and its lag."""
    from procession.cli.streams_table import chosen_pipeline
    from procession.supervisor.cookies import control_cookie
    from procession.supervisor.job_status import sentences
    from procession.supervisor.job_status import status as find

    directory = chosen_pipeline(directory)
    found = find(directory, control_cookie(directory / "gateway", control_cookie_file), tls.load())
    print(json.dumps(found) if as_json else "\n".join(sentences(found)))


def stop(
    directory: PipelineDirectory = None,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Seconds to wait until it has stopped.")] = 90.0,
) -> None:
    """Stop a pipeline as Ctrl-C does, and wait until it has stopped. Does nothing if it does not run."""
    from procession.cli.streams_table import chosen_pipeline
    from procession.supervisor.run_claim import stop as end

    directory = chosen_pipeline(directory)
    pid = end(directory, timeout_s)
    print(f"no pipeline runs in {directory}" if pid is None else f"stopped the pipeline in {directory} (process {pid})")


def _cell(column: str, value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if isinstance(value, int | float) and column != "pid" else str(value)
