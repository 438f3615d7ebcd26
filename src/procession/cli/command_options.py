"""Options: the settings as options of commands.

The one rule: an option has the name of its setting, and shows the setting's own default as a text, because a help page
must not wait for pydantic. Before it the command line; after it `cli/main`, whose commands have them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

EpochInterval = Annotated[
    float | None, typer.Option(show_default="0.1", help="Minimum seconds between the starts of two epochs.")
]
EpochRecords = Annotated[int | None, typer.Option(show_default="250000", help="Maximum number of records per epoch.")]
EpochBytes = Annotated[int | None, typer.Option(show_default="67108864", help="Maximum number of bytes per epoch.")]
AnswerTimeout = Annotated[float | None, typer.Option(show_default="30.0", help="Seconds that a sink has to answer.")]
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
