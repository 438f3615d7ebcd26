"""The command `procession chaos`.

As in `cli/main`, it only parses and prints. It prints the seed first and writes the schedule while it runs, so every
run can be repeated with `--replay`. `chaos/harness` runs the scenarios on the cluster of `chaos/chaos_cluster`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from procession.errors import ConfigError, UsageError
from procession.exit_status import Status

if TYPE_CHECKING:
    from procession.chaos.scenario import ScenarioRun

SCHEDULE = "schedule.json"
REPORT = "report.html"


def chaos(
    scenario: Annotated[
        list[str] | None, typer.Option(show_default="all", help="Only this scenario (repeatable; see --list).")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0, show_default="each scenario once", help="Minutes to run. Every scenario runs at least once."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(show_default="random", help="Seed of the schedule of faults.")] = None,
    report: Annotated[
        Path | None, typer.Option(show_default="chaos-report", help="Directory for the report and the schedule.")
    ] = None,
    replay: Annotated[Path | None, typer.Option(help="Run this schedule again: the schedule.json of a report.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    as_list: Annotated[bool, typer.Option("--list", help="List the scenarios.")] = False,
    deadline_s: Annotated[float, typer.Option(min=1, help="Seconds without a commit after which a run fails.")] = 90.0,
) -> None:
    """Inject faults (kills, pauses, network cuts, full disks) into a running cluster, and verify its output."""
    import secrets
    import shutil
    import tempfile

    from procession.chaos.chaos_cluster import ChaosCluster
    from procession.chaos.harness import Harness
    from procession.chaos.html_report import write_report
    from procession.chaos.scenario_catalogue import BY_NAME, CATALOGUE
    from procession.chaos.screen import Screen

    if as_list:
        proses = {known.name: known.prose for known in CATALOGUE}
        print(json.dumps(proses) if as_json else "\n".join(f"{name:36}{prose}" for name, prose in proses.items()))
        return
    for name in scenario or []:
        if name not in BY_NAME:
            raise _unknown(name, BY_NAME)
    if replay is not None and (scenario or minutes is not None or seed is not None):
        raise UsageError(
            "a schedule already contains the scenarios and their number",
            next_step="use --replay without --scenario, --minutes and --seed",
        )
    chosen = secrets.randbelow(10_000) if seed is None else seed
    recorded = None
    if replay is not None:
        chosen, recorded = _recorded(replay)
    place = (report or Path("chaos-report")).resolve()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{place} cannot be created: {error.strerror}", next_step="choose another directory with --report"
        ) from error
    work = Path(tempfile.mkdtemp(prefix="procession-chaos-"))
    with Screen() as screen:
        screen.say(f"seed {chosen}; working in {work}, the report goes to {place}")
        with ChaosCluster(work) as cluster:
            screen.say("starting two gateways, two sinks and the Spark driver")
            cluster.start()
            harness = Harness(cluster, seed=chosen, deadline_s=deadline_s, show=screen.show)
            ends = None if minutes is None else time.monotonic() + 60 * minutes
            runs = recorded if recorded is not None else _drawn(scenario or [], chosen, ends)
            kept = place / SCHEDULE
            is_same = replay is not None and replay.resolve() == kept  # the file is already complete
            history = harness.run(_kept(runs, chosen, None if is_same else kept, screen.say))
    write_report(place / REPORT, history)
    if history.outcome == "clean":
        shutil.rmtree(work)
    elif work.exists():
        screen.say(f"all files are kept in {work}")
    print(json.dumps(history.figures()) if as_json else history.sentence())
    if not as_json:
        again = f"repeat with: procession chaos --replay {place / SCHEDULE}; " if history.runs else ""
        print(f"{again}the report: {place / REPORT}")
    if history.outcome != "clean":
        is_stopped = history.was_stopped and history.outcome != "violated"
        raise typer.Exit(Status.INTERRUPTED if is_stopped else Status.UNCLEAN)


def _unknown(name: str, names: Iterable[str]) -> UsageError:
    from difflib import get_close_matches

    near = get_close_matches(name, list(names), n=3)
    guess = f"did you mean {' or '.join(near)}? " if near else ""
    return UsageError(f"no scenario is called {name!r}", next_step=f"{guess}`procession chaos --list` shows all")


def _kept(
    runs: Iterable[ScenarioRun], seed: int, path: Path | None, say: Callable[[str], None]
) -> Iterator[ScenarioRun]:
    """Yield the same runs. Before each run, print its steps and write the schedule so far to disk."""
    so_far: list[dict[str, Any]] = []
    for run in runs:
        so_far.append(run.as_dict())
        if path is not None:
            path.write_text(json.dumps({"seed": seed, "runs": so_far}, indent=1))
        say(f"{run.scenario}: {'; '.join(map(str, run.steps))}")
        yield run


def _drawn(names: Sequence[str], seed: int, ends: float | None) -> Iterator[ScenarioRun]:
    """Yield scenarios in an order drawn from the seed. With a time limit, repeat them; long ones run only once.

    The first pass always runs every scenario, whatever the time limit."""
    import random

    from procession.chaos.scenario import ScenarioRun, schedule
    from procession.chaos.scenario_catalogue import BY_NAME

    chance = random.Random(seed)
    turn = 0
    while True:
        these = [BY_NAME[name] for name in names] or [
            known for known in BY_NAME.values() if turn == 0 or not known.is_long
        ]
        if not names:
            chance.shuffle(these)
        for scenario in these:
            steps = schedule(scenario, chance)
            if turn and ends is not None and time.monotonic() >= ends:
                return
            yield ScenarioRun(scenario.name, steps)
        turn += 1
        if ends is None or time.monotonic() >= ends:
            return


def _recorded(path: Path) -> tuple[int, list[ScenarioRun]]:
    from procession.chaos.scenario import ScenarioRun
    from procession.chaos.schedule_check import objection

    try:
        document = json.loads(path.read_text())
        seed, runs = int(document["seed"]), [ScenarioRun.from_dict(run) for run in document["runs"]]
        why_not = objection(runs)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"the file {path} is not a schedule: {why}", next_step="give the schedule.json of a report"
        ) from error
    if why_not:
        raise ConfigError(
            f"the file {path} is not a schedule that can be run: {why_not}",
            next_step="give the schedule.json of a report",
        )
    return seed, runs
