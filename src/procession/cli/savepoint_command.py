"""The commands `procession savepoint …`: keep the state of a pipeline under a name, and start a pipeline from it.

As in `cli/main`, they only parse and print; `savepoints/savepoint` and `savepoints/savepoint_restore` do the work.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from procession.cli.command_options import PipelineDirectory, with_groups
from procession.cli.replica_options import ReplicaAccess
from procession.log_format import note

if TYPE_CHECKING:
    from procession.savepoints.savepoint import Savepoint


class SavepointGroup(TyperGroup):
    """`procession savepoint NAME` is `procession savepoint create NAME`. A misspelt command is an error."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not get_close_matches(args[0], self.commands, cutoff=0.7):
            args = ["create", *args]
        return super().resolve_command(ctx, args)


savepoint_app = typer.Typer(
    cls=SavepointGroup,
    help="Keep the state of a pipeline under a name (`savepoint NAME`), inspect it, or start a pipeline from it.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the savepoint.")]
NameOrCopy = Annotated[
    str,
    typer.Argument(
        metavar="NAME|PATH|URL",
        help="The name of a savepoint, or a copy: its directory, with a /, s3://BUCKET/PREFIX, or"
        " sos://HOST:PORT,…/NAME.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
KEEP_INPUT_BYTES_MAX = 1024 * 1024 * 1024
COLUMNS = ("name", "created", "epoch", "records_in", "files", "bytes", "kept_input")


@savepoint_app.command()
def create(
    name: Name,
    directory: PipelineDirectory = None,
    keep_input: Annotated[
        bool,
        typer.Option(
            "--keep-input",
            help="Keep the records that are committed later in the log, so that a rollback can process them again.",
        ),
    ] = False,
    keep_input_bytes_max: Annotated[
        int, typer.Option(min=0, help="Stop keeping these records when they exceed this many bytes.")
    ] = KEEP_INPUT_BYTES_MAX,
    as_json: Json = False,
) -> None:
    """Create a savepoint of the last committed epoch. The pipeline may keep running."""
    from procession.cli.streams_table import chosen_pipeline
    from procession.savepoints.savepoint_create import create as make

    made = make(chosen_pipeline(directory), name, keep_input=keep_input, keep_input_bytes_max=keep_input_bytes_max)
    _show(made, as_json=as_json)


@savepoint_app.command("list")
def list_savepoints(directory: PipelineDirectory = None, as_json: Json = False) -> None:
    """List the savepoints of a pipeline, the oldest first."""
    from procession.cli.streams_table import aligned, chosen_pipeline
    from procession.savepoints.savepoint import savepoints

    found = [savepoint.described() for savepoint in savepoints(chosen_pipeline(directory))]
    if as_json:
        print(json.dumps({"savepoints": found}))
        return
    rows = [[_cell(column, savepoint) for column in COLUMNS] for savepoint in found]
    titles = [column.replace("_", " ") for column in COLUMNS]
    print("\n".join(aligned(titles, rows, ("name", "created")) if rows else ["there are no savepoints"]))


@savepoint_app.command()
@with_groups
def describe(
    name: NameOrCopy, directory: PipelineDirectory = None, as_json: Json = False, *, access: ReplicaAccess
) -> None:
    """Show what a savepoint contains: its epoch, log positions, the ends of the sinks' outputs, and its stages."""
    with _found(name, directory, access) as savepoint:
        _show(savepoint, as_json=as_json)


@savepoint_app.command()
@with_groups
def verify(
    name: NameOrCopy, directory: PipelineDirectory = None, as_json: Json = False, *, access: ReplicaAccess
) -> None:
    """Read all files of a savepoint and compare them with their checksums."""
    with _found(name, directory, access) as savepoint:
        files = savepoint.verify()
    result = {"name": savepoint.manifest["name"], "files": files, "bytes": savepoint.size_bytes, "is_intact": True}
    text = f"savepoint {savepoint.manifest['name']!r} is intact: {files:,} files, {savepoint.size_bytes:,} bytes"
    print(json.dumps(result) if as_json else text)


@savepoint_app.command()
@with_groups
def copy(
    name: NameOrCopy,
    to: Annotated[
        str,
        typer.Argument(
            metavar="TO",
            help="The new directory of the copy, s3://BUCKET/PREFIX, or sos://HOST:PORT,…/NAME. It must not exist yet.",
        ),
    ],
    directory: PipelineDirectory = None,
    as_json: Json = False,
    *,
    access: ReplicaAccess,
) -> None:
    """Copy a savepoint to a new directory, for instance on another disk, to S3 or to object services, and verify the
    copy.

    For S3, credentials, region and endpoint come from the environment, such as AWS_ACCESS_KEY_ID. Object services
    (`procession sos`) need --replica-cookie-file."""
    from procession.savepoints.savepoint_store import is_remote, upload
    from procession.savepoints.savepoint_volume import SCHEME, send, split_place

    with _found(name, directory, access) as copied:
        if to.startswith(SCHEME):
            addresses, volume = split_place(to)
            send(copied, volume, access.load(addresses), note)
        elif is_remote(to):
            upload(copied, to)
        else:
            copied = copied.copy(Path(to))
    text = f"copied savepoint {copied.manifest['name']!r} to {to}: {copied.size_bytes:,} bytes"
    print(json.dumps(copied.described()) if as_json else text)


@savepoint_app.command()
def drop(name: Name, directory: PipelineDirectory = None, as_json: Json = False) -> None:
    """Remove a savepoint. Its files are deleted, unless the pipeline still uses them."""
    from procession.cli.streams_table import chosen_pipeline
    from procession.savepoints.savepoint import find

    find(chosen_pipeline(directory), name).drop()
    print(json.dumps({"dropped": name}) if as_json else f"dropped savepoint {name!r}")


@savepoint_app.command()
@with_groups
def restore(
    name: NameOrCopy,
    to: Annotated[Path, typer.Argument(metavar="TO", help="The new pipeline's directory. It must not exist yet.")],
    directory: PipelineDirectory = None,
    outputs: Annotated[
        Literal["new", "continue"],
        typer.Option(
            help="new: sinks must be empty. continue: sinks must be at the savepoint's positions, and the new"
            " pipeline takes them over."
        ),
    ] = "new",
    as_json: Json = False,
    *,
    access: ReplicaAccess,
) -> None:
    """Create a new pipeline's directory from a savepoint. Then start it with `procession run APP.PY --dir TO`.

    It has a new checkpoint id. Its streams continue after the savepoint, so producers must send the later records
    again."""
    from procession.savepoints.savepoint_restore import restore as make

    with _found(name, directory, access, to.absolute().parent) as savepoint:
        checkpoint_id = make(savepoint, to, continues_outputs=outputs == "continue")
    result = {"directory": str(to), "checkpoint_id": checkpoint_id, "epoch": savepoint.epoch, "outputs": outputs}
    text = (
        f"restored savepoint {savepoint.manifest['name']!r} to {to}; start it with `procession run APP.PY --dir {to}`"
    )
    print(json.dumps(result) if as_json else text)


@contextmanager
def _found(name: str, directory: Path | None, access: ReplicaAccess, beside: Path | None = None) -> Iterator[Savepoint]:
    from procession.cli.streams_table import chosen_pipeline
    from procession.savepoints.savepoint import find, load
    from procession.savepoints.savepoint_store import downloaded, is_remote
    from procession.savepoints.savepoint_volume import SCHEME, fetched, split_place

    if name.startswith(SCHEME):
        addresses, volume = split_place(name)
        with fetched(volume, access.load(addresses), beside, note) as savepoint:
            yield savepoint
    elif is_remote(name):
        with downloaded(name, beside) as savepoint:
            yield savepoint
    else:
        yield load(Path(name)) if "/" in name else find(chosen_pipeline(directory), name)


def _show(savepoint: Savepoint, *, as_json: bool) -> None:
    found = savepoint.described()
    if as_json:
        print(json.dumps(found))
        return
    print(f"savepoint {found['name']!r} of pipeline {found['pipeline']!r}, made {_time(found['created_s'])}")
    size = f"{found['files']:,} files, {found['bytes']:,} bytes"
    print(f"epoch {found['epoch']:,}; {found['records_in']:,} records in; {size}")
    for gateway, position in found["log_positions"].items():
        print(f"{gateway}: the log up to record {position:,}")
    for sink, end in found["sinks"].items():
        print(f"sink {sink!r}: output up to {end:,}")
    if kept := found["kept_input"]:
        what = f"{kept['bytes']:,} of at most {kept['bytes_max']:,} bytes"
        print(
            f"later input: {what} kept"
            if kept["state"] == "kept"
            else "later input: no longer kept, because it was too large"
        )
    for stage, kind in found["stages"].items():
        print(f"stage {stage!r} ({kind})")


def _time(created_s: float) -> str:
    return datetime.fromtimestamp(created_s).astimezone().isoformat(" ", "seconds")


def _cell(column: str, savepoint: dict[str, Any]) -> str:
    if column == "created":
        return _time(savepoint["created_s"])
    value = savepoint[column]
    if column == "kept_input":
        return "–" if value is None else f"{value['bytes']:,}" if value["state"] == "kept" else "released"
    return f"{value:,}" if isinstance(value, int) else str(value)
