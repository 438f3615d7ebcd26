"""`procession source …`: the connectors that send, as commands. Words in, one call out.

The one rule: as in `cli`. Before it the command line; after it `connectors` and `sdk.program`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from procession.sdk.options import SourceOptions

source_app = typer.Typer(help="Connectors that send records to a gateway.", no_args_is_help=True)

CookieFile = Annotated[Path | None, typer.Option(help="A file with the secret that both sides must show.")]
To = Annotated[str, typer.Option(help="The gateway's address, HOST:PORT.")]
Rate = Annotated[float | None, typer.Option(help="Records a second at most.")]
Stamp = Annotated[bool, typer.Option("--stamp", help="Event time is the time of sending.")]
Acks = Annotated[Path | None, typer.Option(help="Note down in this file what is acknowledged, and when.")]
Patience = Annotated[
    float | None, typer.Option(show_default="for ever", help="Give up when no gateway is there for so many seconds.")
]
Json = Annotated[bool, typer.Option("--json", help="Tell progress and the end of it as JSON objects, one a line.")]
FramingName = Annotated[
    str, typer.Option("--framing", help="What a record is: lines, fixed:N (bytes) or framed (u32 length, bytes).")
]

GATEWAY = "127.0.0.1:7100"


def _options(
    connector: str,
    instance: str,
    cookie_file: Path | None,
    *,
    rate: float | None,
    stamp: bool,
    acks: Path | None,
    patience_s: float | None,
) -> SourceOptions:
    from procession.ops.cookie import read_cookie
    from procession.sdk.options import SourceOptions

    return SourceOptions(
        f"procession source {connector}",
        instance,
        read_cookie(cookie_file),
        rate=rate,
        is_stamping=stamp,
        acks=acks,
        patience_s=patience_s,
    )


@source_app.command("file")
def source_file(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Files, or patterns such as 'logs/*.log'; each file is a stream."),
    ],
    to: To = GATEWAY,
    framing: FramingName = "lines",
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on as files grow, and take new ones that match a pattern.")
    ] = False,
    poll_s: Annotated[float, typer.Option(min=0.001, help="With --follow: look every so many seconds.")] = 0.1,
    rate: Rate = None,
    stamp: Stamp = False,
    acks: Acks = None,
    patience_s: Patience = None,
    cookie_file: CookieFile = None,
    as_json: Json = False,
) -> None:
    """Send the records of files; ends with status 0 when all of them are committed.

    A record is known by the place of its first byte: files may grow between two runs, and must not change otherwise.
    Started again, it goes on after the last committed record.
    """
    from dataclasses import replace

    from procession.connectors.file import FOLLOWED_MAX, FileSource
    from procession.connectors.framing import parse_framing
    from procession.sdk.program import run_source

    source = FileSource(paths, framing=parse_framing(framing), is_following=follow, poll_s=poll_s)
    options = _options(
        "file", Path(paths[0]).name, cookie_file, rate=rate, stamp=stamp, acks=acks, patience_s=patience_s
    )
    if follow:
        options = replace(options, streams_at_once_max=FOLLOWED_MAX)
    if not run_source(source, to, options, is_json=as_json):
        raise typer.Exit(1)
