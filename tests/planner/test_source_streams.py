"""The assignment of streams to sources."""

from __future__ import annotations

import numpy as np
import pytest

from procession.api.pipeline import Pipeline
from procession.errors import PlanError
from procession.planner.graph import Graph
from procession.planner.source_streams import StreamFilter, streams_of
from procession.record import SHARE_SHIFT, id_in_share, share_of, stream_id


def built(*sources: dict[str, object]) -> Graph:
    pipeline = Pipeline("p")
    for number, options in enumerate(sources):
        pipeline.source(f"s{number}", **options).sink(f"o{number}", to="file:out")  # type: ignore[arg-type]
    return pipeline.graph()


def takers(graph: Graph, stream: int) -> list[str]:
    filters = {source.name: streams_of(graph, [source]) for source in graph.sources}
    found = [name for name, accepted in filters.items() if accepted.takes(stream)]
    assert found == [name for name, accepted in filters.items() if accepted.mask(np.array([stream], np.uint64))[0]]
    return found


def test_every_stream_belongs_to_one_source() -> None:
    graph = built({"from_": "file:a"}, {"from_": "file:b"}, {"streams": [7, 8]}, {})
    assert takers(graph, id_in_share(share_of("s0"), stream_id(b"x"))) == ["s0"]
    assert takers(graph, id_in_share(share_of("s1"), stream_id(b"x"))) == ["s1"]
    assert takers(graph, 7) == ["s2"]
    assert takers(graph, 9) == ["s3"]


def test_the_only_source_of_a_pipeline_takes_every_stream() -> None:
    graph = built({"from_": "file:a"})
    assert takers(graph, 9) == ["s0"]


def test_several_sources_take_the_union_of_their_streams() -> None:
    graph = built({"from_": "file:a"}, {"streams": [7]}, {})
    first, second, rest = graph.sources
    assert streams_of(graph, [first, second]) == StreamFilter(frozenset({7}), frozenset({share_of("s0")}), False)
    assert streams_of(graph, [second, rest]).takes(9)
    assert not streams_of(graph, [second, rest]).takes(id_in_share(share_of("s0"), 9))
    assert not streams_of(graph, []).takes(9)


def test_an_id_in_a_share_has_the_stream_in_its_lower_bits_and_its_source_above() -> None:
    shared = id_in_share(share_of("orders"), 2**64 - 1)
    assert shared >> SHARE_SHIFT == share_of("orders")
    assert shared % 2**SHARE_SHIFT == 2**SHARE_SHIFT - 1
    assert shared < 2**64


def test_inputs_of_connectors_end_the_sources_that_read_them_and_no_others() -> None:
    graph = built({"from_": "file:a"}, {})
    stream = id_in_share(share_of("s0"), 5)
    connected, plain = graph.with_inputs(frozenset({stream})).sources
    assert (connected.ends, connected.awaited) == (True, frozenset({stream}))
    assert (plain.ends, plain.awaited) == (None, frozenset())
    _, fed = graph.with_inputs(frozenset({stream, 9})).sources
    assert (fed.ends, fed.awaited) == (True, frozenset({9}))


@pytest.mark.parametrize(
    ("options", "order_by", "why"),
    [
        ({"from_": "file:a", "streams": [7]}, "arrival", "reads a URL and names streams"),
        ({"from_": "kafka://b:1/t"}, "event_time", "names no partitions, but in event-time order the streams must be"),
        ({"from_": "kafka://b:1/t?partitions=0,x"}, "arrival", "names partitions that are not numbers"),
        ({"from_": "mqtt://a"}, "arrival", "source 's' names 'mqtt://a'"),
        ({"from_": "here:7100"}, "arrival", "there is no source for HOST:PORT"),
        ({"from_": ""}, "arrival", "names ''"),
    ],
)
def test_a_url_that_a_source_cannot_read_is_refused(options: dict[str, object], order_by: str, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        Pipeline("p", order_by=order_by).source("s", **options)  # type: ignore[arg-type]


def test_the_error_for_event_time_order_without_streams_says_how_to_name_them() -> None:
    pipeline = Pipeline("p", order_by="event_time")
    pipeline.source("s").sink("o", to="file:o")
    with pytest.raises(PlanError, match="does not name its streams") as caught:
        pipeline.graph()
    assert 'a file by its path, as Path("a.jsonl")' in caught.value.next_step


def test_a_checkpoint_knows_whether_a_source_reads_a_url_but_not_which_one() -> None:
    one, other, none = built({"from_": "file:a"}), built({"from_": "file:b"}), built({})
    assert one.fingerprint() == other.fingerprint() != none.fingerprint()
    assert one.endpoints() == other.endpoints() != none.endpoints()
