"""`procession source …`: the connectors that send, as commands. Words in, one call out.

The one rule: as in `cli`. Before it the command line; after it `connectors` and `sdk/connector_program`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from procession.cli.command_options import CookieFile
from procession.cli.option_groups import with_groups
from procession.cli.tls_options import ClientTlsOptions
from procession.exit_status import Status

if TYPE_CHECKING:
    from procession.sdk.push_source import Inlet
    from procession.sdk.source_options import SourceOptions

source_app = typer.Typer(help="Connectors that send records to a gateway.", no_args_is_help=True)

PipelineDirectory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        show_default="the one in .procession",
        help="The pipeline's directory: its secret is shown.",
    ),
]
To = Annotated[
    str, typer.Option(help="The gateway's address, HOST:PORT; with several, of any of them, parted by commas.")
]
Rate = Annotated[float | None, typer.Option(help="Records a second at most.")]
Stamp = Annotated[bool, typer.Option("--stamp", help="Event time is the time of sending.")]
Acks = Annotated[Path | None, typer.Option(help="Note down in this file what is acknowledged, and when.")]
Patience = Annotated[
    float | None, typer.Option(show_default="for ever", help="Give up when no gateway is there for so many seconds.")
]
StopWait = Annotated[
    float,
    typer.Option(min=0, help="After the first signal, wait so many seconds for what was taken in; inf is for ever."),
]
Json = Annotated[bool, typer.Option("--json", help="Tell progress and the end of it as JSON objects, one a line.")]
FramingName = Annotated[
    str, typer.Option("--framing", help="What a record is: lines, fixed:N (bytes) or framed (u32 length, bytes).")
]

StreamName = Annotated[str, typer.Option("--stream", help="The stream's name; its id is made of it.")]
SpoolDirectory = Annotated[
    Path | None, typer.Option("--spool", help="Keep records in this directory until they are committed.")
]
BestEffort = Annotated[
    bool, typer.Option("--best-effort", help="Do without a spool: what is not committed dies with this program.")
]
KeptBytes = Annotated[
    int | None,
    typer.Option(min=1, show_default="1 GiB in a spool, else 64 MiB", help="Take no more in while so much is kept."),
]

GATEWAY = "127.0.0.1:7100"
STOP_WAIT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class SendOptions:
    """Options of every source: where it sends to, how fast, and what it presents."""

    to: To = GATEWAY
    rate: Rate = None
    stamp: Stamp = False
    patience_s: Patience = None
    directory: PipelineDirectory = None
    cookie_file: CookieFile = None
    tls: ClientTlsOptions
    as_json: Json = False

    def load(
        self, connector: str, instance: str, *, acks: Path | None = None, stop_wait_s: float = STOP_WAIT_S
    ) -> SourceOptions:
        """The options of the source's client, with secret and certificates read."""
        from procession.sdk.source_options import SourceOptions
        from procession.supervisor.cookies import source_cookie

        return SourceOptions(
            f"procession source {connector}",
            instance,
            source_cookie(self.cookie_file, self.directory, self.to),
            self.tls.load(),
            rate=self.rate,
            is_stamping=self.stamp,
            acks=acks,
            patience_s=self.patience_s,
            stop_wait_s=stop_wait_s,
        )


@dataclass(frozen=True, kw_only=True)
class KeepOptions:
    """Options of a source whose medium cannot be read twice: where records wait until they are committed."""

    spool: SpoolDirectory = None
    best_effort: BestEffort = False
    bytes_max: KeptBytes = None

    def open(self, stream: str, medium: str) -> Inlet:
        from procession.connectors.pushed_sources import Keeping

        return Keeping(self.spool, self.best_effort, self.bytes_max).inlet(stream, medium)


def _end(is_done: bool) -> None:
    if not is_done:
        raise typer.Exit(Status.UNCLEAN)


@source_app.command("file")
@with_groups
def source_file(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Files, or patterns such as 'logs/*.log'; each file is a stream."),
    ],
    framing: FramingName = "lines",
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on as files grow, and take new ones that match a pattern.")
    ] = False,
    poll_s: Annotated[float, typer.Option(min=0.001, help="With --follow: look every so many seconds.")] = 0.1,
    event_time: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Records are JSON objects, and this field has their event time."),
    ] = None,
    event_time_unit: Annotated[
        str, typer.Option(help="What numbers in that field count: s, ms, us or ns since 1970.")
    ] = "s",
    acks: Acks = None,
    *,
    send: SendOptions,
) -> None:
    """Send the records of files; ends with status 0 when all of them are committed.

    A record is known by the place of its first byte: files may grow between two runs, and must not change otherwise.
    Started again, it goes on after the last committed record.
    """
    from dataclasses import replace

    from procession.connectors.file_source import FOLLOWED_MAX, FileSource
    from procession.connectors.framing import parse_framing
    from procession.connectors.timefield import EventTimeField, checked_unit
    from procession.sdk.connector_program import run_source

    field = None if event_time is None else EventTimeField(event_time, checked_unit(event_time_unit))
    source = FileSource(paths, framing=parse_framing(framing), is_following=follow, poll_s=poll_s, event_time=field)
    options = send.load("file", Path(paths[0]).name, acks=acks)
    if follow:
        options = replace(options, streams_at_once_max=FOLLOWED_MAX)
    _end(run_source(source, send.to, options, is_json=send.as_json))


@source_app.command("stdin")
@with_groups
def source_stdin(
    stream: StreamName = "stdin",
    framing: FramingName = "lines",
    acks: Acks = None,
    stop_wait_s: StopWait = STOP_WAIT_S,
    *,
    keep: KeepOptions,
    send: SendOptions,
) -> None:
    """Send what comes on standard input; ends with status 0 when all of it is committed.

    A pipe cannot be read twice. With --spool, a record is safe once it is in that directory: started again with the
    same spool, it sends what is left there, then what comes. Without, --best-effort must be given: a gateway may come
    and go, but if this program is killed, what is not committed is lost.
    """
    from procession.connectors.framing import parse_framing
    from procession.connectors.pushed_sources import run_pushed
    from procession.connectors.stdin_source import take_in

    shape = parse_framing(framing)
    options = send.load("stdin", stream, acks=acks, stop_wait_s=stop_wait_s)
    inlet = keep.open(stream, "Standard input")
    _end(run_pushed(inlet, lambda into: take_in(into, 0, shape), send.to, options, is_json=send.as_json))


@source_app.command("tcp-lines")
@with_groups
def source_tcp_lines(
    listen: Annotated[str, typer.Option(help="Where programs connect to, HOST:PORT; port 0 takes any.")],
    stream: StreamName = "tcp-lines",
    line_bytes_max: Annotated[int, typer.Option(min=1, help="Who sends a longer line is cut off.")] = 65536,
    connections_max: Annotated[int, typer.Option(min=1, help="So many may be connected.")] = 256,
    acks: Acks = None,
    stop_wait_s: StopWait = STOP_WAIT_S,
    *,
    keep: KeepOptions,
    send: SendOptions,
) -> None:
    """Listen on a TCP port and send every line that comes, of all connections, as one stream; until Ctrl-C.

    A socket cannot be read twice. With --spool, a line is safe once it is in that directory. Without, --best-effort
    must be given: if this program is killed, what is not committed is lost.
    """
    from procession.address import listening_socket, parse_address
    from procession.connectors.pushed_sources import run_pushed
    from procession.connectors.tcp_source import Door

    options = send.load("tcp-lines", stream, acks=acks, stop_wait_s=stop_wait_s)
    inlet = keep.open(stream, "A TCP connection")
    with listening_socket(parse_address(listen)) as listener:
        door = Door(listener, line_bytes_max, connections_max)
        _end(run_pushed(inlet, door.take_in, send.to, options, is_json=send.as_json))


@source_app.command("udp")
@with_groups
def source_udp(
    listen: Annotated[str, typer.Option(help="Where programs send datagrams to, HOST:PORT; port 0 takes any.")],
    stream: StreamName = "udp",
    bytes_max: Annotated[int, typer.Option(min=1, help="Drop datagrams while so much waits.")] = 16 * 1024 * 1024,
    stop_wait_s: StopWait = STOP_WAIT_S,
    *,
    send: SendOptions,
) -> None:
    """Send every datagram that comes to a UDP port, as a record that is sent at most once; until Ctrl-C.

    Best effort: nobody can ask for a datagram again, so these records are no part of the promise that every record is
    committed once. They are sent as ephemeral messages, in the draft of the protocol, and counted apart.
    """
    from dataclasses import replace

    from procession.address import parse_address
    from procession.connectors.udp_source import UdpSource, datagram_socket
    from procession.sdk.connector_program import run_source

    options = send.load("udp", stream, stop_wait_s=stop_wait_s)
    source = UdpSource(datagram_socket(parse_address(listen)), stream, bytes_max=bytes_max)
    options = replace(options, dialect="draft", report=source.hear)
    try:
        _end(run_source(source, send.to, options, is_json=send.as_json, on_stop=source.stop, beside=source.listen))
    finally:
        source.close()


@source_app.command("generator")
@with_groups
def source_generator(
    records: Annotated[
        int | None, typer.Option(min=0, show_default="without end", help="How many, in each stream.")
    ] = None,
    size: Annotated[int, typer.Option(min=0, help="Bytes of a record.")] = 100,
    keys: Annotated[int, typer.Option(min=0, help="So many different keys; none if 0.")] = 0,
    seed: Annotated[int, typer.Option(help="Other records, and other streams.")] = 0,
    streams: Annotated[int, typer.Option(min=1, help="How many streams.")] = 1,
    name: Annotated[str, typer.Option(help="Streams are named NAME-SEED-0 and so on.")] = "generator",
    show: Annotated[
        bool, typer.Option("--print", help="Print the records instead, a line each: what `verify` compares with.")
    ] = False,
    acks: Acks = None,
    *,
    send: SendOptions,
) -> None:
    """Send made records, for tests and measurements; ends with status 0 when all of them are committed.

    What a record is depends on seed, stream and its number only. Started again, it goes on after what is committed;
    another --name or --seed begins anew.
    """
    import sys

    from procession.connectors.generator_source import GeneratorSource, Recipe
    from procession.sdk.connector_program import run_source

    source = GeneratorSource(Recipe(records, size, keys, seed, streams, name))
    if show:
        for stream in source.streams():
            for batch in source.read(stream, None):
                sys.stdout.buffer.write(b"\n".join([*batch.payloads.to_pylist(), b""]))
        return
    options = send.load("generator", name, acks=acks)
    _end(run_source(source, send.to, options, is_json=send.as_json))
