"""Pending results of every kind of stage continue with another number of tasks as if it had never changed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from procession import Pipeline, PlanError, aggregates, patterns, windows
from procession.driver.redistributed_states import redistributed
from procession.operators.value_codec import PLAIN
from procession.storage.state_store import TaskStates
from procession.storage.state_version import Files, StateCodec
from procession.testing import run, run_upgrade

CHANCE = random.Random(11)
RECORDS: list[dict[str, Any]] = [
    {"key": CHANCE.choice("abcdefghij"), "at": number + CHANCE.randint(-3, 3), "n": number} for number in range(120)
]


def key(record: Any) -> str:
    return str(record["key"])


def at(record: Any) -> float:
    return float(record["at"])


def windowed(records: Any, tasks: int) -> Any:
    return records.window(
        windows.tumbling(20), aggregates.collect(), key=key, time=at, lateness_s=5, name="stage", parallelism=tasks
    )


def sessions(records: Any, tasks: int) -> Any:
    return records.window(
        windows.session(9), aggregates.count(), key=key, time=at, lateness_s=5, name="stage", parallelism=tasks
    )


def counted(records: Any, tasks: int) -> Any:
    return records.window(windows.counting(7), aggregates.count(), key=key, name="stage", parallelism=tasks)


def expiring(records: Any, tasks: int) -> Any:
    def step(count: int, record: Any) -> tuple[int, Any]:
        return count + 1, [record["n"], count + 1]

    return records.map_stateful(step, key=key, initial=0, ttl_s=15, time=at, name="stage", parallelism=tasks)


def totals(records: Any, tasks: int) -> Any:
    return records.aggregate(aggregates.count(), key=key, name="stage", parallelism=tasks)


def joined(records: Any, tasks: int) -> Any:
    left = records.filter(lambda record: record["n"] % 2 == 0, name="even")
    right = records.filter(lambda record: record["n"] % 2 == 1, name="odd")
    return left.join(
        right,
        key=key,
        within_s=10,
        time=at,
        join=lambda one, other: [one["n"], other["n"]],
        lateness_s=5,
        name="stage",
        parallelism=tasks,
    )


def timers(records: Any, tasks: int) -> Any:
    def on_record(state: Any, record: Any, context: Any) -> tuple[Any, list[Any]]:
        context.timer_at(record["at"] + 12)
        return (state or 0) + 1, []

    def on_timer(state: Any, context: Any) -> tuple[Any, list[Any]]:
        return state, [[context.key, context.time, state]]

    return records.process(
        on_record, on_timer=on_timer, key=key, time=at, lateness_s=5, name="stage", parallelism=tasks
    )


def matched(records: Any, tasks: int) -> Any:
    even = patterns.begin("even", lambda record: record["n"] % 2 == 0)
    pair = even.then("odd", lambda record: record["n"] % 2 == 1)
    return records.match(pair, within_s=20, key=key, time=at, lateness_s=5, name="stage", parallelism=tasks)


def joined_all(records: Any, tasks: int) -> Any:
    first, second, third = records.split(lambda record: "abc"[record["n"] % 3], "a", "b", "c")
    return first.join_all(
        second,
        third,
        within_s=15,
        join=lambda *found: [record["n"] for record in found],
        key=key,
        time=at,
        lateness_s=5,
        name="stage",
        parallelism=tasks,
    )


def versions(records: Any, tasks: int) -> Any:
    prices = records.filter(lambda record: record["n"] % 4 == 0, name="prices")
    return records.as_of(
        prices,
        join=lambda record, price: [record["n"], price and price["n"]],
        key=key,
        time=at,
        valid_from=at,
        name="stage",
        parallelism=tasks,
    )


def latest(records: Any, tasks: int) -> Any:
    rules = records.filter(lambda record: record["n"] % 10 == 0, name="rules")
    return records.with_broadcast(
        rules, apply=lambda rule, record: [record["n"], rule and rule["n"]], name="stage", parallelism=tasks
    )


STAGES = [
    *(windowed, sessions, counted, expiring, totals, joined, joined_all, timers, matched, versions, latest),
]


def pipeline(stage: Any, tasks: int) -> Pipeline:
    made = Pipeline("kinds")
    stage(made.source("records", codec="json", ends=True), tasks).sink("out", to="file:out", codec="json")
    return made


@pytest.mark.parametrize(("before", "after"), [(2, 5), (4, 1), (1, 3)])
@pytest.mark.parametrize("stage", STAGES)
def test_pending_results_continue_with_another_number_of_tasks(stage: Any, before: int, after: int) -> None:
    reference = run(pipeline(stage, before), {"records": RECORDS})["out"]
    assert reference
    first, second = run_upgrade(
        pipeline(stage, before),
        {"records": RECORDS[:57]},
        pipeline(stage, after),
        {"records": RECORDS[57:]},
        epochs=13,
    )
    assert first["out"] + second["out"] == reference


def written(directory: Path, name: str, entries: dict[bytes, Any]) -> Files:
    states = TaskStates(directory, (), StateCodec(PLAIN.packed, PLAIN.decoded_value))
    states.begin(name)
    states.take(()).update(entries)
    states.touch(entries)
    return states.finish()


def test_tasks_that_do_not_agree_on_their_input_are_refused(tmp_path: Path) -> None:
    tasks = [written(tmp_path, f"task-{task}", {b"i": {"steps": {0: task}}}) for task in range(2)]
    with pytest.raises(PlanError, match="have seen different parts of the input"):
        redistributed("stage", tasks, 3, tmp_path, 9, 4, PLAIN)
    assert len(redistributed("stage", tasks[:1], 3, tmp_path, 10, 4, PLAIN)) == 3
