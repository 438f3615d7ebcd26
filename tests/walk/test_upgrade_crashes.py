"""Upgrades under kills: a program changes repeatedly while its processes are killed. Its output is that of a sequential
program that changes at the same records."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from procession.exit_status import Status
from procession.gateway.listen_address import addresses
from procession.jobs.upgrade_switch import STATUS
from procession.verify.sink_outputs import committed_output
from tests.slow_cases import slow
from tests.walk.cluster import wait_for
from tests.walk.commands import Running, living, pids, run, running

DIRECTORY = Path(".procession") / "years"
RATE = 40

APP = """
from procession import Pipeline, Upgrade, aggregates, windows

def step(state, line):
    count, migrations = {read}
    count += 1
    return {write}, f"{{line}} {{count}} {{migrations}} {version}"

def number(line):
    return int(line.split()[1])

def wait(state, line, context):
    context.timer_at(number(line) + 30)
    count, migrations = {read}
    count += 1
    return {write}, []

def waited(state, context):
    count, migrations = {read}
    return state, [f"{{context.key}} {{context.time}} {{count}} {{migrations}} {version}"]

pipeline = Pipeline("years", parallelism=2)
lines = pipeline.source("lines", codec="text")
stage = lines.map_stateful(
    step, key=lambda line: line[-1], initial={initial}, name="stage-{version}", parallelism={stage_tasks}
)
stage.sink("out", to="file:out")
counted = lines.window(
    windows.tumbling(50), aggregates.count(), key=lambda line: line[-1], time=number, name="{names[0]}",
    parallelism={window_tasks},
)
counted.map(lambda found: f"{{found['key']}} {{found['end']}} {{found['count']}}").sink("windows", to="file:kinds")
lines.process(
    wait, on_timer=waited, key=lambda line: str(number(line) % 7), initial={initial}, time=number, name="{names[1]}",
    parallelism={timer_tasks},
).sink("timers", to="file:kinds")
even = lines.filter(lambda line: number(line) % 2 == 0, name="even")
odd = lines.filter(lambda line: number(line) % 2 == 1, name="odd")
even.join(
    odd, within_s=20, join=lambda one, other: f"{{number(one)}} {{number(other)}}", time=number, name="{names[2]}",
    key=lambda line: str(number(line) % 5), parallelism={pair_tasks},
).sink("pairs", to="file:kinds")
rules = lines.filter(lambda line: number(line) % 10 == 3, name="rules")
lines.with_broadcast(
    rules, apply=lambda rule, line: f"{{number(line)}} {{rule and number(rule)}}", name="{names[3]}",
    parallelism={rule_tasks},
).sink("rules", to="file:kinds")
{sinks}
{upgrade}
"""
KINDS = ("windows", "timers", "pairs", "rules")
TASKS = ("stage", "window", "timer", "pair", "rule")


def names(version: int) -> list[str]:
    """Return the names of the stages of each kind. With each upgrade some get new ones."""
    return [f"{kind}-{(version + place) // 3}" for place, kind in enumerate(KINDS)]


def extra(version: int) -> int | None:
    """Return the number of the sink that only this version, or this one and the next, have; None if there is none."""
    return version // 2 if version % 4 else None


def program(version: int) -> str:
    """Return the program of a version. Each has another name of the stage, another form of the state, another
    parallelism of each stage, and other sinks."""
    is_dict = version % 2 == 1
    migrate = '{"n": old[0], "m": old[1] + 1}' if is_dict else '[old["n"], old["m"] + 1]'
    renamed = {f"stage-{version - 1}": f"stage-{version}"}
    renamed |= {old: new for old, new in zip(names(version - 1), names(version), strict=True) if old != new}
    migrated = ", ".join(f'"{name}": migrate' for name in (f"stage-{version}", names(version)[1]))
    upgrade = f"migrate = lambda old: {migrate}\nupgrade = Upgrade(rename={renamed!r}, migrate={{{migrated}}})"
    number = extra(version)
    sink = "" if number is None else f'stage.sink("extra-{number}", to="file:extra-{number}")'
    return APP.format(
        read='(state["n"], state["m"])' if is_dict else "state",
        write='{"n": count, "m": migrations}' if is_dict else "[count, migrations]",
        initial='{"n": 0, "m": 0}' if is_dict else "[0, 0]",
        version=version,
        names=names(version),
        **{f"{kind}_tasks": 1 + (version * (1 + place % 3) + place) % 4 for place, kind in enumerate(TASKS)},
        sinks=sink,
        upgrade=upgrade if version else "",
    )


def reference(outputs: list[str]) -> list[str]:
    """Return the output of a sequential program that changes its version at the same records."""
    states: dict[str, list[int]] = {}
    found, version = [], 0
    for line, *_, text in (output.rsplit(" ", 3) for output in outputs):
        assert int(text) >= version, "an old program wrote after a new one"
        for _ in range(int(text) - version):
            states = {key: [count, migrations + 1] for key, (count, migrations) in states.items()}
        version = int(text)
        state = states.setdefault(line[-1], [0, 0])
        state[0] += 1
        found.append(f"{line} {state[0]} {state[1]} {version}")
    return found


def fired_windows(records: int) -> list[str]:
    """Compute the windows: each of 50 records fires when the record after it comes."""
    counts = [(end, Counter(str(number)[-1] for number in range(end - 50, end))) for end in range(50, records, 50)]
    return [f"{key} {end} {found[key]}" for end, found in counts for key in sorted(found)]


def fired_timers(versions: list[int]) -> list[str]:
    """Compute the timers: that of a record fires when the record 30 later comes, before that one is counted.

    `versions` are those of the program that processed each record.
    """
    states = {str(key): [0, 0] for key in range(7)}
    found, before = [], 0
    for number, version in enumerate(versions):
        for _ in range(version - before):
            states = {key: [count, migrations + 1 if count else 0] for key, (count, migrations) in states.items()}
        before = version
        if number >= 30:
            key = str((number - 30) % 7)
            found.append(f"{key} {number} {states[key][0]} {states[key][1]} {version}")
        states[str(number % 7)][0] += 1
    return found


def joined(records: int) -> list[str]:
    """Compute the join of even and odd numbers with the same remainder by 5 and at most 20 apart: 5 or 15 apart."""
    pairs = [(number - before, number) for number in range(records) for before in (15, 5) if number >= before]
    return [f"{a} {b}" if a % 2 == 0 else f"{b} {a}" for a, b in pairs]


def ruled(records: int) -> list[str]:
    """Join each number with the last one before it, or itself, that ends with a 3."""
    return [f"{number} {(number - 3) // 10 * 10 + 3 if number >= 3 else None}" for number in range(records)]


@contextmanager
def killed(place: Path, pipeline: Running, part: str, phase: int) -> Iterator[list[int]]:
    """Kill a process of this part once, in a phase of the upgrade in the block, and yield the killed processes.

    Phase 1 is the start of the new driver, phase 2 the stop of the old one, phase 3 the start of the new one.
    """
    is_over, path = threading.Event(), place / DIRECTORY / STATUS
    before = path.read_text() if path.exists() else ""
    done: list[int] = []

    def kill() -> None:
        while not is_over.wait(0.01):
            if not path.exists() or (text := path.read_text()) == before:
                continue
            if len(json.loads(text)["told"]) >= phase and (found := pids(pipeline.mark, part)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(found[0], signal.SIGKILL)
                    done.append(found[0])
                    return

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield done
    finally:
        is_over.set()
        thread.join()


@contextmanager
def growing(path: Path) -> Iterator[Callable[[], int]]:
    """Write a file that gets `RATE` records a second until the block ends. Yields a function that returns their
    number."""
    is_over, count = threading.Event(), 0
    path.touch()

    def write() -> None:
        nonlocal count
        while not is_over.wait(10 / RATE):
            with path.open("a") as file:
                file.writelines(f"record {number}\n" for number in range(count, count + 10))
            count += 10

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield lambda: count
    finally:
        is_over.set()
        thread.join()


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("upgrades", [1, slow(10)])
def test_a_pipeline_that_is_upgraded_under_kills_writes_what_a_sequential_one_does(
    tmp_path: Path, upgrades: int
) -> None:
    for version in range(upgrades + 1):
        (tmp_path / f"v{version}.py").write_text(program(version))
    with running(*run_of(0), cwd=tmp_path) as pipeline:
        wait_for(lambda: "ready: connectors" in pipeline.said, "the start", lambda: pipeline.said)
        source = source_of(tmp_path)
        with growing(tmp_path / "input.txt") as written, running(*source, cwd=tmp_path) as sent:
            wait_for(lambda: bool(output(tmp_path)), "the first output", lambda: pipeline.said + sent.said)
            for version in range(1, upgrades + 1):
                _upgrade(tmp_path, pipeline, version)
                _wait_for_more(tmp_path, pipeline, written() + 1)
        with running(*source, cwd=tmp_path):
            _wait_for_more(tmp_path, pipeline, written())
        versions = _compare(tmp_path, written())
        assert sorted({*versions}) == [*range(upgrades + 1)], "a program processed no record"
        assert run("stop", cwd=tmp_path).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("phase", [1, 2, 3])
def test_a_run_that_is_killed_during_an_upgrade_continues_with_one_of_both_programs(tmp_path: Path, phase: int) -> None:
    for version in range(2):
        (tmp_path / f"v{version}.py").write_text(program(version))
    with growing(tmp_path / "input.txt") as written:
        with running(*run_of(0), cwd=tmp_path) as pipeline:
            wait_for(lambda: "ready: connectors" in pipeline.said, "the start", lambda: pipeline.said)
            with running(*source_of(tmp_path), cwd=tmp_path), killed(tmp_path, pipeline, "run", phase) as gone:
                wait_for(lambda: bool(output(tmp_path)), "the first output", lambda: pipeline.said)
                done = run("upgrade", "v1.py", cwd=tmp_path)
            assert gone
            assert "The pipeline ended during the upgrade" in done.stderr
            wait_for(lambda: living(pipeline.mark) == [], "the end of all processes", lambda: pipeline.said)
        for version in (1, 0):  # as the next step of the error says
            with running(*run_of(version), cwd=tmp_path) as pipeline:
                wait_for(
                    lambda pipeline=pipeline: (  # type: ignore[misc]
                        "ready: connectors" in pipeline.said or pipeline.process.poll() is not None
                    ),
                    "a start or a refusal",
                )
                if pipeline.process.poll() is not None:
                    assert pipeline.wait() == Status.ACT, pipeline.said
                    continue
                with running(*source_of(tmp_path), cwd=tmp_path):
                    _wait_for_more(tmp_path, pipeline, written() + 1)
                    if version == 0:
                        assert run("upgrade", "v1.py", cwd=tmp_path).returncode == 0, pipeline.said
                        _wait_for_more(tmp_path, pipeline, written() + 1)
                assert run("stop", cwd=tmp_path).returncode == 0
                break
    assert {*_compare(tmp_path, len(output(tmp_path)))} == {0, 1}


def run_of(version: int) -> tuple[str, ...]:
    return "run", f"v{version}.py", "--listen", "127.0.0.1:0", "--epoch-records-max", "50"


def source_of(place: Path) -> tuple[str | Path, ...]:
    to = str(addresses(place / DIRECTORY / "gateway")["listen"])
    return "source", "file", "input.txt", "--to", to, "--dir", DIRECTORY, "--follow"


def output(place: Path, directory: str = "out", sink: str = "out") -> list[str]:
    return b"".join(committed_output(place / directory, f"years-{sink}-0")).decode().splitlines()


def _wait_for_more(place: Path, pipeline: Running, count: int) -> None:
    wait_for(lambda: len(output(place)) >= count, "more output", lambda: pipeline.said)


def _upgrade(place: Path, pipeline: Running, version: int) -> None:
    """Upgrade to this version while a part is killed. If the upgrade fails, the old program continues, and the next
    attempt must succeed."""
    part = ("driver", "gateway", "driver", "sink")[version % 4]
    with killed(place, pipeline, part, 3 - version % 3) as gone:
        done = run("upgrade", f"v{version}.py", "--json", cwd=place)
    assert gone, "nothing was killed during this upgrade"
    if done.returncode:
        assert done.stdout, f"{done.stderr}\n{pipeline.said}"
        assert json.loads(done.stdout)["state"] in ("failed", "went back")
        done = run("upgrade", f"v{version}.py", "--json", cwd=place)
    assert done.returncode == 0, f"{done.stdout}\n{pipeline.said}"


def _compare(place: Path, count: int) -> list[int]:
    """Compare the committed output of all sinks, for this many records, with that of sequential programs.

    Returns the version of the program that processed each record.
    """
    found = output(place)
    assert [line.rsplit(" ", 3)[0] for line in found] == [f"record {number}" for number in range(count)]
    assert found == reference(found)
    versions = [int(line.rsplit(" ", 1)[1]) for line in found]
    assert output(place, "kinds", "windows") == fired_windows(count)
    assert output(place, "kinds", "timers") == fired_timers(versions)
    assert output(place, "kinds", "pairs") == joined(count)
    assert output(place, "kinds", "rules") == ruled(count)
    for number in {extra(version) for version in versions} - {None}:
        own = [line for line, version in zip(found, versions, strict=True) if extra(version) == number]
        assert output(place, f"extra-{number}", f"extra-{number}") == own
    return versions
