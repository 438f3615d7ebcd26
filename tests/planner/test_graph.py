"""The graph: fingerprints, participants, names, and how the inputs of a run change the sources."""

from __future__ import annotations

from typing import Any

import pytest

from procession.api.pipeline import Pipeline
from procession.planner.graph import Graph, Order, SinkCodec
from procession.record import id_in_share


def graph_of(**options: Any) -> Graph:
    pipeline = Pipeline("p", **options)
    pipeline.source("in").sink("out", to="file:out")
    return pipeline.graph()


def test_the_fingerprint_depends_on_sources_and_sinks_and_not_on_stages() -> None:
    def fingerprint(sink: str = "out", source: str = "in", stages: int = 0, **options: Any) -> str:
        pipeline = Pipeline("p", **options)
        stage = pipeline.source(source)
        for _ in range(stages):
            stage = stage.map(bytes.upper)
        stage.sink(sink, to="file:out")
        return pipeline.graph().fingerprint()

    assert fingerprint() == fingerprint(stages=2) == fingerprint(parallelism=7) == fingerprint(dead_letter="file:dead")
    assert len({fingerprint(), fingerprint(sink="other"), fingerprint(source="other")}) == 3


def test_the_fingerprint_depends_on_the_number_and_kind_of_a_sinks_connections() -> None:
    def fingerprint(**options: Any) -> str:
        pipeline = Pipeline("p", order="key")
        pipeline.source("in").sink("out", to="file:out", **options)
        return pipeline.graph().fingerprint()

    assert fingerprint() == fingerprint(connections=1) == fingerprint(order="stream")
    others = [{"connections": 2}, {"connections": 3}, {"connections": 2, "order": "stream"}]
    assert len({fingerprint(), *(fingerprint(**options) for options in others)}) == 4


def test_each_connection_of_a_sink_is_a_participant_with_its_own_instance() -> None:
    pipeline = Pipeline("p", order="key", dead_letter="file:dead")
    pipeline.source().sink("one", to="file:out").sink("more", to="file:out", connections=2)
    assert [
        (participant.name, participant.sink.name, participant.instance, participant.bucket)
        for participant in pipeline.graph().participants
    ] == [
        ("one", "one", "p-one-0", None),
        ("more.0", "more", "p-more-0", 0),
        ("more.1", "more", "p-more-1", 1),
        ("dead-letter", "dead-letter", "p-dead-letter-0", None),
    ]


def test_the_guarantee_event_time_and_lanes_belong_to_the_fingerprint() -> None:
    def fingerprint(streams: list[int] | None = None, lanes: int | None = None, **options: Any) -> str:
        pipeline = Pipeline("p", **options)
        sink: dict[str, Any] = {} if lanes is None else {"lanes": lanes}
        pipeline.source("in", streams=streams).sink(
            "out", to="file:out" if lanes is None else "kafka://localhost:9092/t", **sink
        )
        return pipeline.graph().fingerprint()

    timed: dict[str, Any] = {"order_by": "event_time", "streams": [1, 2]}
    shapes: list[dict[str, Any]] = [
        {},
        {"guarantee": "at-least-once"},
        {"lanes": 2},
        {"lanes": 3},
        timed,
        timed | {"streams": [1, 3]},
        timed | {"lateness_s": 2},
    ]
    assert len({fingerprint(**shape) for shape in shapes}) == len(shapes)
    assert fingerprint(streams=[1]) == fingerprint(streams=[2]), "in the order of arrival streams may change"


def test_a_stage_and_a_sink_of_one_name_have_different_ids_and_shown_names() -> None:
    pipeline = Pipeline("p")
    pipeline.source("in").map(str, name="out").sink("out", to="file:out", codec="json")
    graph = pipeline.graph()
    assert [node.id for node in graph.nodes] == ["in.stage", "out.stage", "out"]
    assert [graph.shown_name(node) for node in graph.nodes] == ["in", "out (map)", "out (sink)"]


def test_children_are_in_the_order_of_declaration() -> None:
    pipeline = Pipeline("p")
    source = pipeline.source("in")
    last = source.map(bytes).sink("b", to="file:b")
    assert last is not None
    source.sink("a", to="file:a")
    graph = pipeline.graph()
    assert [graph.nodes[number].name for number in graph.children(0)] == ["map-1", "a"]
    assert graph.children(len(graph.nodes) - 1) == ()


def test_the_dead_letter_sink_is_in_neither_endpoints_nor_codecs() -> None:
    graph = graph_of(dead_letter="file:dead")
    assert graph.endpoints() == {"source in": "source", "sink out": "sink of lines"}
    assert graph.sink_codecs() == {"out": SinkCodec("bytes", is_inherited=True)}
    assert graph_of().dead_letters_order is Order.NONE
    assert graph.dead_letters_order is Order.TOTAL


@pytest.mark.parametrize(("ends", "expected"), [(None, True), (True, True), (False, False)])
def test_sources_end_with_the_inputs_of_a_run_unless_they_never_do(ends: bool | None, expected: bool) -> None:
    pipeline = Pipeline("p")
    pipeline.source("in", ends=ends).sink("out", to="file:out")
    graph = pipeline.graph()
    assert graph.with_inputs(frozenset()) == graph, "without inputs nothing changes"
    (source,) = graph.with_inputs(frozenset({7})).sources
    assert bool(source.ends) == expected
    assert source.awaited == (frozenset({7}) if expected else frozenset())


def test_each_source_awaits_its_own_streams_only() -> None:
    pipeline = Pipeline("p")
    first, second = pipeline.source("a", streams=[1]), pipeline.source("b", streams=[2])
    first.merge(second).sink("out", to="file:out")
    graph = pipeline.graph().with_inputs(frozenset({1, 2}))
    assert [source.awaited for source in graph.sources] == [frozenset({1}), frozenset({2})]
    assert graph.streams == {1, 2}


def test_the_streams_of_a_connector_end_its_own_source_only() -> None:
    pipeline = Pipeline("p")
    connected = pipeline.source("url", from_="file:in")
    connected.merge(pipeline.source("sent", streams=[1])).sink("out", to="file:out")
    graph = pipeline.graph()
    (source,) = graph.connected
    assert source.share is not None
    ended = graph.with_inputs(frozenset({id_in_share(source.share, 5)}))
    assert [bool(node.ends) for node in ended.sources if node.name == "sent"] == [False]
