"""Side streams: the nodes of `with_broadcast` and `as_of`, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from procession import Pipeline, PlanError, tables
from procession.api.side_streams import VERSIONS_LARGEST
from procession.api.stage import Stage
from procession.operators.broadcast import BroadcastOperator
from procession.operators.versions import LateVersionRule, VersionJoin
from procession.planner.graph import Kind


def pair() -> tuple[Pipeline, Stage, Stage]:
    pipeline = Pipeline("p")
    return pipeline, pipeline.source("records", streams=["a"]), pipeline.source("side", streams=["b"])


def as_of(records: Stage, versions: Any, **options: Any) -> Stage:
    return records.as_of(versions, **({"join": max, "time": len, "valid_from": len} | options))


def kinds(pipeline: Pipeline) -> list[Kind]:
    return [node.kind for node in pipeline._nodes]


def test_without_an_update_the_state_is_the_latest_rule() -> None:
    pipeline, records, rules = pair()
    records.with_broadcast(rules, apply=max)
    assert Kind.MAP_STATEFUL not in kinds(pipeline)
    node = pipeline._nodes[-1]
    assert (node.kind, node.is_named) == (Kind.BROADCAST, False)
    assert isinstance(node.operator, BroadcastOperator)


@pytest.mark.parametrize(("name", "state_name"), [("limits", "limits-state"), (None, None)])
def test_an_update_is_a_keyed_stage_whose_name_follows_that_of_the_user(
    name: str | None, state_name: str | None
) -> None:
    pipeline, records, rules = pair()
    records.with_broadcast(rules, apply=max, update=max, initial=0, name=name)
    (state,) = [node for node in pipeline._nodes if node.kind is Kind.MAP_STATEFUL]
    assert state.is_named == (name is not None)
    assert state_name is None or state.name == state_name
    assert pipeline._nodes[-1].is_named == (name is not None)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"apply": len}, r"apply=len, which cannot be called with \(state, record\)"),
        ({"update": len}, r"update=len, which cannot be called with \(state, record\)"),
        ({"initial": object()}, "initial"),
    ],
)
def test_a_broadcast_with_an_invalid_argument_is_refused(options: dict[str, Any], sentence: str) -> None:
    _, records, rules = pair()
    with pytest.raises(PlanError, match=sentence):
        records.with_broadcast(rules, **({"apply": max} | options))


def test_streams_of_two_pipelines_are_refused() -> None:
    _, records, _ = pair()
    _, _, other = pair()
    with pytest.raises(PlanError, match="rules"):
        records.with_broadcast(other, apply=max)
    with pytest.raises(PlanError, match="versions"):
        as_of(records, other, key=len)


def test_versions_of_a_stream_are_joined_by_key_after_a_merge() -> None:
    pipeline, records, versions = pair()
    as_of(records, versions, key=len, late="drop", versions_max=5, unit="ms", name="rates")
    node = pipeline._nodes[-1]
    assert (node.kind, node.name, node.unit) == (Kind.AS_OF, "rates", "ms")
    assert isinstance(node.operator, VersionJoin)
    assert (node.operator.late, node.operator.versions_max) == (LateVersionRule.DROP, 5)
    assert pipeline._nodes[node.parents[0]].kind is Kind.MERGE


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "no key"),
        ({"left_key": len}, "has only left_key="),
        ({"key": len, "join": len}, r"cannot be called with \(record, version\)"),
        ({"key": len, "time": lambda: 0}, "cannot be called with one argument"),
        ({"key": len, "valid_from": lambda: 0}, "cannot be called with one argument"),
        ({"key": len, "late": "ignore"}, "late='ignore' is not known"),
        ({"key": len, "versions_max": 0}, "versions_max=0"),
        ({"key": len, "versions_max": VERSIONS_LARGEST + 1}, "versions_max="),
        ({"key": len, "unit": "h"}, "unit='h' is not known"),
    ],
)
def test_a_join_as_of_with_an_invalid_argument_is_refused(options: dict[str, Any], sentence: str) -> None:
    _, records, versions = pair()
    with pytest.raises(PlanError, match=sentence):
        as_of(records, versions, **options)


PRICES = tables.of_rows([{"item": "a", "from": 1}], by="item")


def test_a_table_of_versions_needs_no_exchange() -> None:
    pipeline, records, _ = pair()
    as_of(records, PRICES, key=len)
    assert pipeline._nodes[-1].kind is Kind.HASH_JOIN


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "with a table has no key"),
        ({"key": len, "right_key": len}, "was given right_key="),
        ({"key": len, "late": "drop"}, "was given late='drop' and a table"),
        ({"key": len, "versions_max": 5}, "was given versions_max=5 and a table"),
        ({"key": 7}, "key=7"),
        ({"key": len, "name": "a/b"}, "'a/b' cannot name a stage"),
    ],
)
def test_an_option_that_a_table_cannot_have_is_refused(options: dict[str, Any], sentence: str) -> None:
    _, records, _ = pair()
    with pytest.raises(PlanError, match=sentence):
        as_of(records, PRICES, **options)
