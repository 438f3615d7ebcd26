"""The benchmarks of order: `procession bench merge`, `listing1`, `order` and `conflux`.

As in `cli/main`, a command only parses and prints. `cli/bench_command` registers them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from procession.cli.bench_options import Json, Rounds, check_writable, command_line, print_figures
from procession.errors import UsageError


class WorkloadName(StrEnum):
    """Workloads of `bench/workload`."""

    LISTING1 = "listing1"
    W1 = "w1"
    W2 = "w2"


class ContestantName(StrEnum):
    """Contestants of `bench/conflux_contestants`."""

    LANES = "lanes"
    BLOCKS = "blocks"
    ORDERED = "ordered"
    UNORDERED = "unordered"
    SEQUENTIAL = "sequential"
    BASELINE = "baseline"


def merge(
    context: typer.Context,
    records: Annotated[int, typer.Option(min=4, help="Number of records.")] = 4_000_000,
    lanes: Annotated[int, typer.Option(min=1, help="Number of lanes.")] = 30,
    rounds: Rounds = 5,
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Lanes in Kafka, compared with a plain consumer of the same partitions.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Speed of a merger of lanes: in memory, in records per second of processor time, or from Kafka."""
    if kafka:
        from procession.bench import kafka_merge_speed

        found = kafka_merge_speed.measure(records, lanes, rounds)
        print_figures(context, found, kafka_merge_speed.report_lines(found, lanes))
        return
    from procession.bench import lane_merge_speed as bench

    figures = bench.measure(records, lanes, rounds)
    print_figures(context, figures, bench.report_lines(figures, lanes))


def listing1(
    context: typer.Context,
    workload: Annotated[
        Literal["listing1", "w1", "w2"], typer.Option(help="Conflux's Listing 1, or one of its smaller workloads.")
    ] = "listing1",
    records: Annotated[int, typer.Option(min=1_000, help="Number of records.")] = 10_000_000,
    burn_ns: Annotated[int, typer.Option(min=0, help="CPU time that each stage uses per record.")] = 0,
    rounds: Rounds = 3,
    epoch_records: Annotated[int, typer.Option(min=1, help="Records per epoch and per window.")] = 1_000_000,
    as_json: Json = False,
) -> None:
    """Conflux's Listing 1 with order, without order, and with a window sort on the same Spark."""
    from procession.bench import listing1 as bench

    figures = bench.measure(bench.Listing1Setup(workload, records, burn_ns, rounds, epoch_records, os.cpu_count() or 1))
    print_figures(context, figures, bench.report_lines(figures))


def order(
    context: typer.Context,
    records: Annotated[int, typer.Option(min=1_000, help="Number of records.")] = 4_000_000,
    burn_ns: Annotated[int, typer.Option(min=0, help="CPU time that each stage uses per record.")] = 0,
    rounds: Rounds = 10,
    epoch_records: Annotated[int, typer.Option(min=1, help="Records per epoch.")] = 1_000_000,
    as_json: Json = False,
) -> None:
    """The overhead of total order: Listing 1 with order and without it in turn, with processor time."""
    from procession.bench import order_overhead as bench
    from procession.bench.listing1 import Listing1Setup

    given = Listing1Setup("listing1", records, burn_ns, rounds, epoch_records, os.cpu_count() or 1)
    figures = bench.measure(given)
    print_figures(context, figures, bench.report_lines(figures))


def conflux(
    context: typer.Context,
    workload: Annotated[
        list[WorkloadName] | None,
        typer.Option(show_default="all", help="Conflux's Listing 1 or one of its smaller workloads. Can be repeated."),
    ] = None,
    records: Annotated[int, typer.Option(min=1_000, help="Records per run.")] = 1_000_000,
    burn_ns: Annotated[int, typer.Option(min=0, help="CPU time that each stage uses per record.")] = 1_000,
    rounds: Rounds = 3,
    epoch_records: Annotated[
        int, typer.Option(min=1, help="Maximum number of records per epoch, and per window of the baseline.")
    ] = 250_000,
    rate: Annotated[
        float, typer.Option(min=0, help="Records per second of the source. 0: limited only by its credits.")
    ] = 0.0,
    lanes: Annotated[int, typer.Option(min=0, help="Number of lanes. 0: one for each task of the last stage.")] = 0,
    contestant: Annotated[
        list[ContestantName] | None,
        typer.Option(show_default="all", help="A contestant. Can be repeated."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with plots to this HTML file.")
    ] = None,
    figures_file: Annotated[
        Path | None, typer.Option("--figures", metavar="FILE", help="Write all figures and curves to this JSON file.")
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write each plot of a workload to an SVG file in this directory.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Conflux's evaluation: lanes and a merger, an ordered sink, no order, one task, and a window sort, over Kafka."""
    from procession.bench import conflux as bench
    from procession.bench import conflux_report
    from procession.bench.conflux_contestants import CONTESTANTS, ConfluxSetup

    if plots is not None and not plots.is_dir():
        raise UsageError(f"There is no directory {plots} for the plots.", next_step="Create it.")
    for path in filter(None, (report, figures_file)):
        check_writable(path)
    taking_part = tuple(name for name in CONTESTANTS if name in (contestant or CONTESTANTS))
    given = ConfluxSetup(records, burn_ns, rounds, epoch_records, rate, lanes, taking_part)
    figures: dict[str, Any] = {}
    for figures in bench.measure(given, [str(name) for name in workload or WorkloadName]):
        figures["command"] = command_line(context)
        if report is not None:
            conflux_report.write_report(report, figures)
        if plots is not None:
            conflux_report.write_plots(plots, figures)
        if figures_file is not None:
            figures_file.write_text(json.dumps(figures, indent=1))
    print_figures(context, figures, bench.report_lines(figures))


COMMANDS: dict[str, Callable[..., Any]] = {"merge": merge, "listing1": listing1, "order": order, "conflux": conflux}
"""The commands by name."""
