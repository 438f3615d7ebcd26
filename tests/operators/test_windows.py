"""Exact times in windows and joins: a time on a boundary is on the side that its digits say."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from procession import Pipeline, PlanError, aggregates, windows
from procession.operators.windows import Windows
from tests.operators.test_watermark import ran

SINCE = 1_700_000_000_000
"""A length in milliseconds."""


def in_seconds(value: bytes) -> float:
    return float(int(value) / 1000)


def in_decimals(value: bytes) -> Decimal:
    return Decimal(int(value)) / 1000


def as_datetime(value: bytes) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=int(value))


WAYS: list[tuple[Any, Any]] = [(in_seconds, "s"), (int, "ms"), (in_decimals, "s"), (as_datetime, "s")]
QUARTERS = [0.25, Decimal("0.25"), timedelta(milliseconds=250)]
# Each form of a time and each form of a length in `make test`; all combinations in `make test-all`.
WAYS_AND_LENGTHS = [
    pytest.param(time, unit, length, marks=[] if number % 3 == turn % 3 else pytest.mark.slow)
    for turn, (time, unit) in enumerate(WAYS)
    for number, length in enumerate(QUARTERS)
]


def fired(kind: Windows, times: list[int], time: Any, unit: Any, **more: Any) -> list[dict[str, Any]]:
    """Return the windows of records at these milliseconds."""
    pipeline = Pipeline("p", parallelism=2)
    counts = pipeline.source(ends=True).window(kind, aggregates.count(), time=time, unit=unit, **more)
    counts.sink("out", to="file:out", codec="json")
    found, _ = ran(pipeline, [*((1, b"%d" % at) for at in times), (1, None)], {len(times) // 2})
    return [json.loads(line) for line in found["out"].splitlines()]


@pytest.mark.parametrize(("time", "unit", "size"), WAYS_AND_LENGTHS)
def test_400_records_250_ms_apart_are_in_400_windows_of_250_ms(time: Any, unit: Any, size: Any) -> None:
    found = fired(windows.tumbling(size), [SINCE + 250 * number for number in range(400)], time, unit)
    assert [result["count"] for result in found] == [1] * 400


@pytest.mark.parametrize(("time", "unit"), WAYS)
def test_a_session_starts_at_exactly_the_time_of_its_first_record(time: Any, unit: Any) -> None:
    starts = [SINCE + 1_003 * number for number in range(50)]
    found = fired(windows.session(1), starts, time, unit)
    per_unit = 1 if unit == "ms" else 1000
    assert [(result["start"], result["end"]) for result in found] == [
        (at / per_unit, (at + 1000) / per_unit) for at in starts
    ]


def test_times_in_nanoseconds_are_exact() -> None:
    at = 1_700_000_000_123_456_789
    (one,) = fired(windows.session(1), [at], int, "ns")
    assert (one["start"], one["end"]) == (at, at + 10**9)


@pytest.mark.parametrize(("time", "unit", "within"), WAYS_AND_LENGTHS)
def test_pairs_exactly_250_ms_apart_are_within_250_ms_and_251_are_not(time: Any, unit: Any, within: Any) -> None:
    for apart, expected in ((250, 200), (251, 0)):
        pipeline = Pipeline("p", parallelism=2)
        one, two = pipeline.source("one", streams=[1]), pipeline.source("two", streams=[2])
        pairs = one.join(two, within_s=within, join=lambda a, b: a + b, key=lambda _: b"", time=time, unit=unit)
        pairs.sink("out", to="file:out")
        starts = [SINCE + 1_001 * number for number in range(200)]
        sent = [sent for at in starts for sent in ((1, b"%d" % at), (2, b"%d" % (at + apart)))]
        found, late = ran(pipeline, [*sent, (1, None), (2, None)], {100, 300}, inputs={1, 2})
        assert (len(found["out"].splitlines()), late) == (expected, 0)


def test_timestamps_that_are_added_are_exact_and_have_a_unit() -> None:
    pipeline = Pipeline("p", parallelism=2, dead_letter="file:dead")
    timed = pipeline.source(ends=True).add_timestamps(lambda value: int(value) if value != b"x" else None, unit="ms")
    timed.window(windows.tumbling(0.25), aggregates.count(), unit="ms").sink("out", to="file:out", codec="json")
    sent = [*((1, b"%d" % (SINCE + 250 * number)) for number in range(40)), (1, b"x"), (1, None)]
    found, _ = ran(pipeline, sent, {7})
    assert [json.loads(line)["start"] for line in found["out"].splitlines()] == [SINCE + 250 * n for n in range(40)]
    assert b"TypeError: the time is a NoneType" in found["dead-letter"]


def test_a_state_lasts_exactly_for_its_time_to_live() -> None:
    pipeline = Pipeline("p", parallelism=2)
    firsts = pipeline.source().distinct(lambda _: "k", ttl_s=0.008, time=in_seconds)
    firsts.sink("out", to="file:out")
    # A state that is read exactly at the end of its time is expired.
    sent = [(1, b"%d" % (SINCE + 8 * number)) for number in range(100)]
    assert ran(pipeline, sent)[0]["out"].count(b"\n") == 100


@pytest.mark.parametrize("unit", ["m", "seconds", None, 1])
def test_an_invalid_unit_is_refused(unit: Any) -> None:
    source = Pipeline("p").source()
    with pytest.raises(PlanError, match=f"unit={unit!r} is not known"):
        source.window(windows.tumbling(1), aggregates.count(), unit=unit)
    with pytest.raises(PlanError, match=f"unit={unit!r} is not known"):
        source.add_timestamps(int, unit=unit)


@pytest.mark.parametrize("size", [0, -1, float("nan"), 1e-10, "1", True, None, 1e10])
def test_an_invalid_length_of_time_is_refused(size: Any) -> None:
    with pytest.raises(PlanError, match=r"size_s=.* is not a duration"):
        windows.tumbling(size)
