"""The commands `procession state …`: show the committed states of a pipeline's stages.

As in `cli/main`, they only parse and print; `verify/committed_states` reads. They change nothing, and work while the
pipeline runs and after it has stopped.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from procession.cli.command_options import PipelineDirectory

if TYPE_CHECKING:
    from procession.verify.committed_states import StageStates

state_app = typer.Typer(
    help="Show the states of a pipeline's stages after its last committed epoch.", no_args_is_help=True
)

Stage = Annotated[str, typer.Argument(metavar="STAGE", help="The stage's name, as `state list` prints it.")]


@state_app.command("list")
def list_stages(
    directory: PipelineDirectory = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """List the stages with state: their kind, and the number of keys, files and bytes."""
    stages = [
        {
            "stage": found.stage,
            "kind": found.kind,
            "keys": found.count(),
            "tasks": len(found.tasks),
            "files": found.files,
            "bytes": found.size,
            "epoch": found.epoch,
        }
        for found in _stages(directory).values()
    ]
    if as_json:
        print(json.dumps({"stages": stages}))
        return
    from procession.cli.streams_table import aligned

    columns = ("stage", "kind", "keys", "tasks", "files", "bytes", "epoch")
    rows = [[f"{row[name]:,}" if isinstance(row[name], int) else str(row[name]) for name in columns] for row in stages]
    lines = aligned(columns, rows, ("stage", "kind")) if rows else ["no stage of this pipeline has a state yet"]
    print("\n".join(lines))


@state_app.command()
def get(
    stage: Stage,
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="The key, as text, or as JSON in the form that `state scan` prints.")
    ],
    directory: PipelineDirectory = None,
) -> None:
    """Print the state of one key as JSON. Exits with status 1 if the key has no state."""
    from procession.exit_status import Status
    from procession.operators.json_view import keys_from

    found = _stage(directory, stage)
    for encoded in keys_from(key):
        if views := found.find(encoded):
            print(json.dumps(views[0], ensure_ascii=False))
            return
    typer.echo(f"stage {stage!r} has no state for the key {key} after epoch {found.epoch}", err=True)
    raise typer.Exit(Status.UNCLEAN)


@state_app.command()
def scan(
    stage: Stage,
    directory: PipelineDirectory = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of keys.")] = 100,
) -> None:
    """Print keys and their states, one JSON object per line, in no particular order."""
    for entry in islice(_stage(directory, stage).scan(), limit):
        print(json.dumps(entry, ensure_ascii=False))


@state_app.command()
def export(
    stage: Stage,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The Parquet file to write. It must not exist yet.")],
    directory: PipelineDirectory = None,
) -> None:
    """Write all keys and their states to a Parquet file with the columns key and state, both as JSON text."""
    from procession.errors import UsageError
    from procession.verify.committed_states import export as write

    found = _stage(directory, stage)
    try:
        count = write(found, path)
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.", next_step="Name a new file.") from error
    print(f"{count:,} keys of stage {stage!r} after epoch {found.epoch:,} written to {path}")


def _stages(directory: Path | None) -> dict[str, StageStates]:
    from procession.cli.streams_table import chosen_pipeline
    from procession.verify.committed_states import committed_states

    return committed_states(chosen_pipeline(directory))


def _stage(directory: Path | None, name: str) -> StageStates:
    from procession.errors import UsageError

    stages = _stages(directory)
    if name not in stages:
        known = ", ".join(stages) or "none has a state yet"
        raise UsageError(f"There is no stage {name!r} with a state.", next_step=f"Stages with states: {known}.")
    return stages[name]
