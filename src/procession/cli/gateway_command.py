"""The command `procession gateway`: runs a gateway alone.

As in `cli/main`, it only parses; `gateway.server` does the work.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from procession.cli.command_options import ControlCookieFile, CookieFile, OpenProducers, with_groups
from procession.cli.replica_options import ReplicationOptions
from procession.cli.tls_options import ClientCa, ShownCert, ShownKey, TrustedName
from procession.storage.driver_claim import checkpoint_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from procession.metrics import Figures, Metric


@with_groups
def gateway(
    directory: Annotated[Path, typer.Option("--dir", help="The gateway's directory: its log and positions.")],
    listen: Annotated[str, typer.Option(help="Address for producers, HOST:PORT.")] = "127.0.0.1:7100",
    control: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            show_default="a socket file in --dir",
            help="Control address, for a driver or gateways on other machines.",
        ),
    ] = None,
    lag_bytes_max: Annotated[
        int, typer.Option(min=1, help="Uncommitted bytes above which producers get no credits.")
    ] = 1 << 30,
    overrun_bytes_max: Annotated[
        int, typer.Option(min=0, help="Bytes above --lag-bytes-max at which the gateway stops reading from producers.")
    ] = 64 << 20,
    credits_max: Annotated[int, typer.Option(min=2, help="Maximum credits (frames) per producer.")] = 65_536,
    credits_kind: Annotated[
        Literal["fixed", "adaptive"],
        typer.Option("--credits", help="Replenish credits as records are appended (fixed) or committed (adaptive)."),
    ] = "fixed",
    credits_min: Annotated[int, typer.Option(min=2, help="With adaptive credits: minimum credits per producer.")] = 256,
    latency_target_s: Annotated[
        float, typer.Option(min=0.001, help="With adaptive credits: target seconds from arrival to commit.")
    ] = 1.0,
    backlog_max: Annotated[
        int, typer.Option(min=2, help="With adaptive credits: maximum records that wait for their commit.")
    ] = 16 << 20,
    held_bytes_max: Annotated[
        int,
        typer.Option(min=1, help="Bytes that a producer of the draft protocol may send without a stable reference."),
    ] = 16 << 20,
    sessions_max: Annotated[int, typer.Option(min=1, help="Maximum number of connected producers.")] = 4096,
    streams_max: Annotated[
        int, typer.Option(min=1, help="Maximum number of streams, without those that are retired.")
    ] = 65_536,
    streams_retire_after_s: Annotated[
        float, typer.Option(min=0, help="Seconds after which a closed stream whose records are committed is retired.")
    ] = 3600.0,
    streams_retired_max: Annotated[
        int, typer.Option(min=0, help="Maximum number of retired streams whose positions are remembered.")
    ] = 1_000_000,
    streams_retired_age_s: Annotated[
        float, typer.Option(min=0, help="Seconds of running time for which a retired stream is remembered.")
    ] = 2_592_000.0,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address of the Prometheus metrics. Port 0 takes a free port."),
    ] = None,
    metrics_streams_max: Annotated[
        int, typer.Option(min=0, help="Maximum streams with their own metrics. The other streams share one sum.")
    ] = 10_000,
    disk_free_bytes_min: Annotated[
        int, typer.Option(min=0, help="Free bytes on disk below which producers get no credits.")
    ] = 64 << 20,
    event_time_streams: Annotated[
        str | None,
        typer.Option(help="Accept only these streams (such as 1,4-7), and merge them by event time."),
    ] = None,
    lateness_s: Annotated[
        float,
        typer.Option(
            min=0, help="With event-time order: seconds that a record may be behind the latest of its stream."
        ),
    ] = 0.0,
    idle_timeout_s: Annotated[
        float | None,
        typer.Option(min=0.001, help="With event-time order: seconds after which a silent stream is not waited for."),
    ] = None,
    stream_bytes_max: Annotated[
        int, typer.Option(min=0, help="With event-time order: maximum uncommitted bytes per stream. 0: an even share.")
    ] = 0,
    reserve_bytes_max: Annotated[
        int, typer.Option(min=0, help="With event-time order: extra bytes for the stream that the merge waits for.")
    ] = 64 << 20,
    draft_counts: Annotated[
        bool, typer.Option("--draft-counts", help="Let producers of the draft protocol request counts in ACKs.")
    ] = False,
    draft_debug: Annotated[
        bool, typer.Option("--draft-debug", help="Let producers of the draft protocol request faults. For tests only.")
    ] = False,
    join: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT|DIR",
            help="Join a pipeline as a further gateway: the first gateway's --control address or --dir.",
        ),
    ] = None,
    name: Annotated[
        str, typer.Option(show_default="the first gateway names it", help="With --join: this gateway's name.")
    ] = "",
    advertise: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            show_default="where it listens",
            help="Host name that other machines use to reach this gateway.",
        ),
    ] = "",
    flight: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            show_default="not at all",
            help="Arrow Flight address that serves the log to executors on other machines.",
        ),
    ] = "",
    machine: Annotated[
        str,
        typer.Option(
            show_default="this one", help="Machine whose executors read the log's files. Other executors use --flight."
        ),
    ] = "",
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            show_default="the one next to --dir, if it exists",
            help="The pipeline's checkpoint directory, to verify the driver's fence.",
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
        typer.Option(help="With --join: use TLS to the first gateway, and trust this authority (PEM)."),
    ] = None,
    tls_name: TrustedName = None,
    *,
    replication: ReplicationOptions,
) -> None:
    """Run a gateway alone. It receives records from producers and logs them for the driver."""
    from procession.address import other_port
    from procession.deployment.cookies import gateway_cookies
    from procession.gateway.gateway_limits import Limits
    from procession.gateway.gateway_options import GatewayConfig
    from procession.gateway.server import serve
    from procession.tls import client_tls, server_tls
    from procession.wire.draft_messages import Extension

    leader = _leader(join)
    producers, control_cookie = gateway_cookies(
        directory, leader, cookie_file, control_cookie_file, is_open=bool(open_producers)
    )
    if control is None:
        # A gateway that joins over the network gets its control requests over the network.
        control = str(other_port(listen)) if isinstance(leader, str) else ""
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
        streams_max=streams_max,
        streams_retire_after_s=streams_retire_after_s,
        streams_retired_max=streams_retired_max,
        streams_retired_age_s=streams_retired_age_s,
        stream_bytes_max=stream_bytes_max,
        reserve_bytes_max=reserve_bytes_max,
        extensions=frozenset(extension for extension, is_allowed in allowed.items() if is_allowed),
    )
    declared = None
    if event_time_streams is not None:
        from procession.driver.stream_order import read  # imports the planner, which other gateways do not need
        from procession.merge.event_time import declared_of

        declared = declared_of(read(event_time_streams, limits.streams_max), lateness_s, idle_timeout_s)
    place = replication.place(directory)
    config = GatewayConfig(
        place,
        listen,
        control,
        limits,
        server_tls(tls_cert, tls_key, tls_client_ca),
        name=name,
        join=leader,
        control_cookie=control_cookie,
        checkpoint=checkpoint or _checkpoint_beside(directory),
        link_tls=client_tls(tls_ca, tls_cert, tls_key, tls_name) if tls_ca is not None else None,
        advertise=advertise,
        metrics=metrics or "",
        more_metrics=_pipeline_metrics(checkpoint, directory) if metrics and leader is None else None,
        metrics_streams_max=metrics_streams_max,
        flight=flight,
        machine=machine,
        declared=declared,
        disk_free_bytes_min=disk_free_bytes_min,
    )
    with replication.host(place) as host:
        serve(config, host)


def _pipeline_metrics(checkpoint: Path | None, directory: Path) -> Figures:
    """Return the figures of the pipeline. Its checkpoint may be created later."""
    at = checkpoint or checkpoint_of(directory.absolute().parent)
    loaded: list[Figures] = []

    def figures() -> Iterable[Metric]:
        if not loaded:  # only at the first request, because this imports modules that a gateway does not need
            from procession.monitoring.pipeline_metrics import PipelineFigures, app_metrics

            loaded.extend((partial(app_metrics, at), PipelineFigures(at.parent)))
        return [metric for ask in loaded for metric in ask()]

    return figures


def _checkpoint_beside(directory: Path) -> Path | None:
    """Return the checkpoint of the pipeline whose directory contains the gateway's, if a driver has created one."""
    beside = checkpoint_of(directory.absolute().parent)
    return beside if (beside / "pipeline.json").exists() else None


def _leader(join: str | None) -> str | Path | None:
    """Return the leader's address, or the directory that has its address."""
    return join if join is None or not (Path(join).is_dir() or "/" in join) else Path(join).resolve()
