"""The benchmarks of operators: `procession bench state` and `columns`.

As in `cli/main`, a command only parses and prints. `cli/bench_command` registers them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from procession.cli.bench_options import Json, Rounds, print_figures


def state(
    context: typer.Context,
    keys: Annotated[int, typer.Option(min=1, max=9_999_999, help="Number of keys.")] = 10_000,
    records: Annotated[int, typer.Option(min=1, help="Records that are measured per round.")] = 1_000_000,
    rounds: Rounds = 3,
    spark_rounds: Annotated[int, typer.Option(min=0, help="Rounds that also measure Spark's own state stores.")] = 1,
    epoch_records: Annotated[int, typer.Option(min=1, help="Records per epoch.")] = 250_000,
    many_keys: Annotated[
        int, typer.Option(min=1, max=9_999_999, help="Number of keys for the test that uses only a few of them.")
    ] = 1_000_000,
    warm_epochs: Annotated[int, typer.Option(min=1, help="Small epochs before the measurement.")] = 12,
    as_json: Json = False,
) -> None:
    """A count per key: Procession's state, a plain dictionary, and Spark's transformWithState on rows and on
    pandas."""
    import os

    from procession.bench import keyed_state as bench

    sizes = keys, records, rounds, min(rounds, spark_rounds), epoch_records, many_keys, warm_epochs
    figures = bench.measure(bench.KeyedStateSetup(*sizes, os.cpu_count() or 1))
    print_figures(context, figures, bench.report_lines(figures))


def columns(
    context: typer.Context,
    records: Annotated[int, typer.Option(min=1, help="Number of records.")] = 2_000_000,
    keys: Annotated[int, typer.Option(min=1, help="Number of keys.")] = 10_000,
    epochs: Annotated[int, typer.Option(min=1, help="Number of epochs for these records.")] = 4,
    rounds: Rounds = 3,
    as_json: Json = False,
) -> None:
    """Counts by window and by key with expressions on columns, compared with functions of one record."""
    from procession.bench import column_speed as bench

    figures = bench.measure(bench.ColumnSpeedSetup(records, keys, epochs, rounds))
    print_figures(context, figures, bench.report_lines(figures))


COMMANDS: dict[str, Callable[..., Any]] = {"columns": columns, "state": state}
"""The commands by name."""
