"""The commands `procession jobs`, `status`, `stop`, `pause`, `resume` and `drain`: pipelines on this machine.

As in `cli/main`, they only parse and print; `monitoring/job_status` reads, `deployment/run_claim` stops,
`jobs/intake` pauses and drains.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from procession.cli.command_options import ControlCookieFile, PipelineDirectory, with_groups
from procession.cli.tls_options import ClientTlsOptions

if TYPE_CHECKING:
    from procession.jobs.intake import Intake
    from procession.tls import ClientTls

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

COLUMNS = ("pipeline", "state", "started_s", "pid", "epoch", "committed", "records_per_s", "lag", "verdict")
TITLES = {"started_s": "since", "records_per_s": "records/s"}


@dataclass(frozen=True, kw_only=True)
class ControlOptions:
    """The selected pipeline, and the secret of its control port."""

    directory: PipelineDirectory = None
    control_cookie_file: ControlCookieFile = None
    tls: ClientTlsOptions

    def load(self) -> tuple[Path, bytes, ClientTls | None]:
        """Return the pipeline's directory, the secret and the certificates."""
        from procession.cli.streams_table import chosen_pipeline
        from procession.deployment.cookies import control_cookie

        directory = chosen_pipeline(self.directory)
        return directory, control_cookie(directory / "gateway", self.control_cookie_file), self.tls.load()


def jobs(as_json: Json = False) -> None:
    """List the pipelines in .procession: whether they run and since when, their committed records, their rates, and
    the verdict on their epochs."""
    from procession.cli.streams_table import aligned
    from procession.monitoring.pipeline_snapshot import jobs as find

    found = find()
    if as_json:
        print(json.dumps({"jobs": found}))
        return
    names = [job["pipeline"] for job in found]
    # A restored savepoint has the name of the original pipeline.
    columns = COLUMNS if len({*names}) == len(names) else (*COLUMNS, "directory")
    rows = [[_cell(column, job[column]) for column in columns] for job in found]
    titles = [TITLES.get(column, column) for column in columns]
    lines = (
        aligned(titles, rows, ("pipeline", "state", "since", "verdict", "directory"))
        if rows
        else ["there is no pipeline in .procession"]
    )
    print("\n".join(lines))


@with_groups
def status(
    *,
    at: ControlOptions,
    as_json: Json = False,
) -> None:
    """Show whether a pipeline runs, its committed records, its rate and its lag."""
    from procession.monitoring.job_status import sentences
    from procession.monitoring.pipeline_snapshot import PipelineSnapshots

    found = PipelineSnapshots(*at.load()).take()
    print(json.dumps(found) if as_json else "\n".join(sentences(found)))


def stop(
    directory: PipelineDirectory = None,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Seconds to wait until it has stopped.")] = 90.0,
    as_json: Json = False,
) -> None:
    """Stop a pipeline as Ctrl-C does, and wait until it has stopped. Does nothing if it does not run."""
    from procession.cli.streams_table import chosen_pipeline
    from procession.deployment.run_claim import stop as end

    directory = chosen_pipeline(directory)
    pid = end(directory, timeout_s)
    text = f"no pipeline runs in {directory}" if pid is None else f"stopped the pipeline in {directory} (process {pid})"
    print(json.dumps({"stopped": pid}) if as_json else text)


@with_groups
def pause(
    *,
    at: ControlOptions,
    as_json: Json = False,
) -> None:
    """Stop reading from producers until `procession resume`. Received records are processed. No record is lost."""
    intake = _intake(at)
    gateways = intake.pause()
    print(json.dumps({"paused": gateways}) if as_json else f"paused {', '.join(gateways)} of {intake.directory}")


@with_groups
def resume(
    *,
    at: ControlOptions,
    as_json: Json = False,
) -> None:
    """Read from producers again, after `procession pause`."""
    intake = _intake(at)
    gateways = intake.resume()
    print(json.dumps({"resumed": gateways}) if as_json else f"resumed {', '.join(gateways)} of {intake.directory}")


@with_groups
def drain(
    *,
    at: ControlOptions,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Seconds until everything must be committed.")] = 300.0,
    as_json: Json = False,
) -> None:
    """Stop reading from producers, commit everything received, record the epoch, and stop the pipeline.

    If that takes longer than --timeout-s, the pipeline continues to run."""
    intake = _intake(at)
    done = intake.drain(timeout_s)
    epoch = "no epoch was committed" if done["epoch"] is None else f"last committed epoch {done['epoch']:,}"
    sentence = f"drained and stopped the pipeline in {intake.directory}: {epoch}, {done['committed']:,} records in"
    print(json.dumps(done) if as_json else sentence)


def _intake(at: ControlOptions) -> Intake:
    from procession.jobs.intake import Intake

    return Intake(*at.load())


def _cell(column: str, value: object) -> str:
    if value is None:
        return "-"
    if column == "started_s" and isinstance(value, float):
        return datetime.fromtimestamp(value).astimezone().isoformat(" ", "seconds")
    if isinstance(value, dict):
        return str(value["outcome"])
    return f"{value:,.0f}" if isinstance(value, int | float) and column != "pid" else str(value)
