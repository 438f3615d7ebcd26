"""Joins with the version that was valid: which version is used, which are late, and what is refused."""

from __future__ import annotations

import json
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession import Pipeline, PlanError, tables
from procession.testing import Outputs, run
from tests.operators.test_window_operator import RECORDS
from tests.operators.timed_records import key, time
from tests.spark.test_plans import expected, ran


def both(record: bytes, version: bytes | None) -> bytes:
    """Raises for some records."""
    if record.endswith(b"13"):
        raise ValueError(record)
    return record + b" at " + (version or b"-")


def is_version(value: bytes) -> bool:
    return time(value) % 3 == 0


@given(
    payloads=RECORDS,
    late=st.sampled_from(["keep", "drop", "dead-letter"]),
    versions_max=st.sampled_from([1, 2, 1000]),
    cuts=st.sets(st.integers(1, 50), max_size=3),
    slice_records=st.sampled_from([1, 7, 1000]),
    keys_max=st.sampled_from([1, 1000]),
)
@settings(max_examples=60)
def test_i11_versions_are_joined_as_in_the_sequential_run(
    payloads: list[bytes], late: Any, versions_max: int, cuts: set[int], slice_records: int, keys_max: int
) -> None:
    pipeline = Pipeline("p", parallelism=3, dead_letter="file:dead")
    source = pipeline.source()
    versions, records = source.split(is_version)
    options: Any = {"key": key, "time": time, "valid_from": time, "late": late, "versions_max": versions_max}
    joined = records.as_of(versions, join=both, **options)
    joined.sink("joined", to="file:out")
    # With itself, where a record is joined before it becomes a version, and after another exchange.
    source.rebalance(parallelism=2).as_of(source.map(bytes), join=both, **options).merge(joined).sink(
        "own", to="file:out"
    )
    graph = pipeline.graph()
    got = ran(graph, payloads, cuts, len(payloads), slice_records, keys_max)
    assert got == expected(graph, payloads)


def out(*inputs: tuple[str, Any], **options: Any) -> Outputs:
    """Return the output for calls at these times and prices from these times, after checking that it is the same for
    any epochs and parallelism."""
    pipeline = Pipeline("p", dead_letter="file:dead")
    prices = pipeline.source("prices", codec="json", streams=["prices"])
    calls = pipeline.source("calls", codec="json")
    rated = calls.as_of(
        prices,
        join=lambda call, price: [call, price and price[1]],
        key=lambda record: "all",
        time=lambda call: call,
        valid_from=lambda price: price[0],
        **options,
    )
    rated.sink("out", to="file:out")
    found = run(pipeline, list(inputs))
    for epochs, tasks in ((None, 1), (1, 3)):
        assert run(pipeline, list(inputs), epochs=epochs, parallelism=tasks) == found
    return found


def test_the_version_with_the_latest_start_before_the_record_is_used_in_any_order_of_arrival() -> None:
    prices = [("prices", [10, "b"]), ("prices", [0, "a"]), ("prices", [20, "c"])]
    found = out(*prices, ("calls", 9), ("calls", 10), ("calls", 25), ("calls", -1))
    assert found["out"] == [[9, "a"], [10, "b"], [25, "c"], [-1, None]]


def test_a_version_with_the_same_start_replaces_the_one_before() -> None:
    assert out(("prices", [0, "a"]), ("prices", [0, "b"]), ("calls", 9))["out"] == [[9, "b"]]


LATE = [("prices", [0, "a"]), ("calls", 9), ("prices", [5, "b"]), ("calls", 9), ("prices", [9.5, "c"]), ("calls", 10)]


@pytest.mark.parametrize(("late", "second", "letters"), [("keep", "b", 0), ("drop", "a", 0), ("dead-letter", "a", 1)])
def test_a_version_that_comes_after_records_it_was_valid_for_is_counted_and_treated_by_the_rule(
    late: str, second: str, letters: int
) -> None:
    found = out(*LATE, late=late)
    assert found["out"] == [[9, "a"], [9, second], [10, "c"]]
    assert len(found["dead-letter"]) == letters
    assert [count for name, count in found.counters.items() if name.startswith("late")] == [1]


CUT = [("prices", [start, f"v{start}"]) for start in range(5)] + [("calls", 1), ("calls", 3)]


@pytest.mark.parametrize(
    ("late", "first", "letters"), [("keep", [[1, "v3"]], 0), ("drop", [], 0), ("dead-letter", [], 1)]
)
def test_a_record_whose_version_is_no_longer_kept_is_treated_by_the_rule(
    late: str, first: list[Any], letters: int
) -> None:
    found = out(*CUT, late=late, versions_max=2)
    assert found["out"] == [*first, [3, "v3"]]
    assert len(found["dead-letter"]) == letters


def test_join_may_change_the_version_that_it_is_given() -> None:
    pipeline = Pipeline("p")
    prices = pipeline.source("prices", codec="json", streams=["prices"])
    calls = pipeline.source("calls", codec="json")

    def grown(call: int, price: dict[str, int]) -> int:
        price["cents"] += 1
        return price["cents"]

    rated = calls.as_of(prices, join=grown, key=lambda _: 1, time=lambda call: call, valid_from=lambda price: 0)
    rated.sink("out", to="file:out")
    assert run(pipeline, [("prices", {"cents": 5}), ("calls", 1), ("calls", 2)])["out"] == [6, 6]


@pytest.mark.parametrize(
    "mistake",
    [
        lambda stage: stage.as_of(Pipeline("other").source(), join=both, key=key, time=time, valid_from=time),
        lambda stage: stage.as_of(stage, join=both, time=time, valid_from=time),
        lambda stage: stage.as_of(stage, join=both, left_key=key, time=time, valid_from=time),
        lambda stage: stage.as_of(stage, join=len, key=key, time=time, valid_from=time),
        lambda stage: stage.as_of(stage, join=both, key=key, time="at", valid_from=time),
        lambda stage: stage.as_of(stage, join=both, key=key, time=time, valid_from=None),
        lambda stage: stage.as_of(stage, join=both, key=key, time=time, valid_from=time, late="meet"),
        lambda stage: stage.as_of(stage, join=both, key=key, time=time, valid_from=time, versions_max=0),
        lambda stage: stage.as_of(stage, join=both, key=key, time=time, valid_from=time, unit="h"),
    ],
)
def test_a_mistake_is_reported_where_it_was_made_and_with_a_next_step(mistake: Any) -> None:
    with pytest.raises(PlanError) as caught:
        mistake(Pipeline("p").source())
    assert caught.value.next_step


ROWS = [
    {"tariff": "a", "from": 10, "cents": 1},
    {"tariff": "b", "from": 0, "cents": 5},
    {"tariff": "a", "from": 0, "cents": 2},
    {"tariff": "a", "from": 10, "cents": 3},
]


def rated(table: Any, calls: list[Any], **options: Any) -> Outputs:
    pipeline = Pipeline("p", dead_letter="file:dead")
    source = pipeline.source("calls", codec="json")
    options = {"key": lambda call: call[0], "time": lambda call: call[1], "valid_from": itemgetter("from"), **options}
    source.as_of(table, join=lambda call, row: [*call, row and row["cents"]], **options).sink("out", to="file:out")
    found = run(pipeline, {"calls": calls}, dead_letter_share_max=1)
    for epochs, tasks in ((1, 1), (2, 3)):
        again = run(pipeline, {"calls": calls}, epochs=epochs, parallelism=tasks, dead_letter_share_max=1)
        assert again["out"] == found["out"]
    return found


@pytest.mark.parametrize("kind", ["rows", "file"])
def test_a_table_returns_the_row_that_was_valid_and_the_last_of_equal_ones(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "prices.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    table = tables.of_rows(ROWS, by="tariff") if kind == "rows" else tables.of_json_lines(path, by="tariff")
    calls = [["a", 12], ["a", 9], ["a", 10], ["a", -1], ["b", 99], ["c", 1]]
    assert [call[2] for call in rated(table, calls)["out"]] == [3, 2, 3, None, 5, None]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9))),
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(-1, 10))),
)
@settings(max_examples=40, deadline=None)
def test_a_table_is_used_like_a_stream_that_came_before_all_records(
    versions: list[tuple[str, int]], calls: list[tuple[str, int]]
) -> None:
    rows = [{"tariff": key, "from": start, "cents": number} for number, (key, start) in enumerate(versions)]
    pipeline = Pipeline("p")
    prices = pipeline.source("prices", codec="json", streams=["prices"])
    source = pipeline.source("calls", codec="json")
    source.as_of(
        prices,
        join=lambda call, row: [*call, row and row["cents"]],
        left_key=itemgetter(0),
        right_key=itemgetter("tariff"),
        time=itemgetter(1),
        valid_from=itemgetter("from"),
    ).sink("out", to="file:out")
    wanted = run(pipeline, {"prices": rows, "calls": list(map(list, calls))})["out"]
    assert rated(tables.of_rows(rows, by="tariff"), list(map(list, calls)))["out"] == wanted


def test_a_row_without_a_valid_time_is_named_in_the_dead_letter() -> None:
    table = tables.of_rows([{"tariff": "a", "from": "soon", "cents": 1}], by="tariff")
    (letter,) = rated(table, [["a", 1]])["dead-letter"]
    assert "valid_from of the row {'tariff': 'a', 'from': 'soon', 'cents': 1} of the table" in letter["error"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"key": None}, "with a table has no key"),
        ({"right_key": len}, "was given right_key="),
        ({"late": "drop"}, "was given late='drop' and a table"),
        ({"versions_max": 3}, "was given versions_max=3 and a table"),
        ({"unit": "m"}, "unit='m' is not known"),
    ],
)
def test_what_a_table_of_versions_cannot_have_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        rated(tables.of_rows(ROWS, by="tariff"), [], **options)
