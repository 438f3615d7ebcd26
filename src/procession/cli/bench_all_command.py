"""The command `procession bench all`: every benchmark several times, compared with a stored run.

As in `cli/main`, it only parses and prints; `bench/stored_run` compares.
"""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from procession.cli.bench_command import ALL, bench_app, benchmarks_of, run_benchmark
from procession.cli.bench_options import Json
from procession.errors import ConfigError, UsageError
from procession.exit_status import Status


@bench_app.command(name=ALL)
def compare_all(
    context: typer.Context,
    only: Annotated[list[str] | None, typer.Option(help="Only this benchmark. Can be repeated.")] = None,
    repeats: Annotated[
        int, typer.Option(min=2, help="How often each benchmark is run. The range of its results is its noise.")
    ] = 3,
    save: Annotated[Path | None, typer.Option(help="Store the run in this file.")] = None,
    against: Annotated[Path | None, typer.Option(help="Compare with the run that is stored in this file.")] = None,
    as_json: Json = False,
) -> None:
    """Run all benchmarks several times, and list ratios and processor times that differ from a stored run.

    A benchmark that fails does not end the others: it is named at the end, and the exit status is 1.
    """
    from procession.bench.repeated_runs import RepeatedRuns
    from procession.bench.stored_run import compare, stored, stored_runs
    from procession.storage.durable import write_durably

    assert context.parent is not None
    benchmarks = benchmarks_of(context.parent.command)
    if unknown := [name for name in only or () if name not in benchmarks]:
        raise UsageError(f"There is no benchmark {unknown[0]!r}.", next_step=f"Choose from: {', '.join(benchmarks)}.")
    before = None if against is None else stored_runs(_document(against), str(against))
    found = RepeatedRuns()
    try:
        found.measure(only or list(benchmarks), repeats, lambda name: _figures_of(benchmarks[name], name))
    finally:  # also after an interrupt
        if save is not None and found.runs:
            write_durably(save, json.dumps(stored(found.runs), indent=1).encode())
    comparison = None if before is None else compare(before, found.runs)
    if as_json:
        changes = {} if comparison is None else comparison.as_json()
        print(json.dumps({**changes, "runs": found.runs, "failures": found.failures}))
    else:
        if comparison is None:
            for name, figures in found.runs.items():
                print(f"{name}: {json.dumps(figures[-1])}")
        else:
            for line in comparison.lines():
                print(line)
        for line in found.failure_lines():
            print(line)
    if found.failures:
        raise typer.Exit(Status.UNCLEAN)


def _figures_of(command: Any, name: str) -> dict[str, Any]:
    """Return the figures that a benchmark prints with --json. Raises BenchmarkFailed if it fails."""
    from procession.bench.repeated_runs import BenchmarkFailed

    output = io.StringIO()
    with redirect_stdout(output):
        run_benchmark(command, name, "--json")
    try:
        figures: dict[str, Any] = json.loads(output.getvalue())
    except ValueError:
        raise BenchmarkFailed("it printed no figures as JSON") from None
    return figures


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}.", next_step="Check the path.") from None
    except ValueError:
        return None
