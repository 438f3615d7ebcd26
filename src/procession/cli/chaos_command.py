"""The command `procession chaos`.

As in `cli/main`, it only parses and prints. It prints the seed first and writes the schedule while it runs, so every
run can be repeated with `--replay`. `chaos/harness` runs the scenarios, on the clusters of `chaos/systems`.
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
    from procession.chaos.history import History
    from procession.chaos.scenario import ClusterParts, ScenarioRun
    from procession.chaos.screen import Screen

SCHEDULE = "schedule.json"
REPORT = "report.html"


def chaos(
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            show_default="all whose systems are installed",
            help="Only this scenario, or those that match a pattern such as 'kafka-*' (repeatable; see --list).",
        ),
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

    from procession.chaos.html_report import write_report
    from procession.chaos.scenario_catalogue import CATALOGUE, cluster_of
    from procession.chaos.screen import Screen
    from procession.verify.verdict import worst

    if as_list:
        descriptions = {known.name: known.description for known in CATALOGUE}
        print(
            json.dumps(descriptions)
            if as_json
            else "\n".join(f"{name:36}{description}" for name, description in descriptions.items())
        )
        return
    names = _matching(scenario or [])
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
    histories: dict[str, History] = {}
    reports: dict[str, Path] = {}
    with Screen() as screen:
        screen.say(f"seed {chosen}; the report goes to {place}")
        clusters = _clusters([run.scenario for run in recorded] if recorded is not None else names, screen.say)
        ends = None if minutes is None else time.monotonic() + 60 * minutes
        is_same = replay is not None and replay.resolve() == place / SCHEDULE  # the file is already complete
        so_far: list[dict[str, Any]] = []
        for cluster in clusters:
            runs: Iterable[ScenarioRun] = (
                (run for run in recorded if cluster_of(run.scenario) is cluster)
                if recorded is not None
                else _drawn(names, chosen, ends if cluster is clusters[-1] else None, cluster)
            )
            kept = _kept(runs, chosen, None if is_same else place / SCHEDULE, screen.say, so_far)
            history = histories[cluster.name] = _run_on(cluster, kept, chosen, deadline_s, screen)
            reports[cluster.name] = place / (REPORT if len(clusters) == 1 else f"report-{cluster.name}.html")
            write_report(reports[cluster.name], history)
            if history.was_stopped:
                break
    outcome = worst(history.outcome for history in histories.values())
    if as_json:
        figures = [history.figures() for history in histories.values()]
        print(json.dumps(figures[0] if len(figures) == 1 else {"outcome": outcome, "clusters": figures}))
    else:
        for name, history in histories.items():
            print((f"{name}: " if len(histories) > 1 else "") + history.sentence())
        again = f"repeat with: procession chaos --replay {place / SCHEDULE}; " if so_far else ""
        print(f"{again}the report: {', '.join(map(str, reports.values()))}")
    if outcome != "clean":
        is_stopped = outcome != "violated" and any(history.was_stopped for history in histories.values())
        raise typer.Exit(Status.INTERRUPTED if is_stopped else Status.UNCLEAN)


def _matching(given: Sequence[str]) -> list[str]:
    """Return the names of scenarios; a pattern such as kafka-* stands for all that match. Raises UsageError."""
    from fnmatch import fnmatchcase

    from procession.chaos.scenario_catalogue import BY_NAME

    names: list[str] = []
    for text in given:
        found = [text] if text in BY_NAME else [name for name in BY_NAME if fnmatchcase(name, text)]
        if not found:
            raise _unknown(text, BY_NAME)
        names += [name for name in found if name not in names]
    return names


def _clusters(names: Sequence[str], say: Callable[[str], None]) -> list[ClusterParts]:
    """Return the clusters of these scenarios, the standard cluster last. Without names, return the clusters of all
    scenarios whose systems are installed. Raises ConfigError if a named scenario needs such a system."""
    from procession.chaos.machine_scenarios import MACHINES
    from procession.chaos.scenario import STANDARD
    from procession.chaos.scenario_catalogue import cluster_of
    from procession.chaos.system_parts import SYSTEM_CLUSTERS
    from procession.chaos.systems import check_installed

    wanted = [cluster_of(name) for name in names] if names else [*SYSTEM_CLUSTERS, MACHINES, STANDARD]
    chosen: list[ClusterParts] = []
    for cluster in (*SYSTEM_CLUSTERS, MACHINES, STANDARD):
        if cluster not in wanted:
            continue
        try:
            check_installed(cluster)
            chosen.append(cluster)
        except ConfigError as error:
            if names:
                raise
            say(f"omitted: the scenarios of the cluster {cluster.name}. {error.sentence} {error.next_step}")
    return chosen


def _run_on(
    cluster: ClusterParts, runs: Iterable[ScenarioRun], seed: int, deadline_s: float, screen: Screen
) -> History:
    """Start a cluster and run scenarios on it. Its files are removed if the verdict is clean."""
    import shutil
    import tempfile

    from procession.chaos.harness import Harness
    from procession.chaos.system_cluster import StoppedEarly
    from procession.chaos.systems import running

    work = Path(tempfile.mkdtemp(prefix="procession-chaos-"))
    try:
        with running(
            cluster, work, lambda: screen.say(f"starting {cluster.description}; working in {work}")
        ) as started:
            harness = Harness(
                started.cluster,
                seed=seed,
                deadline_s=deadline_s,
                outputs=started.outputs,
                show=screen.show,
                parts=cluster,
                make_workload=started.make_workload,
            )
            history = harness.run(runs)
    except StoppedEarly:
        shutil.rmtree(work)
        screen.say("stopped before the cluster had started: nothing was tested")
        raise typer.Exit(Status.INTERRUPTED) from None
    if history.outcome == "clean":
        shutil.rmtree(work)
    elif work.exists():
        screen.say(f"all files are kept in {work}")
    return history


def _unknown(name: str, names: Iterable[str]) -> UsageError:
    from difflib import get_close_matches

    near = get_close_matches(name, list(names), n=3)
    guess = f"did you mean {' or '.join(near)}? " if near else ""
    return UsageError(f"no scenario is called {name!r}", next_step=f"{guess}`procession chaos --list` shows all")


def _kept(
    runs: Iterable[ScenarioRun],
    seed: int,
    path: Path | None,
    say: Callable[[str], None],
    so_far: list[dict[str, Any]],
) -> Iterator[ScenarioRun]:
    """Yield the same runs. Before each run, print its steps and write the schedule so far to disk."""
    for run in runs:
        so_far.append(run.as_dict())
        if path is not None:
            path.write_text(json.dumps({"seed": seed, "runs": so_far}, indent=1))
        say(f"{run.scenario}: {'; '.join(map(str, run.steps))}")
        yield run


def _drawn(
    names: Sequence[str], seed: int, ends: float | None, cluster: ClusterParts | None = None
) -> Iterator[ScenarioRun]:
    """Yield the scenarios of a cluster (None: the standard one) in an order drawn from the seed. With a time limit,
    repeat them; long scenarios run only once.

    The first pass always runs every scenario, even if that exceeds the time limit."""
    import random

    from procession.chaos.scenario import STANDARD, ScenarioRun, schedule
    from procession.chaos.scenario_catalogue import BY_NAME

    chance = random.Random(seed)
    turn = 0
    while True:
        these = [BY_NAME[name] for name in names] or [
            known for known in BY_NAME.values() if turn == 0 or not known.is_long
        ]
        these = [known for known in these if known.cluster is (cluster or STANDARD)]
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
    from procession.chaos.schedule_check import schedule_problem

    try:
        document = json.loads(path.read_text())
        seed, runs = int(document["seed"]), [ScenarioRun.from_dict(run) for run in document["runs"]]
        why_not = schedule_problem(runs)
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
