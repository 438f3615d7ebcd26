"""`procession sink jsonl TARGET DIR`: what the supervisor starts."""

from pathlib import Path
from typing import Annotated

import typer

from procession.cli.command_options import with_groups
from procession.cli.sink_commands import Directory, ReceiveOptions, Records


@with_groups
def sink_jsonl(
    target: Annotated[Path, typer.Argument(help="Directory for the files.")],
    directory: Directory,
    prefix: Annotated[str, typer.Option(help="Prefix of the directories' names.")] = "part",
    records: Records = "messages",
    *,
    receive: ReceiveOptions,
) -> None:
    """Write each committed epoch to a file of JSON lines, TARGET/PREFIX-OUTPUT/POSITION.jsonl."""
    from procession.sdk import run_sink
    from procession.sdk.record_blocks import RecordForm
    from procession_jsonl.output import JsonLines

    form = RecordForm(records)
    run_sink(
        lambda instance: JsonLines(target, f"{prefix}-{instance}", form),
        directory,
        receive.listen,
        cookie=receive.cookie(),
        tls=receive.tls.load(),
    )
