"""The command `procession bench all`: every benchmark several times, compared with a stored run.

As in `cli/main`, it only parses and prints; `bench/stored_run` compares.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from procession.cli.bench_command import ALL, bench_app, benchmarks_of
from procession.cli.bench_options import Json
from procession.errors import ConfigError, UsageError


@bench_app.command(name=ALL)
def compare_all(
    context: typer.Context,
    only: Annotated[list[str] | None, typer.Option(help="Only this benchmark. Can be repeated.")] = None,
    repeats: Annotated[int, typer.Option(min=2, help="How often each is run. Their range is its noise.")] = 3,
    save: Annotated[Path | None, typer.Option(help="Store the run here.")] = None,
    against: Annotated[Path | None, typer.Option(help="Compare with the run that is stored here.")] = None,
    as_json: Json = False,
) -> None:
    """Run all benchmarks several times. Name the ratios and processor times that moved since a stored run."""
    from procession.bench.stored_run import compare, stored, stored_runs
    from procession.storage.durable import write_durably

    assert context.parent is not None
    benchmarks = benchmarks_of(context.parent.command)
    if unknown := [name for name in only or () if name not in benchmarks]:
        raise UsageError(f"There is no benchmark {unknown[0]!r}.", next_step=f"Choose from: {', '.join(benchmarks)}.")
    before = None if against is None else stored_runs(_document(against), str(against))
    runs: dict[str, list[dict[str, Any]]] = {}
    for repeat in range(repeats):
        for name in only or benchmarks:
            print(f"{name}, {repeat + 1} of {repeats}", file=sys.stderr, flush=True)
            runs.setdefault(name, []).append(_figures_of(benchmarks[name], name))
    if save is not None:
        write_durably(save, json.dumps(stored(runs), indent=1).encode())
    comparison = None if before is None else compare(before, runs)
    if as_json:
        found = {} if comparison is None else comparison.as_json()
        print(json.dumps({**found, "runs": runs}))
    elif comparison is not None:
        for line in comparison.lines():
            print(line)
    else:
        for name, figures in runs.items():
            print(f"{name}: {json.dumps(figures[-1])}")


def _figures_of(command: Any, name: str) -> dict[str, Any]:
    output = io.StringIO()
    with redirect_stdout(output):
        command.main(["--json"], prog_name=f"procession bench {name}", standalone_mode=False)
    figures: dict[str, Any] = json.loads(output.getvalue())
    return figures


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}.", next_step="Check the path.") from None
    except ValueError:
        return None
