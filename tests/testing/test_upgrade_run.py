"""Upgrades in a test: the second program continues as if it had always run."""

from __future__ import annotations

import random
from typing import Any

import pytest

from procession import Pipeline, PlanError, Upgrade, aggregates, windows
from procession.errors import UsageError
from procession.testing import run, run_upgrade

WORDS = [random.Random(7).choice("abcdef") for _ in range(60)]
OTHERS = [random.Random(8).choice("abcdefgh") for _ in range(60)]


def counted(state: int, word: str) -> tuple[int, list[Any]]:
    return state + 1, [word, state + 1]


def totalled(state: dict[str, int], word: str) -> tuple[dict[str, int], list[Any]]:
    return {"n": state["n"] + 1}, [word, state["n"] + 1]


def pipeline(step: Any = counted, initial: Any = 0, name: str = "count", tasks: int = 2, **more: Any) -> Pipeline:
    made = Pipeline("words")
    words = made.source("words", codec="text")
    words.map_stateful(step, key=str, initial=initial, name=name, parallelism=tasks, **more).sink(
        "out", to="file:out", codec="json"
    )
    return made


REFERENCE = run(pipeline(), {"words": WORDS + OTHERS})["out"]


@pytest.mark.parametrize("epochs", [None, 7])
@pytest.mark.parametrize(
    ("after", "upgrade"),
    [
        (pipeline(), Upgrade()),
        (pipeline(tasks=5), Upgrade()),
        (pipeline(tasks=1, name="sum"), Upgrade(rename={"count": "sum"})),
        (pipeline(totalled, {"n": 0}), Upgrade(migrate={"count": lambda count: {"n": count}})),
        (
            pipeline(totalled, {"n": 0}, "sum", 3),
            Upgrade(rename={"count": "sum"}, migrate={"sum": lambda count: {"n": count}}),
        ),
    ],
)
def test_the_output_is_that_of_one_program_that_changes_between_two_records(
    after: Pipeline, upgrade: Upgrade, epochs: int | None
) -> None:
    first, second = run_upgrade(pipeline(), {"words": WORDS}, after, {"words": OTHERS}, upgrade=upgrade, epochs=epochs)
    assert first["out"] + second["out"] == REFERENCE


def test_states_that_expire_are_migrated_with_their_times() -> None:
    def timed(step: Any, initial: Any) -> Pipeline:
        return pipeline(step, initial, ttl_s=100, time=lambda word: float(WORDS.index(word)))

    reference = run(timed(counted, 0), {"words": WORDS + WORDS})["out"]
    first, second = run_upgrade(
        timed(counted, 0),
        {"words": WORDS},
        timed(totalled, {"n": 0}),
        {"words": WORDS},
        upgrade=Upgrade(migrate={"count": lambda count: {"n": count}}),
    )
    assert first["out"] + second["out"] == reference


@pytest.mark.parametrize("tasks", [2, 3])
def test_states_with_timers_are_migrated_and_their_timers_stay(tasks: int) -> None:
    numbers = [{"key": WORDS[at % 20], "at": at} for at in range(60)]

    def waiting(read: Any, write: Any, initial: Any, tasks: int) -> Pipeline:
        def on_record(state: Any, record: Any, context: Any) -> tuple[Any, list[Any]]:
            context.timer_at(record["at"] + 9)
            return (None if record["at"] % 5 == 0 else write(read(state) + 1)), []

        def on_timer(state: Any, context: Any) -> tuple[Any, list[Any]]:
            return state, [[context.key, context.time, read(state)]]

        made = Pipeline("numbers")
        stage = made.source("numbers", codec="json").process(
            on_record,
            on_timer=on_timer,
            key=lambda record: record["key"],
            time=lambda record: record["at"],
            initial=initial,
            name="waiting",
            parallelism=tasks,
        )
        stage.sink("out", to="file:out", codec="json")
        return made

    old = waiting(lambda state: state, lambda count: count, 0, 2)
    new = waiting(lambda state: state["n"], lambda count: {"n": count}, {"n": 0}, tasks)
    reference = run(old, {"numbers": numbers})["out"]
    upgrade = Upgrade(migrate={"waiting": lambda count: {"n": count}})
    first, second = run_upgrade(old, {"numbers": numbers[:31]}, new, {"numbers": numbers[31:]}, upgrade=upgrade)
    assert first["out"] + second["out"] == reference
    assert first["out"]


def test_a_dropped_stage_begins_without_states_and_none_removes_a_key() -> None:
    for upgrade in (Upgrade(drop=["count"]), Upgrade(migrate={"count": lambda count: None})):
        _, second = run_upgrade(pipeline(), {"words": WORDS}, pipeline(), {"words": OTHERS}, upgrade=upgrade)
        assert second["out"] == run(pipeline(), {"words": OTHERS})["out"]


def test_open_windows_and_sorts_continue_behind_the_upgrade() -> None:
    def windowed(changes: bool) -> Pipeline:
        made = Pipeline("numbers")
        numbers = made.source("numbers", codec="json", ends=True)
        changed = numbers.map(lambda number: number + 0) if changes else numbers
        changed.window(windows.tumbling(10), aggregates.count(), time=float, name="tens").sink(
            "sums", to="file:out", codec="json"
        )
        changed.sort(lambda number: -number, name="sorted").sink("sorted", to="file:out", codec="json")
        return made

    numbers = list(range(35))
    reference = run(windowed(False), {"numbers": numbers})
    first, second = run_upgrade(
        windowed(False), {"numbers": numbers[:17]}, windowed(True), {"numbers": numbers[17:]}, epochs=4
    )
    assert {name: first[name] + second[name] for name in first} == dict(reference)


def test_a_migration_that_fails_names_the_stage_and_the_state() -> None:
    with pytest.raises(PlanError, match=r"migrate function of stage 'count' raised TypeError.*the state was \d"):
        run_upgrade(
            pipeline(), {"words": WORDS}, pipeline(), {"words": OTHERS}, upgrade=Upgrade(migrate={"count": len})
        )
    with pytest.raises(PlanError, match="state that cannot be stored"):
        run_upgrade(
            pipeline(),
            {"words": WORDS},
            pipeline(),
            {"words": []},
            upgrade=Upgrade(migrate={"count": lambda n: object()}),
        )


def test_a_pipeline_in_event_time_order_is_refused() -> None:
    made = Pipeline("ordered", order_by="event_time", lateness_s=1)
    made.source("words", streams=["a"]).sink("out", to="file:out")
    with pytest.raises(UsageError, match="event-time order"):
        run_upgrade(made, {}, made, {})
