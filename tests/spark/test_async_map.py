"""Asynchronous calls keep the order, have a limit on concurrent calls, and a failed call fails the epoch."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from procession import Pipeline
from procession.errors import ProcessionError, RoundError
from procession.operators.chain import CallFailed
from procession.planner.rules import make_plan
from procession.spark.async_map import await_all
from procession.spark.tasks import Attempt, Task
from tests.operators.reference import batch_of
from tests.spark.cluster import write_log


def test_results_come_in_the_order_of_the_records_whichever_call_ends_first() -> None:
    ended: list[int] = []

    async def call(number: int) -> int:
        for _ in range((number * 7) % 5):
            await asyncio.sleep(0)
        ended.append(number)
        return number * 2

    assert await_all(call, list(range(50)), 8, 10.0) == [2 * number for number in range(50)]
    assert ended != sorted(ended)


@pytest.mark.parametrize("concurrency", [1, 3, 100])
def test_never_more_calls_are_under_way_than_allowed(concurrency: int) -> None:
    now = most = 0

    async def call(number: int) -> int:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return number

    await_all(call, list(range(40)), concurrency, 10.0)
    assert most == min(concurrency, 40)


def test_a_function_runs_on_the_same_loop_in_all_batches() -> None:
    loops: set[Any] = set()

    async def call(number: int) -> int:
        loops.add(asyncio.get_running_loop())
        return number

    for _ in range(3):
        await_all(call, [1], 1, 10.0)
    assert len(loops) == 1


def test_a_call_that_raises_ends_the_others_and_says_which_it_was() -> None:
    ended: list[int] = []

    async def call(number: int) -> int:
        if number == 3:
            raise ConnectionError("refused")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)
        return number

    with pytest.raises(CallFailed) as caught:
        await_all(call, list(range(10)), 5, 10.0)
    assert caught.value.row == 3
    assert isinstance(caught.value.error, ConnectionError)
    assert sorted(ended) == [0, 1, 2, 4]


def test_a_call_that_takes_too_long_fails() -> None:
    async def call(number: int) -> int:
        await asyncio.Event().wait()
        return number

    with pytest.raises(CallFailed) as caught:
        await_all(call, [1], 1, 0.01)
    assert "longer than 0.01 s" in str(caught.value.error)


def test_an_empty_batch_calls_nothing() -> None:
    async def call(number: int) -> int:
        return number

    assert await_all(call, [], 5, 1.0) == []


def test_a_failed_call_is_retried_with_its_task_and_finally_fails_the_epoch(tmp_path: Path) -> None:
    async def call(value: bytes) -> bytes:
        raise ConnectionError("the service is away")

    pipeline = Pipeline("p", dead_letter="file:dead")
    pipeline.source().map_async(call, name="asking").sink("out", to="file:out")
    write_log(tmp_path / "log", batch_of([b"a", b"b"], stream_id=9))
    task = Task(make_plan(pipeline.graph()), tmp_path / "log", tmp_path / "runs")
    with pytest.raises(RoundError):
        task.run_range(Attempt(0, 0, 1, is_last=False), 0, 2)
    failure = task.run_range(Attempt(0, 0, 2, is_last=True), 0, 2).failure
    assert failure is not None
    error = ProcessionError.from_dict(failure)
    assert isinstance(error, RoundError)
    assert "'asking': the call for message 0 of stream 9 failed: ConnectionError" in error.sentence
    assert not error.next_step, "no user action is needed: the epoch is run again"


def test_a_service_that_comes_back_is_asked_again_and_everything_is_there_once(tmp_path: Path) -> None:
    chance = random.Random(5)

    async def call(value: bytes) -> bytes:
        if chance.random() < 0.05:
            raise ConnectionError("now and then")
        return value + b"!"

    pipeline = Pipeline("p")
    pipeline.source().map_async(call).sink("out", to="file:out")
    write_log(tmp_path / "log", batch_of([b"%d" % number for number in range(20)]))
    task = Task(make_plan(pipeline.graph()), tmp_path / "log", tmp_path / "runs")
    for attempt in range(100):
        try:
            manifest = task.run_range(Attempt(0, 0, attempt, is_last=False), 0, 20)
            break
        except RoundError:
            pass
    assert attempt > 0
    assert [run.count for run in manifest.runs] == [20]
