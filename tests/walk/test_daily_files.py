"""Daily files in event-time order: real runs to which a file of the next day is added, with and without kills."""

from __future__ import annotations

import json
import os
import random
import runpy
import signal
from pathlib import Path
from typing import Any

import pytest

from procession.exit_status import Status
from procession.testing import run as run_in_process
from tests.walk.cluster import wait_for
from tests.walk.commands import pids, run, running

APP = """
from procession import Pipeline

pipeline = Pipeline("rating", order_by="event_time", late="drop")
calls = pipeline.source(
    "calls", from_="file:calls-*.jsonl", codec="json", ends=False, event_time_field="at", event_time_unit="ms"
)
rates = pipeline.source("rates", from_="file:rates.jsonl", codec="json", event_time_field="valid.from")
calls.merge(rates).sink("out", to="file:out")
"""

BY_PATTERN = """
from pathlib import Path
from procession import Pipeline

pipeline = Pipeline("rating", order_by="event_time", late="drop")
streams = [Path("calls-*.jsonl"), Path("rates-*.jsonl")]
pipeline.source("both", codec="json", streams=streams, ends=ENDS).sink("out", to="file:out")
"""
RATED = """
from procession import Pipeline, aggregates, windows

pipeline = Pipeline("rated", parallelism=TASKS, order_by="event_time", late="dead-letter", dead_letter="file:dead")
calls = pipeline.source(
    "calls", from_="file:calls-*.jsonl", codec="json", ends=ENDS, event_time_field="at", event_time_unit="ms"
)
rates = pipeline.source("rates", from_="file:rates.jsonl", codec="json", event_time_field="valid.from", ends=ENDS)
limits = pipeline.source("limits", from_="file:limits-*.jsonl", codec="json", event_time_field="at", ends=ENDS)
rated = calls.as_of(
    rates,
    join=lambda call, rate: {**call, "cents": rate and rate["cents"] * call["minutes"]},
    left_key=lambda call: call["zone"],
    right_key=lambda rate: rate["zone"],
    time=lambda call: call["at"] / 1000,
    valid_from=lambda rate: rate["valid"]["from"],
)
rated.with_broadcast(limits, apply=lambda limit, call: [call["id"], call["cents"], limit and limit["cents"]]).sink(
    "rated", to="file:out"
)
bills = rated.window(windows.tumbling(20), aggregates.collect(), key=lambda call: call["zone"])
bills.sink("bills", to="file:bills")
"""
INPUTS = ("--input", "calls-*.jsonl", "--input", "rates-*.jsonl", "--event-time-field", "at")


def write(path: Path, records: list[Any]) -> None:
    """Write a whole file at once. The next file completes the one before it."""
    draft = path.with_suffix(".draft")
    draft.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    draft.rename(path)


@pytest.mark.slow
def test_a_file_of_the_next_day_joins_the_order_and_what_is_older_than_its_stream_is_late(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    rates = [{"valid": {"from": second}} for second in (0, 15, 35, 99)]
    write(tmp_path / "rates.jsonl", rates)
    write(tmp_path / "calls-1.jsonl", [{"at": 10_000}, {"at": 20_000}])

    def output() -> list[Any]:
        return [json.loads(line) for line in run("cat", "out", cwd=tmp_path).stdout.splitlines()]

    first = [rates[0], {"at": 10_000}, rates[1], {"at": 20_000}]
    with running("run", "app.py", "--listen", "127.0.0.1:0", cwd=tmp_path) as pipeline:
        wait_for(lambda: (tmp_path / "out").exists() and output() == first, "day 1", lambda: pipeline.said)
        # Older than the last record of its stream, and than one of another stream that was emitted already.
        write(tmp_path / "calls-2.jsonl", [{"at": 12_000}, {"at": 30_000}, {"at": 40_000}])
        both = [*first, {"at": 30_000}, rates[2], {"at": 40_000}]
        wait_for(lambda: output() == both, "day 2", lambda: pipeline.said)
        pipeline.process.send_signal(signal.SIGINT)
        assert pipeline.wait() == Status.DONE, pipeline.said
    assert "1 of them arrived late, and was dropped" in pipeline.said


@pytest.mark.slow
def test_files_of_declared_patterns_join_the_order_whatever_is_killed_and_a_second_run_writes_the_same(
    tmp_path: Path,
) -> None:
    calls: list[list[dict[str, Any]]] = [
        [{"call": at, "at": at} for at in range(day * 100, day * 100 + 90, 4)] for day in range(5)
    ]
    calls[2].insert(0, {"call": "late", "at": 150})
    rates = [[{"rate": at, "at": at} for at in range(day * 100 + 1, day * 100 + 100, 20)] for day in range(5)]
    expected = sorted(
        (one for day in calls + rates for one in day if one.get("call") != "late"), key=lambda one: one["at"]
    )
    first, second = tmp_path / "first", tmp_path / "second"
    for directory, ends in ((first, "False"), (second, "None")):
        directory.mkdir()
        (directory / "app.py").write_text(BY_PATTERN.replace("ENDS", ends))

    def output() -> list[Any]:
        return [json.loads(line) for line in run("cat", "out", cwd=first).stdout.splitlines()]

    with running("run", "app.py", "--listen", "127.0.0.1:0", *INPUTS, cwd=first) as pipeline:
        for day, victim in enumerate(("source", "gateway", "driver", "sink", "source")):
            write(first / f"rates-{day}.jsonl", rates[day])
            write(first / f"calls-{day}.jsonl", calls[day])
            wait_for(lambda victim=victim: pids(pipeline.mark, victim), victim, lambda: pipeline.said)
            os.kill(pids(pipeline.mark, victim)[0], signal.SIGKILL)
            # The merge waits for both, so what is settled reaches up to the one that is behind.
            settled = min(calls[day][-1]["at"], rates[day][-1]["at"])
            before = [one for one in expected if one["at"] <= settled]
            wait_for(
                lambda before=before: (first / "out").exists() and output() == before,
                f"day {day}",
                lambda: pipeline.said,
            )
        pipeline.process.send_signal(signal.SIGINT)
        assert pipeline.wait() == Status.DONE, pipeline.said
    # All at once, until their ends.
    for day in range(5):
        write(second / f"calls-{day}.jsonl", calls[day])
        write(second / f"rates-{day}.jsonl", rates[day])
    done = run("run", "app.py", "--listen", "127.0.0.1:0", *INPUTS, cwd=second)
    assert done.returncode == Status.DONE, done.stderr
    assert "1 of them arrived late" in done.stdout + done.stderr
    whole = [json.loads(line) for line in run("cat", "out", cwd=second).stdout.splitlines()]
    assert whole == expected
    assert whole[: len(before)] == before


def rated_inputs(days: int) -> dict[str, list[list[Any]]]:
    """Return calls and limits by day, and all rates. The times of each are in order, except one late call a day."""
    chance = random.Random(22)
    calls, limits, at = [], [], 1_000
    for day in range(days):
        today = []
        for number in range(40):
            at += chance.randrange(2_000)
            today.append({"id": day * 100 + number, "at": at, "zone": chance.choice("ab"), "minutes": number})
        today.insert(7, {**today[6], "id": -1 - day, "at": today[6]["at"] - 500})
        calls.append(today)
        limits.append([{"at": today[place]["at"] / 1000, "cents": 50 + place + day} for place in (0, 9, 25)])
    rates = [
        {"valid": {"from": 13 * number}, "zone": "ab"[number % 2], "cents": number} for number in range(at // 13_000)
    ]
    return {"calls": calls, "rates": [rates], "limits": limits}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epoch_records_max", "tasks"), [(7, 1), (7, 3), (40, 2), (40, 4), (1_000, 1), (1_000, 3), (1_000, 4)]
)
def test_i11_sources_by_event_time_are_processed_as_in_the_sequential_run_whatever_is_killed(
    tmp_path: Path, epoch_records_max: int, tasks: int
) -> None:
    app = RATED.replace("TASKS", str(tasks))
    (tmp_path / "app.py").write_text(app.replace("ENDS", "False"))
    inputs = rated_inputs(days=4)
    reference = tmp_path / "reference.py"
    reference.write_text(app.replace("ENDS", "None"))
    pipeline = runpy.run_path(str(reference))["pipeline"]
    flat = {source: [record for day in days for record in day] for source, days in inputs.items()}
    expected = run_in_process(pipeline, flat, parallelism=1)
    assert len(expected["dead-letter"]) == 4
    assert len(expected["bills"]) > 10

    def found(sink: str) -> list[Any]:
        return [json.loads(line) for line in run("cat", sink, cwd=tmp_path).stdout.splitlines()]

    write(tmp_path / "rates.jsonl", inputs["rates"][0])
    arguments = ["--listen", "127.0.0.1:0", "--epoch-records-max", str(epoch_records_max), "--epoch-target-s", "0"]
    with running("run", "app.py", *arguments, cwd=tmp_path) as pipe:
        for day, victim in enumerate(("driver", "source", "gateway", "sink")):
            write(tmp_path / f"limits-{day}.jsonl", inputs["limits"][day])
            write(tmp_path / f"calls-{day}.jsonl", inputs["calls"][day])
            wait_for(lambda victim=victim: pids(pipe.mark, victim), victim, lambda: pipe.said)
            for pid in pids(pipe.mark, victim):
                os.kill(pid, signal.SIGKILL)
            # The merge waits for the next limit: what is before the last one of this day has come.
            settled = inputs["limits"][day][-1]["at"] * 1000
            count = sum(
                call["at"] < settled for today in inputs["calls"][: day + 1] for call in today if call["id"] >= 0
            )
            wait_for(
                lambda count=count: (tmp_path / "out").exists() and len(found("out")) >= count,
                f"day {day}",
                lambda: pipe.said,
            )
        pipe.process.send_signal(signal.SIGINT)
        assert pipe.wait() == Status.DONE, pipe.said
    rated, bills = found("out"), found("bills")
    assert rated == expected["rated"][: len(rated)]
    assert bills == expected["bills"][: len(bills)]
    assert len(rated) >= count
    assert bills
