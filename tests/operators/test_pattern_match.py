"""Patterns: which records match, when a match is emitted and what it contains, compared with the sequential run and
with examples."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession import Pipeline, PlanError, patterns
from procession.operators import pattern_match
from procession.operators.patterns import Pattern
from procession.testing import Outputs, run
from tests.operators.random_pipelines import STREAMS
from tests.operators.test_window_operator import RECORDS
from tests.operators.timed_records import key, shown, time
from tests.spark.test_plans import expected, ran


def is_even(value: bytes) -> bool:
    return time(value) % 2 == 0


def is_later(value: bytes, matched: dict[str, list[bytes]]) -> bool:
    """Raises for some records."""
    if time(value) % 17 == 5:
        raise ValueError(value)
    return time(value) > time(matched["even"][-1])


def is_third(value: bytes) -> bool:
    return time(value) % 3 == 0


def is_seventh(value: bytes) -> bool:
    return time(value) % 7 == 0


PATTERNS = {
    "sequence": patterns.begin("even", is_even).then("later", is_later),
    "repeated": patterns.begin("even", is_even, at_least=2, at_most=4).then("later", is_later).then("third", is_third),
    "strict": patterns.begin("even", is_even).next("later", is_later, at_least=2),
    "without between": patterns.begin("even", is_even).without(is_seventh).then("third", is_third, at_least=2),
    "without after": patterns.begin("even", is_even).then("later", is_later).without(is_seventh).without(is_third),
    "one": patterns.begin("even", is_even),
    "one without": patterns.begin("even", is_even).without(is_seventh),
}


@pytest.mark.parametrize("name", PATTERNS)
@given(
    payloads=RECORDS,
    skip=st.sampled_from(["none", "past-last"]),
    within_s=st.sampled_from([2, 9, 40]),
    cuts=st.sets(st.integers(1, 50), max_size=3),
    slice_records=st.sampled_from([1, 7, 1000]),
    ends=st.lists(st.tuples(st.integers(0, 60), st.integers(0, STREAMS - 1)), max_size=5),
)
@settings(max_examples=20)
def test_i11_a_pattern_matches_as_in_the_sequential_run(
    name: str,
    payloads: list[bytes],
    skip: Any,
    within_s: float,
    cuts: set[int],
    slice_records: int,
    ends: list[tuple[int, int]],
) -> None:
    pipeline = Pipeline("p", parallelism=3, dead_letter="file:dead")
    source = pipeline.source(ends=True)
    options: Any = {"within_s": within_s, "key": key, "skip": skip}
    found = source.match(PATTERNS[name], time=time, lateness_s=1, late="dead-letter", **options)
    found.map(shown).sink("found", to="file:out")
    source.rebalance(parallelism=2).match(PATTERNS[name], **options).map(shown).sink("sent", to="file:out")
    graph = pipeline.graph()
    ends = [*ends, *((len(payloads), stream) for stream in range(STREAMS))]
    got = ran(graph, payloads, cuts, len(payloads), slice_records, ends=ends)
    assert got == expected(graph, payloads, ends)


def of(kind: str) -> Any:
    return lambda event: event[0] == kind


def out(pattern: Pattern, text: str, *, ends: bool = True, **options: Any) -> Outputs:
    """Return the output for events of one key, such as "a1 b2": a kind and a time. It is the same for any epochs and
    tasks."""
    pipeline = Pipeline("p", dead_letter="file:dead")
    events = pipeline.source("events", codec="json")
    options = {"within_s": 10, "key": lambda event: "k", "time": lambda event: event[1]} | options
    events.match(pattern, **options).sink("out", to="file:out")
    records = {"events": [[word[0], int(word[1:])] for word in text.split()]}
    found = run(pipeline, records, ends=ends)
    for epochs, tasks in ((None, 1), (1, 2), (3, 3)):
        assert run(pipeline, records, epochs=epochs, parallelism=tasks, ends=ends) == found
    return found


def matches_of(pattern: Pattern, text: str, **options: Any) -> list[str]:
    """Return the records of each match, in order."""
    matches = out(pattern, text, **options)["out"]
    return [" ".join(f"{kind}{at}" for step in match["matched"].values() for kind, at in step) for match in matches]


AB = patterns.begin("a", of("a")).then("b", of("b"))


def test_a_match_has_the_records_of_each_step_with_their_times() -> None:
    (match,) = out(AB, "a1 x2 b3")["out"]
    assert match == {"key": "k", "start": 1, "end": 3, "matched": {"a": [["a", 1]], "b": [["b", 3]]}}


@pytest.mark.parametrize(
    ("skip", "matches"), [("past-last", ["a1 b3", "a4 b5"]), ("none", ["a1 b3", "a2 b3", "a4 b5"])]
)
def test_the_skip_rule_says_whether_matches_overlap(skip: str, matches: list[str]) -> None:
    assert matches_of(AB, "a1 a2 b3 b4 a4 b5", skip=skip) == matches


@pytest.mark.parametrize(("skip", "matches"), [("past-last", ["a1 b2 c4"]), ("none", ["a1 b2 c4", "a3 b5 c6"])])
def test_an_overlapping_partial_match_is_dropped_or_continues(skip: str, matches: list[str]) -> None:
    assert matches_of(AB.then("c", of("c")), "a1 b2 a3 c4 b5 c6", skip=skip) == matches


def test_next_is_the_next_record_of_the_key() -> None:
    strict = patterns.begin("a", of("a")).next("b", of("b"))
    assert matches_of(strict, "a1 x2 b3 a4 b5") == ["a4 b5"]


def test_a_step_takes_as_many_records_as_it_may_until_the_following_step_holds() -> None:
    pattern = patterns.begin("a", of("a"), at_least=2, at_most=3).then("b", of("b"))
    assert matches_of(pattern, "a1 b1 a2 a3 a4 b5") == ["a1 a2 a3 b5"]
    assert matches_of(pattern, "a1 b2") == []


def test_an_excluded_record_ends_the_match() -> None:
    pattern = patterns.begin("a", of("a")).without(of("x")).then("b", of("b"))
    assert matches_of(pattern, "a1 b2 a3 x4 b5 a6 y7 b8") == ["a1 b2", "a6 b8"]


def test_the_absence_of_a_record_completes_a_match_when_its_time_is_over() -> None:
    pattern = patterns.begin("a", of("a")).then("b", of("b")).without(of("c"))
    matches = out(pattern, "a1 b2 y5 y13", ends=False)["out"]
    assert [match["end"] for match in matches] == [2]
    assert matches_of(pattern, "a1 b2 c3 y13") == []
    assert matches_of(pattern, "a1 b2 y9", ends=False) == []
    assert matches_of(pattern, "a1 b2 y9") == ["a1 b2"]


def test_a_record_further_than_the_bound_from_the_first_does_not_match() -> None:
    assert matches_of(AB, "a1 b12") == []
    assert matches_of(AB, "a1 b12", lateness_s=5) == []
    assert matches_of(AB, "a1 b11") == ["a1 b11"]


def test_a_predicate_may_read_what_was_matched() -> None:
    larger = patterns.begin("a", of("a")).then("b", lambda event, matched: event[1] > matched["a"][0][1] + 4)
    assert matches_of(larger, "a1 b3 b6") == ["a1 b6"]


@pytest.mark.parametrize(("late", "letters"), [("drop", 0), ("dead-letter", 1)])
def test_a_record_that_is_too_late_is_counted_and_matches_nothing(late: str, letters: int) -> None:
    found = out(AB, "y50 a1 b51", late=late)
    assert found["out"] == []
    assert len(found["dead-letter"]) == letters
    assert [count for name, count in found.counters.items() if name.startswith("late")] == [1]


def test_a_predicate_that_raises_makes_one_dead_letter_and_ends_no_match() -> None:
    pattern = patterns.begin("a", of("a")).then("b", lambda event: 6 // (event[1] - 2) and event[0] == "b")
    found = out(pattern, "a1 b2 b3")
    assert [match["end"] for match in found["out"]] == [3]
    assert len(found["dead-letter"]) == 1


def test_a_match_can_be_changed_by_a_later_stage_while_others_hold_its_records() -> None:
    pipeline = Pipeline("p")
    events = pipeline.source("events", codec="json")

    def spoiled(match: dict[str, Any]) -> list[Any]:
        for records in match["matched"].values():
            for record in records:
                record.append("spoiled")
        return [len(record) for records in match["matched"].values() for record in records]

    found = events.match(AB, within_s=10, key=lambda event: 1, time=lambda event: event[1], skip="none").map(spoiled)
    found.sink("out", to="file:out")
    assert run(pipeline, {"events": [["a", 1], ["a", 2], ["b", 3]]})["out"] == [[3, 3], [3, 3]]


def test_more_records_of_a_key_than_the_limit_stop_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_match, "HELD_MAX", 2)
    with pytest.raises(PlanError, match="key 'k' hold more than 2 records") as caught:
        out(AB, "a1 a2 a3", skip="none")
    assert caught.value.next_step


@pytest.mark.parametrize(
    "mistake",
    [
        lambda stage: stage.match("a then b", within_s=1, key=str),
        lambda stage: stage.match(AB, within_s=1),
        lambda stage: stage.match(AB, within_s=0, key=str),
        lambda stage: stage.match(AB, within_s=1, key=str, skip="all"),
        lambda stage: stage.match(AB, within_s=1, key=str, late="fire"),
        lambda stage: stage.match(AB, within_s=1, key=str, time=5),
        lambda stage: stage.match(AB, within_s=1, key=str, unit="h"),
        lambda stage: AB.then("a", bool),
        lambda stage: AB.then("c d", bool),
        lambda stage: AB.then("c", lambda: True),
        lambda stage: AB.next("c", "predicate"),
        lambda stage: AB.without(lambda one, two, three: True),
        lambda stage: AB.then("c", bool, at_least=0),
        lambda stage: AB.then("c", bool, at_least=3, at_most=2),
        lambda stage: patterns.begin("c", bool, at_most=0),
    ],
)
def test_a_mistake_is_reported_where_it_was_made_and_with_a_next_step(mistake: Any) -> None:
    with pytest.raises(PlanError) as caught:
        mistake(Pipeline("p").source())
    assert caught.value.next_step
