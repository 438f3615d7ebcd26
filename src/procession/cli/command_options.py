"""Defines the settings as command-line options, and the option groups that commands share.

An option has the name of its setting. The default is given as text, so that a help page does not have to import
pydantic. A group is a dataclass whose fields are options. A command uses it as the type of one parameter; `with_groups`
declares the fields to Typer instead of that parameter, and passes the command an instance with the values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import typer

from procession.spark.spark_conf import parse_properties

Command = TypeVar("Command", bound=Callable[..., None])


def with_groups(command: Command) -> Command:
    """Declare the fields of a command's option groups as options of the command. Groups may contain groups."""
    hints = get_type_hints(command, include_extras=True)
    declared = inspect.signature(command).parameters.values()
    shown = [
        option
        for parameter in declared
        for option in _options(parameter.name, hints[parameter.name], parameter.default)
    ]

    @wraps(command)
    def grouped(**given: Any) -> None:
        command(**{parameter.name: _collect(parameter.name, hints[parameter.name], given) for parameter in declared})

    grouped.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    grouped.__annotations__ = {option.name: option.annotation for option in shown}
    return grouped  # type: ignore[return-value]


def _options(name: str, hint: Any, default: Any) -> Iterator[inspect.Parameter]:
    if not is_dataclass(hint):
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        return
    hints = get_type_hints(hint, include_extras=True)
    for field in fields(hint):
        yield from _options(
            field.name, hints[field.name], inspect.Parameter.empty if field.default is MISSING else field.default
        )


def _collect(name: str, hint: Any, given: dict[str, Any]) -> Any:
    if not is_dataclass(hint):
        return given[name]
    hints = get_type_hints(hint, include_extras=True)
    return hint(**{field.name: _collect(field.name, hints[field.name], given) for field in fields(hint)})  # type: ignore[operator]


PipelineDirectory = Annotated[
    Path | None,
    typer.Option("--dir", show_default="the one pipeline in .procession", help="The pipeline's directory."),
]
AppSettings = Annotated[list[str] | None, typer.Option("--set", help="A setting of the app, NAME=VALUE (repeatable).")]
EpochInterval = Annotated[
    float | None, typer.Option(show_default="0.0", help="Minimum seconds between the starts of two epochs.")
]
EpochTarget = Annotated[
    float | None,
    typer.Option(show_default="2.5", help="Seconds that an epoch should take at most; 0 means no target."),
]
SmallEpochRecords = Annotated[
    int | None,
    typer.Option(min=0, show_default="1000", help="Maximum number of records of an epoch that needs no Spark job."),
]
EpochRecords = Annotated[int | None, typer.Option(show_default="4000000", help="Maximum number of records per epoch.")]
EpochBytes = Annotated[int | None, typer.Option(show_default="268435456", help="Maximum number of bytes per epoch.")]
AnswerTimeout = Annotated[
    float | None, typer.Option(show_default="30.0", help="Seconds to wait for the answer of a sink.")
]
SinkRefusals = Annotated[
    int | None,
    typer.Option(min=1, show_default="8", help="Consecutive refusals of a sink after which the pipeline stops."),
]
ChangedStages = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES", help="Comma-separated stages that keep their state although their key or input changed."
    ),
]
LagBytes = Annotated[
    int | None,
    typer.Option(show_default="1073741824", help="Uncommitted bytes above which producers get no credits."),
]
Credits = Annotated[int | None, typer.Option(show_default="65536", help="Maximum credits (frames) per producer.")]
CreditsKind = Annotated[
    Literal["fixed", "adaptive"] | None,
    typer.Option(
        "--credits",
        show_default="fixed",
        help="Replenish credits as records are appended (fixed) or committed (adaptive).",
    ),
]
LatencyTarget = Annotated[
    float | None,
    typer.Option(show_default="1.0", help="With adaptive credits: target seconds from arrival to commit."),
]
Control = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        show_default="this machine only",
        help="Control address of the first gateway, for gateways on other machines.",
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", show_default="nowhere", help="Address of the gateway's Prometheus metrics."),
]
Dashboard = Annotated[
    bool | None,
    typer.Option("--dashboard/--no-dashboard", show_default="True", help="Serve a dashboard, and print its link."),
]
DashboardListen = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", show_default="127.0.0.1:0", help="Address of the dashboard."),
]
HistoryBytes = Annotated[
    int | None,
    typer.Option(min=65536, show_default="33554432", help="Maximum size of the history of epochs, in bytes."),
]
Emitters = Annotated[
    int | None,
    typer.Option(show_default="0", help="Processes that send to sinks with several connections. 0: the driver sends."),
]
EmittersAt = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT,…",
        show_default="none",
        help="Emitters (`procession emitter`) that send to sinks with several connections.",
    ),
]
StateKeys = Annotated[
    int | None, typer.Option(show_default="1000000", help="Maximum keys whose state a task keeps in memory.")
]
DeadLetterShare = Annotated[
    float | None,
    typer.Option(show_default="0.5", help="Stop when a larger share of records becomes dead letters. 1: never."),
]
DeadLetterRecords = Annotated[
    int | None, typer.Option(show_default="1000", help="Minimum number of records over which that share is computed.")
]
Runs = Annotated[
    Path | None, typer.Option(show_default="DIR/runs", help="Directory for the intermediate files of exchanges.")
]
Gateways = Annotated[
    int | None, typer.Option(min=1, max=64, show_default="1", help="Number of gateways, each a process.")
]
Master = Annotated[str | None, typer.Option(show_default="local threads", help="Spark master URL.")]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Property of Spark, such as spark.executor.memory=4g (repeatable). Properties that affect order or"
        " commit are refused.",
    ),
]
HostServices = Annotated[
    bool | None,
    typer.Option(
        "--host-services",
        show_default="False",
        help="Use `procession host` on each executor's machine. No shared directory is needed.",
    ),
]
DriverFiles = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        show_default="127.0.0.1:0",
        help="With --host-services: address of the driver for executors on other machines.",
    ),
]
EnvironmentArchive = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        show_default="executors have their packages",
        help="Environment of executors (`procession pack`), a path or a URL that Spark can read.",
    ),
]
SparkSecretFile = Annotated[
    Path | None,
    typer.Option(show_default="none", help="File with the secret of a standalone Spark cluster."),
]
CookieFile = Annotated[
    Path | None,
    typer.Option(show_default="the pipeline's own", help="File with the secret for producers."),
]
ControlCookieFile = Annotated[
    Path | None,
    typer.Option(show_default="the pipeline's own", help="File with the secret for the control port."),
]
OpenProducers = Annotated[
    bool | None,
    typer.Option(
        "--open-producers",
        show_default="False",
        help="Accept records from any producer that can reach the port, without a secret.",
    ),
]
SinkCookieFile = Annotated[
    Path | None,
    typer.Option(
        show_default="made for file sinks, none for others",
        help="File with the secret that the driver sends to every sink.",
    ),
]
JvmTimeout = Annotated[
    float | None, typer.Option(show_default="30.0", help="Seconds without an answer after which Spark's JVM is killed.")
]
SpareDriver = Annotated[
    bool | None,
    typer.Option(
        "--spare-driver", show_default="False", help="Keep a second driver that takes over when the first one dies."
    ),
]


Replicas = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT,…",
        show_default="none",
        help="Also store the directories of driver, gateways and file sinks on these replicas (`procession sos`).",
    ),
]
ReplicaVolume = Annotated[
    str | None,
    typer.Option(metavar="NAME", show_default="the pipeline's", help="Name of the pipeline on the replicas."),
]
ReplicaQuorum = Annotated[
    int | None,
    typer.Option(
        min=1, show_default="more than half", help="Number of replicas that must sync data before it is acknowledged."
    ),
]
ReplicaCookieFile = Annotated[
    Path | None, typer.Option(help="File with the secret of the replicas (`secrets/sos` of their directory).")
]
ReplicaTlsCa = Annotated[Path | None, typer.Option(help="Use TLS to the replicas, and trust this authority (PEM).")]
FlightAddress = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        show_default="not at all",
        help="Arrow Flight address of the first gateway, for executors on other machines.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class EpochSettings:
    """Settings of epochs."""

    epoch_interval_s: EpochInterval = None
    epoch_target_s: EpochTarget = None
    small_epoch_records_max: SmallEpochRecords = None
    epoch_records_max: EpochRecords = None
    epoch_bytes_max: EpochBytes = None

    def chosen(self) -> dict[str, object]:
        """Return the arguments for `load_settings`. Paths of secrets become absolute, because a process may run in
        another directory."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if values.get("conf"):
            values["conf"] = parse_properties(values["conf"])
        return {
            name: value.resolve() if value is not None and name.endswith(("cookie_file", "secret_file")) else value
            for name, value in values.items()
        }


@dataclass(frozen=True, kw_only=True)
class DriverSettings(EpochSettings):
    """Settings of a driver."""

    answer_timeout_s: AnswerTimeout = None
    sink_refusals_max: SinkRefusals = None
    emitters: Emitters = None
    emitters_at: EmittersAt = None
    state_keys_max: StateKeys = None
    dead_letter_share_max: DeadLetterShare = None
    dead_letter_records_min: DeadLetterRecords = None
    jvm_timeout_s: JvmTimeout = None
    history_bytes_max: HistoryBytes = None
    changed_stages: ChangedStages = None
    runs: Runs = None
    master: Master = None
    conf: Conf = None
    host_services: HostServices = None
    driver_files: DriverFiles = None
    environment_archive: EnvironmentArchive = None
    spark_secret_file: SparkSecretFile = None
    control_cookie_file: ControlCookieFile = None
    sink_cookie_file: SinkCookieFile = None


@dataclass(frozen=True, kw_only=True)
class PipelineSettings(DriverSettings):
    """Settings of a pipeline with all its parts."""

    lag_bytes_max: LagBytes = None
    credits_max: Credits = None
    credits: CreditsKind = None
    latency_target_s: LatencyTarget = None
    control: Control = None
    metrics: Metrics = None
    dashboard: Dashboard = None
    dashboard_listen: DashboardListen = None
    flight: FlightAddress = None
    gateways: Gateways = None
    spare_driver: SpareDriver = None
    cookie_file: CookieFile = None
    open_producers: OpenProducers = None
    replicas: Replicas = None
    replica_volume: ReplicaVolume = None
    replica_quorum: ReplicaQuorum = None
    replica_cookie_file: ReplicaCookieFile = None
    replica_tls_ca: ReplicaTlsCa = None
