"""The commands `procession source …`: run the sources that we ship.

As in `cli/main`, they only parse; `connectors` and `sdk/connector_program` do the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from procession.cli.command_options import CookieFile, with_groups
from procession.cli.connector_group import SourceGroup
from procession.cli.tls_options import ClientTlsOptions
from procession.exit_status import Status

if TYPE_CHECKING:
    from procession.sdk.event_time_field import EventTimeField
    from procession.sdk.push_source import PushStream
    from procession.sdk.source_options import SourceOptions

source_app = typer.Typer(cls=SourceGroup, help="Connectors that send records to a gateway.", no_args_is_help=True)

PipelineDirectory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        show_default="the one in .procession",
        help="The pipeline's directory, which has the secret.",
    ),
]
To = Annotated[str, typer.Option(help="Address of a gateway, HOST:PORT, or of several, separated by commas.")]
SourceName = Annotated[
    str | None,
    typer.Option("--source", metavar="NAME", help="Send for the source of this name, which has from_= in the app."),
]
Rate = Annotated[float | None, typer.Option(help="Maximum records per second.")]
Stamp = Annotated[bool, typer.Option("--stamp", help="Use the time of sending as event time.")]
EventTime = Annotated[
    str | None,
    typer.Option(
        "--event-time-field", "--event-time", metavar="FIELD", help="JSON field that holds a record's event time."
    ),
]
EventTimeUnit = Annotated[
    str, typer.Option("--event-time-unit", help="Unit of numbers in that field: s, ms, us or ns since 1970.")
]
Acks = Annotated[Path | None, typer.Option(help="Log acknowledgements and their times to this file.")]
Patience = Annotated[
    float | None, typer.Option(show_default="no limit", help="Give up after this many seconds without a gateway.")
]
StopWait = Annotated[
    float,
    typer.Option(
        min=0, help="After the first signal, wait this many seconds for the commit of received records. inf: no limit."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print progress and the result as JSON objects, one per line.")]
FramingName = Annotated[
    str,
    typer.Option(
        "--framing", help="How records are delimited: lines, fixed:N (bytes) or framed (u32 length, then bytes)."
    ),
]

StreamName = Annotated[str, typer.Option("--stream", help="Name of the stream. Its id is derived from the name.")]
SpoolDirectory = Annotated[
    Path | None, typer.Option("--spool", help="Store records in this directory until they are committed.")
]
BestEffort = Annotated[
    bool, typer.Option("--best-effort", help="Run without a spool. Uncommitted records are lost if this program dies.")
]
KeptBytes = Annotated[
    int | None,
    typer.Option(
        min=1,
        show_default="1 GiB in a spool, else 64 MiB",
        help="Stop reading while this many bytes are not committed.",
    ),
]

GATEWAY = "127.0.0.1:7100"
STOP_WAIT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class SendOptions:
    """Options of every source: its gateway, rate, secret and certificates."""

    to: To = GATEWAY
    rate: Rate = None
    stamp: Stamp = False
    event_time_field: EventTime = None
    event_time_unit: EventTimeUnit = "s"
    patience_s: Patience = None
    source_name: SourceName = None
    directory: PipelineDirectory = None
    cookie_file: CookieFile = None
    tls: ClientTlsOptions
    as_json: Json = False

    def load(
        self, connector: str, instance: str, *, acks: Path | None = None, stop_wait_s: float = STOP_WAIT_S
    ) -> SourceOptions:
        """Return the options of the source's client, with the secret and the certificates loaded."""
        from procession.deployment.cookies import source_cookie
        from procession.record import share_of
        from procession.sdk.source_options import SourceOptions

        return SourceOptions(
            f"procession source {connector}",
            instance,
            source_cookie(self.cookie_file, self.directory, self.to),
            self.tls.load(),
            rate=self.rate,
            is_stamping=self.stamp,
            event_time=self._event_time(),
            share=None if self.source_name is None else share_of(self.source_name),
            acks=acks,
            patience_s=self.patience_s,
            stop_wait_s=stop_wait_s,
        )

    def _event_time(self) -> EventTimeField | None:
        from procession.errors import UsageError
        from procession.sdk.event_time_field import EventTimeField, checked_unit

        unit = checked_unit(self.event_time_unit)
        if self.event_time_field is None:
            return None
        if self.stamp:
            raise UsageError("--stamp and --event-time-field exclude each other.", next_step="Use one of them.")
        return EventTimeField(self.event_time_field, unit)


@dataclass(frozen=True, kw_only=True)
class KeepOptions:
    """Options of a source whose input cannot be replayed, so that records are kept until they are committed."""

    spool: SpoolDirectory = None
    best_effort: BestEffort = False
    bytes_max: KeptBytes = None

    def open(self, stream: str, medium: str) -> PushStream:
        from procession.connectors.pushed_sources import SpoolOptions

        return SpoolOptions(self.spool, self.best_effort, self.bytes_max).open_stream(stream, medium)


def _end(is_done: bool) -> None:
    if not is_done:
        raise typer.Exit(Status.UNCLEAN)


@source_app.command("file")
@with_groups
def source_file(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Files or patterns such as 'logs/*.log'. Each file is a stream."),
    ],
    framing: FramingName = "lines",
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep reading as files grow, and add new files that match a pattern.")
    ] = False,
    poll_s: Annotated[
        float, typer.Option(min=0.001, help="With --follow: seconds between two checks for new data.")
    ] = 0.1,
    one_stream: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Send all files of the pattern as one stream, in the order of their names."),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="With --one-stream: directory for the positions of the files in the stream.")
    ] = None,
    acks: Acks = None,
    *,
    send: SendOptions,
) -> None:
    """Send the records of files. Exits with status 0 when all of them are committed.

    A record is identified by the offset of its first byte. Files may grow between two runs, but must not change in
    other ways. A restart continues after the last committed record.

    With --one-stream, files are read one after the other, and a file is complete when the next one exists. With
    --follow, files that appear later are read, too; their names must sort after all earlier ones.
    """
    from dataclasses import replace

    from procession.connectors.file_sequence import FileSequence
    from procession.connectors.file_source import FOLLOWED_MAX, FileSource
    from procession.connectors.framing import parse_framing
    from procession.errors import UsageError
    from procession.sdk.connector_program import run_source

    options = send.load("file", Path(paths[0]).name, acks=acks)
    shape = parse_framing(framing)
    source: FileSource | FileSequence
    if (one_stream is None) != (state is None) or (one_stream is not None and len(paths) > 1):
        raise UsageError(
            "--one-stream takes one pattern and needs --state.",
            next_step="Write: procession source file 'PATTERN' --one-stream NAME --state DIR",
        )
    if one_stream is not None and state is not None:
        source = FileSequence(paths[0], one_stream, state, framing=shape, is_following=follow, poll_s=poll_s)
    else:
        source = FileSource(paths, framing=shape, is_following=follow, poll_s=poll_s)
    if follow:
        options = replace(options, streams_at_once_max=FOLLOWED_MAX)
    _end(run_source(source, send.to, options, is_json=send.as_json))


@source_app.command("given", hidden=True)
@with_groups
def source_given(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file of records that Pipeline.run has written.")],
    *,
    send: SendOptions,
) -> None:
    """Send the records that a program has given to Pipeline.run."""
    from procession.connectors.given_records import GivenRecords
    from procession.sdk.connector_program import run_source

    _end(run_source(GivenRecords(path), send.to, send.load("given", path.name), is_json=send.as_json))


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
    """Send records from standard input. Exits with status 0 when all of them are committed.

    A pipe cannot be read twice. With --spool, a record is safe once it is in that directory: a restart with the same
    spool first sends the remaining records. Without a spool, --best-effort is required: a lost connection loses no
    records, but a kill of this program loses the uncommitted ones.
    """
    from procession.connectors.framing import parse_framing
    from procession.connectors.pushed_sources import run_pushed
    from procession.connectors.stdin_source import take_in

    shape = parse_framing(framing)
    options = send.load("stdin", stream, acks=acks, stop_wait_s=stop_wait_s)
    pushed = keep.open(stream, "Standard input")
    _end(run_pushed(pushed, lambda into: take_in(into, 0, shape), send.to, options, is_json=send.as_json))


@source_app.command("tcp-lines")
@with_groups
def source_tcp_lines(
    listen: Annotated[str, typer.Option(help="Address to listen on, HOST:PORT. Port 0 takes a free port.")],
    stream: StreamName = "tcp-lines",
    line_bytes_max: Annotated[
        int, typer.Option(min=1, help="Maximum bytes per line. A connection that sends a longer line is closed.")
    ] = 65536,
    connections_max: Annotated[int, typer.Option(min=1, help="Maximum number of connections.")] = 256,
    acks: Acks = None,
    stop_wait_s: StopWait = STOP_WAIT_S,
    *,
    keep: KeepOptions,
    send: SendOptions,
) -> None:
    """Listen on a TCP port, and send the lines of all connections as one stream, until Ctrl-C.

    A socket cannot be read twice. With --spool, a line is safe once it is in that directory. Without a spool,
    --best-effort is required: if this program is killed, uncommitted lines are lost.
    """
    from procession.address import listening_socket, parse_address
    from procession.connectors.pushed_sources import run_pushed
    from procession.connectors.tcp_source import TcpMedium

    options = send.load("tcp-lines", stream, acks=acks, stop_wait_s=stop_wait_s)
    pushed = keep.open(stream, "A TCP connection")
    with listening_socket(parse_address(listen)) as listener:
        server = TcpMedium(listener, line_bytes_max, connections_max)
        _end(run_pushed(pushed, server.take_in, send.to, options, is_json=send.as_json))


@source_app.command("udp")
@with_groups
def source_udp(
    listen: Annotated[str, typer.Option(help="Address to receive datagrams on, HOST:PORT. Port 0 takes a free port.")],
    stream: StreamName = "udp",
    bytes_max: Annotated[int, typer.Option(min=1, help="Drop datagrams while this many bytes wait to be sent.")] = 16
    * 1024
    * 1024,
    stop_wait_s: StopWait = STOP_WAIT_S,
    *,
    send: SendOptions,
) -> None:
    """Send each datagram that a UDP port receives as a record, at most once, until Ctrl-C.

    A lost datagram cannot be requested again, so the guarantee that every record is committed once does not cover
    these records. They are sent as ephemeral messages of the draft protocol, and are counted separately.
    """
    from dataclasses import replace

    from procession.address import parse_address
    from procession.connectors.udp_source import UdpSource, datagram_socket
    from procession.sdk.connector_program import run_source

    options = send.load("udp", stream, stop_wait_s=stop_wait_s)
    source = UdpSource(datagram_socket(parse_address(listen)), stream, bytes_max=bytes_max)
    options = replace(options, dialect="draft", report=source.on_report)
    try:
        _end(run_source(source, send.to, options, is_json=send.as_json, on_stop=source.stop, beside=source.listen))
    finally:
        source.close()


@source_app.command("clock")
@with_groups
def source_clock(
    interval_s: Annotated[float, typer.Argument(min=0.01, max=3600, help="Seconds between two ticks.")],
    *,
    send: SendOptions,
) -> None:
    """Send the time at an interval, until Ctrl-C. The ticks fire timers by the clock.

    A record is a number of seconds since 1970. The time never goes back, even if the machine's clock does. A tick that
    was lost is not sent again.
    """
    from procession.connectors.clock_source import ClockSource
    from procession.sdk.connector_program import run_source

    options = send.load("clock", "clock")
    _end(run_source(ClockSource(interval_s), send.to, options, is_json=send.as_json))


@source_app.command("generator")
@with_groups
def source_generator(
    records: Annotated[int | None, typer.Option(min=0, show_default="without end", help="Records per stream.")] = None,
    size: Annotated[int, typer.Option(min=0, help="Bytes per record.")] = 100,
    keys: Annotated[int, typer.Option(min=0, help="Number of different keys. 0: no keys.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the records and the streams.")] = 0,
    streams: Annotated[int, typer.Option(min=1, help="Number of streams.")] = 1,
    name: Annotated[str, typer.Option(help="Prefix of the streams' names: NAME-SEED-0, NAME-SEED-1, ….")] = "generator",
    show: Annotated[
        bool,
        typer.Option(
            "--print", help="Print the records, one per line, instead of sending them. `verify` can compare with them."
        ),
    ] = False,
    acks: Acks = None,
    *,
    send: SendOptions,
) -> None:
    """Send generated records, for tests and benchmarks. Exits with status 0 when all of them are committed.

    A record depends only on the seed, its stream and its number. A restart continues after the last committed record;
    another --name or --seed starts over.
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
