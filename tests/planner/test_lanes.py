"""Sinks with lanes: how they are planned, what is refused, and that their records are those of an ordered sink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from procession import Pipeline
from procession.commit.emitter import runs_for
from procession.errors import PlanError
from procession.planner.rules import make_plan
from procession.storage.run_store import Manifest, Run
from procession.testing import in_process, run


def twice(payload: bytes) -> list[bytes]:
    return [] if payload.endswith(b"3") else [payload + b"a", payload + b"b"]


def with_lanes(lanes: int, *, tasks: int = 3, is_spread: bool = True, **options: Any) -> Pipeline:
    pipeline = Pipeline("shop", parallelism=tasks)
    lines = pipeline.source("lines")
    spread = (lines.rebalance(parallelism=tasks) if is_spread else lines).flat_map(twice)
    spread.sink("plain", to="file:out")
    spread.sink("trades", to="lanes:lanes", lanes=lanes, **options)
    return pipeline


@pytest.mark.parametrize("is_spread", [True, False])
@pytest.mark.parametrize("lanes", [1, 2, 30, 300])
def test_lanes_have_the_records_of_an_ordered_sink(lanes: int, is_spread: bool) -> None:
    records = [b"%d" % number for number in range(200)]
    outputs = run(with_lanes(lanes, is_spread=is_spread), {"lines": records}, epochs=[70, 130])
    assert outputs["trades"] == outputs["plain"]


def test_a_task_writes_to_one_lane_in_all_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[int, int]] = set()

    def observed(sink: str, bucket: int | None, manifests: Sequence[Manifest]) -> list[Run]:
        seen.update((made.partition, out.bucket) for made in manifests for out in made.runs if out.to == "trades")
        return runs_for(sink, bucket, manifests)

    monkeypatch.setattr(in_process, "runs_for", observed)
    run(with_lanes(5), {"lines": [b"%d" % number for number in range(200)]}, epochs=[70, 130])
    assert seen == {(0, 0), (1, 1), (2, 2)}


def test_a_path_stays_in_one_lane_and_paths_are_assigned_in_turn() -> None:
    plan = make_plan(with_lanes(2).graph())
    sink = next(index for index, node in enumerate(plan.graph.nodes) if node.name == "trades")
    assert plan.paths_to(sink) == 3
    assert [plan.path_of(sink, 1, task) % 2 for task in range(3)] == [0, 1, 0]
    assert "3 sorted paths go to 2 lanes with their order key; readers merge the lanes" in str(plan.edges)


def test_a_change_of_the_number_of_lanes_is_another_pipeline() -> None:
    assert with_lanes(2).graph().fingerprint() != with_lanes(3).graph().fingerprint()
    assert with_lanes(1).graph().fingerprint() != with_lanes(2).graph().fingerprint()


def test_each_lane_is_a_part_of_the_round() -> None:
    names = [end.name for end in with_lanes(3).graph().participants]
    assert names == ["plain", "trades.0", "trades.1", "trades.2"]


def sink(**options: Any) -> None:
    Pipeline("shop").source("lines").sink("trades", **options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"to": "lanes:d"}, "writes lanes, but has no lanes=N"),
        ({"to": "lanes:d", "lanes": 2, "connections": 2}, "has connections=, too"),
        ({"to": "lanes:d", "lanes": 0}, "lanes=0 of sink 'trades' is out of range"),
        ({"to": "lanes:d", "lanes": 1025}, "lanes=1025 of sink 'trades' is out of range"),
        ({"to": "file:d", "lanes": 2}, "has lanes=2, but file:DIR has no lanes"),
        ({"to": "lanes:d", "lanes": 2, "order": "none"}, "the purpose of lanes is to restore an order"),
        ({"to": "lanes:d", "lanes": 2, "idempotent": True}, "idempotent"),
    ],
)
def test_invalid_options_of_lanes_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        sink(**options)


def test_dead_letters_have_no_lanes() -> None:
    with pytest.raises(PlanError, match="cannot write lanes"):
        Pipeline("shop", dead_letter="lanes:d")
