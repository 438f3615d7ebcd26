"""The commands `procession upgrade` and `procession rollback`: change the program of a pipeline, or return to a
savepoint.

As in `cli/main`, they only parse and print; `jobs/upgrade_switch` and `savepoints/upgrade_steps` do the work.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from procession.cli.command_options import AppSettings, PipelineDirectory
from procession.exit_status import Status

if TYPE_CHECKING:
    from procession.driver.app_file import App
    from procession.savepoints.upgrade_steps import UpgradeComparison

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def upgrade(
    app_file: Annotated[Path, typer.Argument(metavar="APP.PY", help="The new program.")],
    directory: Annotated[
        Path | None, typer.Option("--dir", show_default=".procession/NAME", help="The pipeline's directory.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Compare, try the first epoch, and change nothing.")
    ] = False,
    savepoint: Annotated[
        str | None, typer.Option(show_default="before-upgrade-TIME", help="The name of the savepoint to go back to.")
    ] = None,
    keep_input: Annotated[
        bool,
        typer.Option("--keep-input", help="The savepoint keeps later records, so that a later rollback is possible."),
    ] = False,
    sets: AppSettings = None,
    as_json: Json = False,
) -> None:
    """Switch a pipeline to a new program and keep its states, between two epochs. Producers only wait.

    Prints the effect on the states of each stage, tries the first epoch on real input without committing it, and
    creates a savepoint. If the new program fails before its first commit, the old one continues. A stopped pipeline
    is changed immediately; start it with `procession run APP.PY`."""
    from procession.deployment.run_claim import running
    from procession.driver.app_file import load_app
    from procession.driver.app_values import export

    export(sets or [])
    app = load_app(app_file)
    directory = directory or Path(".procession") / app.graph.name
    at = running(directory)
    if at is not None and not dry_run:
        check_other_file(Path(at.app), app_file)
    name = savepoint or time.strftime("before-upgrade-%Y%m%dT%H%M%S", time.gmtime())
    comparison, tried = _tried(directory, app, is_quiet=as_json)
    result: dict[str, Any] = {"directory": str(directory), **comparison.described(), "tried": tried}
    if dry_run:
        result |= {"state": "not changed"}
    elif at is None:
        result |= _changed(directory, app_file, app, name, comparison, keep_input=keep_input)
    else:
        result |= {"savepoint": name} | _switched(directory, app_file, name, is_quiet=as_json, keep_input=keep_input)
    if as_json:
        print(json.dumps(result))
    elif result["state"] == "failed" or result["state"] == "went back":
        typer.echo(f"{result['state']}: {result['sentence']}\n  Next: {result['next_step']}", err=True)
    else:
        print(_sentence(result, app_file, directory))
    if result["state"] in ("failed", "went back"):
        raise typer.Exit(Status.UNCLEAN)


def rollback(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the savepoint.")],
    directory: PipelineDirectory = None,
    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--input",
            help="A file that your producer has sent and will send again (repeatable). Files that `run` has read need"
            " not be named.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Roll a stopped pipeline back to a savepoint. Then start the program of that time.

    If epochs were committed since, their output is removed. This requires that all sinks can remove output (files,
    lanes, Delta and Iceberg tables), and that the later input is available: in the log (`savepoint create
    --keep-input`), or from sources that can be read again (files, Kafka)."""
    from procession.cli.streams_table import chosen_pipeline
    from procession.deployment.run_claim import claimed
    from procession.monitoring.job_status import pipeline_name
    from procession.savepoints.rollback import roll_back
    from procession.savepoints.savepoint import find

    directory = chosen_pipeline(directory)
    saved = find(directory, name)
    with claimed(directory, pipeline_name(directory), Path("procession")):
        done = roll_back(directory, saved, inputs or [])
    text = f"rolled the pipeline in {directory} back to savepoint {name!r} (epoch {saved.epoch:,})"
    if done.epochs:
        again = f"{done.records:,} rows of the log are processed again"
        if done.streams:
            again = f"the sources of {done.streams:,} streams send the later records again"
        text += f"; undid {done.epochs:,} committed epochs; {again}"
    result = {"rolled_back_to": name, "epoch": saved.epoch, "epochs_taken_back": done.epochs}
    print(
        json.dumps(result | {"rows_again": done.records, "streams_again": done.streams, "sinks": dict(done.sinks)})
        if as_json
        else text
    )


def check_other_file(running: Path, new: Path) -> None:
    """Raise UsageError if the new program is in the file of the running one."""
    from procession.errors import UsageError

    if running.resolve() == new.resolve():
        raise UsageError(
            f"{new} is the file that the running program was started from, which is needed to go back.",
            next_step="Put the new program into another file or directory, and upgrade to that.",
        )


def _tried(directory: Path, app: App, *, is_quiet: bool) -> tuple[UpgradeComparison, str]:
    """Compare and try the new program on a temporary savepoint."""
    from procession.savepoints.savepoint_create import trial
    from procession.savepoints.upgrade_steps import compare, try_first_epoch

    comparison = compare(directory, app)
    if not is_quiet:
        print("\n".join(comparison.sentences))
    with trial(directory) as saved:
        tried = try_first_epoch(directory, app, saved)
    if not is_quiet:
        print(f"first epoch: {tried}; nothing is committed by that")
    return comparison, tried


def _changed(
    directory: Path, app_file: Path, app: App, name: str, comparison: UpgradeComparison, *, keep_input: bool
) -> dict[str, Any]:
    from procession.deployment.run_claim import claimed
    from procession.savepoints.savepoint_create import create
    from procession.savepoints.upgrade_steps import apply, check_delivered

    with claimed(directory, app.graph.name, app_file):
        check_delivered(directory, comparison)
        create(directory, name, keep_input=keep_input)
        apply(directory, app)
    return {"state": "changed", "savepoint": name}


def _switched(directory: Path, app_file: Path, name: str, *, is_quiet: bool, keep_input: bool) -> dict[str, Any]:
    from procession.jobs.upgrade_switch import request_upgrade

    told = 0
    found: dict[str, Any] = {}
    for found in request_upgrade(directory, app_file, name, keep_input=keep_input):
        for sentence in found["told"][told:]:
            told += 1
            if not is_quiet:
                print(sentence, flush=True)
    return {key: value for key, value in found.items() if key not in ("id", "told")}


def _sentence(result: dict[str, Any], app_file: Path, directory: Path) -> str:
    if result["state"] == "not changed":
        return "nothing was changed (--dry-run)"
    saved = f"the savepoint is {result['savepoint']!r}"
    if result["state"] == "changed":
        return f"changed the stopped pipeline; {saved}; start it with `procession run {app_file} --dir {directory}`"
    until = "until the new one had committed, or was ready and had no input"
    return f"upgraded in {result['seconds']:g} s, from the stop of the old program {until}; {saved}"
