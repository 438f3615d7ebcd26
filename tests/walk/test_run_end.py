"""`procession run --input` ends when the results of the end of the input are committed.

In all these tests the end has its own epoch, because an epoch has at most as many records as the input.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from procession import faults
from procession.exit_status import Status
from procession.verify.sink_outputs import committed_output
from tests.slow_cases import slow
from tests.walk.cluster import wait_for
from tests.walk.commands import living, pids, run, running

RECORDS = 300

APP = '''
import os, time
from pathlib import Path
from procession import Aggregate, Pipeline, windows, aggregates

HERE = Path(__file__).parent

def finished(count):
    """Runs in the epoch of the end only. Arms a fault point, once; waits as long as it is asked to."""
    try:
        (HERE / "armed").rename(HERE / "fault")
    except FileNotFoundError:
        pass
    (HERE / "ended").touch()
    while (HERE / "wait").exists():
        time.sleep(0.01)
    return count

pipeline = Pipeline("end")
numbers = pipeline.source("numbers").map(int)
numbers.map(str).sink("raw", to="file:output")
numbers.aggregate(Aggregate(int, lambda held, _: held + 1, finished)).sink("total", to="file:output", codec="json")
numbers.aggregate(aggregates.count(), key=lambda n: str(n % 3)).sink("by-key", to="file:output", codec="json")
numbers.sort(lambda n: -n).map(str).sink("sorted", to="file:output")
numbers.window(windows.tumbling(1000), aggregates.count(), time=lambda n: n, name="wide").sink(
    "windows", to="file:output", codec="json"
)
'''


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "input.txt").write_text("".join(f"{number}\n" for number in range(RECORDS)))
    return tmp_path


ARGUMENTS = ("run", "app.py", "--input", "input.txt", "--listen", "127.0.0.1:0", "--epoch-records-max", str(RECORDS))


def outputs(place: Path) -> dict[str, list[str]]:
    names = ("raw", "total", "by-key", "sorted", "windows")
    found = {name: b"".join(committed_output(place / "output", f"end-{name}-0")).decode() for name in names}
    return {name: text.splitlines() for name, text in found.items()}


def check_outputs(place: Path, records: int = RECORDS) -> None:
    found = outputs(place)
    assert found["raw"] == [str(number) for number in range(records)]
    assert found["sorted"] == [str(number) for number in reversed(range(records))]
    assert [json.loads(line) for line in found["total"]] == [{"count": records, "value": records}]
    assert [json.loads(line)["count"] for line in found["by-key"]] == ([records // 3] * 3 if records else [])
    assert [json.loads(line)["count"] for line in found["windows"]] == ([records] if records else [])


@pytest.mark.slow  # tests/testing/test_in_process.py has the totals of an empty input, tests/connectors an empty file
def test_an_empty_input_gives_its_totals(place: Path) -> None:
    (place / "input.txt").write_text("")
    done = run(*ARGUMENTS, cwd=place)
    assert done.returncode == Status.DONE, done.stderr
    check_outputs(place, 0)


POINTS = [
    slow("driver:before-record"),  # test_ends kills a driver there in each run
    slow("driver:before-phase2"),
    slow("driver:before-ack"),
    slow("gateway:before-snapshot"),
    slow("gateway:before-ack"),
    slow("sink:before-vote"),
    slow("sink:before-commit"),  # a sink does not know of ends: test_crash_points kills it at each of its points
]


@pytest.mark.parametrize("point", POINTS)
def test_output_of_the_end_is_complete_when_run_exits_whichever_process_is_killed(place: Path, point: str) -> None:
    (place / "armed").write_text(point)
    done = run(*ARGUMENTS, "--json", cwd=place, **{faults.FILE_VARIABLE: str(place / "fault")})
    assert done.returncode == Status.DONE, done.stderr
    assert not (place / "fault").exists()
    assert not (place / "armed").exists()
    figures = json.loads(done.stdout)
    assert (figures["restarts"], figures["committed"], figures["is_done"]) == (1, RECORDS, True)
    check_outputs(place)


@pytest.mark.slow
def test_a_source_that_is_killed_after_its_end_was_sent_is_waited_for_again(place: Path) -> None:
    (place / "wait").touch()
    with running(*ARGUMENTS, cwd=place) as command:
        wait_for((place / "ended").exists, "the epoch of the end", lambda: command.said)
        (source,) = pids(command.mark, "source")
        os.kill(source, signal.SIGKILL)
        wait_for(lambda: "source was ended by signal 9" in command.said, "its death", lambda: command.said)
        (place / "wait").unlink()
        assert command.wait() == Status.DONE, command.said
        assert living(command.mark) == []
    check_outputs(place)


def test_a_run_that_is_stopped_after_the_end_of_its_input_is_not_done_and_says_what_is_held_back(place: Path) -> None:
    stop_at_the_end(place)


@pytest.mark.slow
def test_a_run_that_was_stopped_after_the_end_of_its_input_is_finished_by_the_next_one(place: Path) -> None:
    stop_at_the_end(place)
    (place / "wait").unlink()
    done = run(*ARGUMENTS, "--json", cwd=place)
    assert done.returncode == Status.DONE, done.stderr
    assert json.loads(done.stdout)["committed"] == 0, "the records were committed by the run before"
    check_outputs(place)
    again = run(*ARGUMENTS, cwd=place)
    assert again.returncode == Status.DONE, again.stderr


def stop_at_the_end(place: Path) -> None:
    """Interrupt a run in the epoch of the end, and check its output."""
    (place / "wait").touch()
    with running(*ARGUMENTS, cwd=place) as command:
        wait_for((place / "ended").exists, "the epoch of the end", lambda: command.said)
        command.process.send_signal(signal.SIGINT)
        assert command.wait() == Status.UNCLEAN, command.said
        assert "stopped before the whole input and its end were committed" in command.said
        for held in ("the records of the sort ", "the totals of ", "the open windows of 'wide'"):
            assert held in command.said.splitlines()[-1]
    assert outputs(place)["total"] == []
