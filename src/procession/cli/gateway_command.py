"""`procession gateway`: a gateway alone, as a command. Words in, one call out.

The one rule: as in `cli`. Before it the command line; after it `gateway.server`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from procession.cli.source_commands import ControlCookieFile, CookieFile, OpenProducers
from procession.cli.tls_options import ClientCa, ShownCert, ShownKey, TrustedName


def gateway(
    directory: Annotated[Path, typer.Option("--dir", help="Where the log and the positions are kept.")],
    listen: Annotated[str, typer.Option(help="Where connectors send to.")] = "127.0.0.1:7100",
    control: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            show_default="a socket file in --dir",
            help="Where the driver and other gateways ask, if not on this machine only.",
        ),
    ] = None,
    lag_bytes_max: Annotated[int, typer.Option(min=1, help="Producers wait while more is not committed.")] = 1 << 30,
    overrun_bytes_max: Annotated[
        int, typer.Option(min=0, help="More that may come on credits given before; then producers are not read.")
    ] = 64 << 20,
    credits_max: Annotated[int, typer.Option(min=2, help="Frames a producer may send ahead.")] = 65_536,
    credits_kind: Annotated[
        Literal["fixed", "adaptive"],
        typer.Option("--credits", help="Give them back as records are appended, or as they are committed."),
    ] = "fixed",
    credits_min: Annotated[
        int, typer.Option(min=2, help="With adaptive credits: what a producer may hold at least.")
    ] = 256,
    latency_target_s: Annotated[
        float, typer.Option(min=0.001, help="With adaptive credits: how long a record should wait for its commit.")
    ] = 1.0,
    backlog_max: Annotated[int, typer.Option(min=2, help="With adaptive credits: records that wait at most.")] = 16
    << 20,
    held_bytes_max: Annotated[
        int, typer.Option(min=1, help="What a producer of the draft may send without a stable reference.")
    ] = 16 << 20,
    sessions_max: Annotated[int, typer.Option(min=1, help="Producers that may be connected.")] = 4096,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where Prometheus reads metrics; port 0 takes any.")
    ] = None,
    metrics_streams_max: Annotated[
        int, typer.Option(min=0, help="Streams with metrics of their own; the others are added up.")
    ] = 10_000,
    disk_free_bytes_min: Annotated[
        int, typer.Option(min=0, help="Producers wait while the disk has less room than this.")
    ] = 64 << 20,
    event_time_streams: Annotated[
        str | None,
        typer.Option(help="Put these streams (as in 1,4-7) in the order of event time, and take no others."),
    ] = None,
    lateness_s: Annotated[
        float, typer.Option(min=0, help="By event time: how far a record may be behind the latest of its stream.")
    ] = 0.0,
    idle_timeout_s: Annotated[
        float | None, typer.Option(min=0.001, help="By event time: wait no longer for a silent stream.")
    ] = None,
    stream_bytes_max: Annotated[
        int, typer.Option(min=0, help="By event time: what may wait of one stream; 0: an even share.")
    ] = 0,
    reserve_bytes_max: Annotated[
        int, typer.Option(min=0, help="By event time: more, for whoever has the stream that is waited for.")
    ] = 64 << 20,
    draft_counts: Annotated[
        bool, typer.Option("--draft-counts", help="Let producers of the draft ask for counts in ACKs.")
    ] = False,
    draft_debug: Annotated[
        bool, typer.Option("--draft-debug", help="Let producers of the draft ask for faults (for tests).")
    ] = False,
    join: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT|DIR",
            help="Be one of several gateways: where the first one's --control is, or its --dir.",
        ),
    ] = None,
    name: Annotated[
        str, typer.Option(show_default="the first gateway names it", help="With --join: what this gateway is called.")
    ] = "",
    advertise: Annotated[
        str, typer.Option(metavar="HOST", show_default="where it listens", help="The host by which others reach it.")
    ] = "",
    flight: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", show_default="not at all", help="Serve the log to executors on other machines."
        ),
    ] = "",
    machine: Annotated[
        str, typer.Option(show_default="this one", help="Whose executors map its files; others fetch from --flight.")
    ] = "",
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            show_default="that beside --dir, if there is one",
            help="Where the driver claims the pipeline, DIR/checkpoint.",
        ),
    ] = None,
    cookie_file: CookieFile = None,
    control_cookie_file: ControlCookieFile = None,
    open_producers: OpenProducers = None,
    tls_cert: ShownCert = None,
    tls_key: ShownKey = None,
    tls_client_ca: ClientCa = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(help="With --join: the first gateway speaks TLS, with a certificate of this authority."),
    ] = None,
    tls_name: TrustedName = None,
) -> None:
    """Run a gateway alone: it takes records from connectors and keeps them for the driver."""
    from procession.driver.stream_order import read
    from procession.gateway.gateway_options import GatewayConfig, Limits
    from procession.gateway.server import serve
    from procession.merge.event_time import declared_of
    from procession.supervisor.cookies import gateway_cookies
    from procession.supervisor.local_pipeline import beside
    from procession.tls import client_tls, server_tls
    from procession.wire.draft_messages import Extension

    leader = _leader(join)
    producers, asked = gateway_cookies(
        directory, leader, cookie_file, control_cookie_file, is_open=bool(open_producers)
    )
    if control is None:
        # A gateway that joins over the network is asked over it.
        control = str(beside(listen)) if isinstance(leader, str) else ""
    allowed = {Extension.COUNTS: draft_counts, Extension.DEBUG: draft_debug}
    limits = Limits(
        cookie=producers,
        lag_bytes_max=lag_bytes_max,
        overrun_bytes_max=overrun_bytes_max,
        credits_max=credits_max,
        credits=credits_kind,
        credits_min=credits_min,
        latency_target_s=latency_target_s,
        backlog_max=backlog_max,
        held_bytes_max=held_bytes_max,
        sessions_max=sessions_max,
        stream_bytes_max=stream_bytes_max,
        reserve_bytes_max=reserve_bytes_max,
        extensions=frozenset(extension for extension, is_allowed in allowed.items() if is_allowed),
    )
    declared = None
    if event_time_streams is not None:
        declared = declared_of(read(event_time_streams, limits.streams_max), lateness_s, idle_timeout_s)
    serve(
        GatewayConfig(
            directory,
            listen,
            control,
            limits,
            server_tls(tls_cert, tls_key, tls_client_ca),
            name=name,
            join=leader,
            control_cookie=asked,
            checkpoint=checkpoint or _checkpoint_beside(directory),
            link_tls=client_tls(tls_ca, tls_cert, tls_key, tls_name) if tls_ca is not None else None,
            advertise=advertise,
            metrics=metrics or "",
            metrics_streams_max=metrics_streams_max,
            flight=flight,
            machine=machine,
            declared=declared,
            disk_free_bytes_min=disk_free_bytes_min,
        )
    )


def _checkpoint_beside(directory: Path) -> Path | None:
    """The checkpoint of the pipeline in whose directory that of the gateway is, if a driver has been there."""
    beside = directory.absolute().parent / "checkpoint"
    return beside if (beside / "pipeline.json").exists() else None


def _leader(join: str | None) -> str | Path | None:
    """An address, or the directory in which the leader says where it is."""
    return join if join is None or not (Path(join).is_dir() or "/" in join) else Path(join).resolve()
