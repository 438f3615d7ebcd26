"""Options: the settings as options of commands.

The one rule: an option has the name of its setting, and shows the setting's own default as a text, because a help page
must not wait for pydantic. Before it the command line; after it `cli/main`, whose commands have them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

EpochInterval = Annotated[
    float | None, typer.Option(show_default="0.1", help="Seconds between the starts of two epochs, at least.")
]
EpochRecords = Annotated[int | None, typer.Option(show_default="250000", help="Records of an epoch at most.")]
EpochBytes = Annotated[int | None, typer.Option(show_default="67108864", help="Bytes of an epoch at most.")]
AnswerTimeout = Annotated[
    float | None, typer.Option(show_default="30.0", help="Seconds that a sink may take to answer.")
]
SinkRefusals = Annotated[
    int | None,
    typer.Option(min=1, show_default="8", help="Refusals of a sink in a row after which the pipeline stops."),
]
ChangedStages = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="Stages, by commas, that go on with their states although key or input differ."),
]
LagBytes = Annotated[
    int | None,
    typer.Option(show_default="1073741824", help="Producers wait while more bytes than this are not committed."),
]
Credits = Annotated[int | None, typer.Option(show_default="65536", help="Frames a producer may send ahead.")]
CreditsKind = Annotated[
    Literal["fixed", "adaptive"] | None,
    typer.Option(
        "--credits", show_default="fixed", help="Give them back as records are appended, or as they are committed."
    ),
]
LatencyTarget = Annotated[
    float | None,
    typer.Option(show_default="1.0", help="With adaptive credits: seconds that a record should wait for its commit."),
]
Control = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        show_default="this machine only",
        help="Where the first gateway is asked, also by gateways that join from other machines.",
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", show_default="nowhere", help="Where Prometheus reads the gateway's metrics."),
]
StateKeys = Annotated[
    int | None, typer.Option(show_default="1000000", help="Keys whose states a task holds in memory; others are read.")
]
DeadLetterShare = Annotated[
    float | None, typer.Option(show_default="0.5", help="Stop when a larger share of records becomes dead letters.")
]
DeadLetterRecords = Annotated[
    int | None, typer.Option(show_default="1000", help="Judge that share over at least this many records at a time.")
]
Runs = Annotated[
    Path | None, typer.Option(show_default="DIR/runs", help="Where runs are kept until their epoch is confirmed.")
]
Gateways = Annotated[
    int | None, typer.Option(min=1, max=64, show_default="1", help="Gateways that take records, each a process.")
]
Master = Annotated[str | None, typer.Option(show_default="local threads", help="Spark's master.")]
SinkCookieFile = Annotated[
    Path | None,
    typer.Option(show_default="made for file sinks, none for others", help="A file with the secret for all sinks."),
]
JvmTimeout = Annotated[
    float | None, typer.Option(show_default="30.0", help="Seconds after which a JVM that does not answer is killed.")
]
SpareDriver = Annotated[
    bool | None,
    typer.Option("--spare-driver", show_default="False", help="Keep a second driver that takes over at once."),
]
