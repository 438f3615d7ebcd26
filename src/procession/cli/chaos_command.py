"""`procession chaos`: the command. Words in, one call out.

The one rule: as in `cli`. The seed is printed before anything is done and the schedule is kept as it is run, so that
whatever happens can be run again with `--replay`. Before it the command line; after it `chaos/harness`, on the cluster
of `chaos/chaos_cluster`.
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
    from procession.chaos.scenario import Run

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
        told = {one.name: one.prose for one in CATALOGUE}
        print(json.dumps(told) if as_json else "\n".join(f"{name:36}{prose}" for name, prose in told.items()))
        return
    for name in scenario or []:
        if name not in BY_NAME:
            raise _unknown(name, BY_NAME)
    if replay is not None and (scenario or minutes is not None or seed is not None):
        raise UsageError(
            "a schedule says itself what is done, and how often",
            next_step="give --replay without --scenario, --minutes and --seed",
        )
    chosen = secrets.randbelow(10_000) if seed is None else seed
    recorded = None
    if replay is not None:
        chosen, recorded = _recorded(replay)
    place = (report or Path("chaos-report")).resolve()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{place} cannot be made: {error.strerror}", next_step="give another --report") from error
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
            is_same = replay is not None and replay.resolve() == kept  # it is there already, all of it
            chronicle = harness.run(_kept(runs, chosen, None if is_same else kept, screen.say))
    write_report(place / REPORT, chronicle)
    if chronicle.outcome == "clean":
        shutil.rmtree(work)
    elif work.exists():
        screen.say(f"everything is kept in {work}")
    print(json.dumps(chronicle.figures()) if as_json else chronicle.sentence())
    if not as_json:
        again = f"again: procession chaos --replay {place / SCHEDULE}; " if chronicle.runs else ""
        print(f"{again}the report: {place / REPORT}")
    if chronicle.outcome != "clean":
        is_stopped = chronicle.was_stopped and chronicle.outcome != "violated"
        raise typer.Exit(Status.INTERRUPTED if is_stopped else Status.UNCLEAN)


def _unknown(name: str, names: Iterable[str]) -> UsageError:
    from difflib import get_close_matches

    near = get_close_matches(name, list(names), n=3)
    guess = f"did you mean {' or '.join(near)}? " if near else ""
    return UsageError(f"no scenario is called {name!r}", next_step=f"{guess}`procession chaos --list` shows all")


def _kept(runs: Iterable[Run], seed: int, path: Path | None, say: Callable[[str], None]) -> Iterator[Run]:
    """The same runs. Before each one it is said what will be done, and the schedule up to here is on disk."""
    so_far: list[dict[str, Any]] = []
    for run in runs:
        so_far.append(run.as_dict())
        if path is not None:
            path.write_text(json.dumps({"seed": seed, "runs": so_far}, indent=1))
        say(f"{run.scenario}: {'; '.join(map(str, run.steps))}")
        yield run


def _drawn(names: Sequence[str], seed: int, ends: float | None) -> Iterator[Run]:
    """Scenarios in an order drawn from the seed; with a time limit over and over, long ones in the first turn only.
    The first turn is never cut short: what was not run was not tried."""
    import random

    from procession.chaos.scenario import Run, schedule
    from procession.chaos.scenario_catalogue import BY_NAME

    chance = random.Random(seed)
    turn = 0
    while True:
        these = [BY_NAME[name] for name in names] or [one for one in BY_NAME.values() if turn == 0 or not one.is_long]
        if not names:
            chance.shuffle(these)
        for one in these:
            steps = schedule(one, chance)
            if turn and ends is not None and time.monotonic() >= ends:
                return
            yield Run(one.name, steps)
        turn += 1
        if ends is None or time.monotonic() >= ends:
            return


def _recorded(path: Path) -> tuple[int, list[Run]]:
    from procession.chaos.scenario import Run
    from procession.chaos.schedule_check import objection

    try:
        told = json.loads(path.read_text())
        seed, runs = int(told["seed"]), [Run.from_dict(one) for one in told["runs"]]
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
