"""Sources: which streams each accepts, and the errors for invalid sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from procession import Pipeline, PlanError
from procession.api.sources import number_of_stream
from procession.record import id_in_share, stream_id


def test_a_stream_is_named_by_its_id_its_name_or_its_file() -> None:
    assert number_of_stream(7) == 7
    assert number_of_stream("orders") == stream_id(b"orders")
    assert number_of_stream(Path("a/../b.log")) == number_of_stream(Path("b.log"))


@pytest.mark.parametrize("wrong", ["", -1, 2**64, True, 1.5, None])
def test_other_values_name_no_stream(wrong: Any) -> None:
    assert number_of_stream(wrong) is None
    with pytest.raises(PlanError, match="are not all ids or names of streams"):
        Pipeline("p").source(streams=[wrong])


def test_a_pattern_of_files_declares_one_stream() -> None:
    pipeline = Pipeline("p", order_by="event_time")
    pipeline.source("calls", streams=iter([Path("calls-*.jsonl"), Path("rates.jsonl"), "a"])).sink("o", to="file:o")
    (source,) = pipeline.graph().sources
    assert source.patterns == ("calls-*.jsonl",)
    assert source.streams is not None
    assert len(source.streams) == 3


def test_names_of_streams_are_not_patterns_and_the_error_says_how_to_read_files() -> None:
    with pytest.raises(PlanError, match="only files are declared by pattern") as caught:
        Pipeline("p", order_by="event_time").source("calls", streams=["others", "calls-*.jsonl"])
    assert "streams=[Path('calls-*.jsonl')]" in caught.value.next_step


def test_two_sources_cannot_take_the_same_streams() -> None:
    pipeline = Pipeline("p")
    pipeline.source("a", streams=["x", "y"])
    pipeline.source("b", streams=["z"])
    pipeline.source("rest")
    for streams in (["y"], None):
        with pytest.raises(PlanError, match="has a second source 'c' for the streams of"):
            pipeline.source("c", streams=streams)


def test_a_source_with_a_url_has_its_own_streams() -> None:
    with pytest.raises(PlanError, match="the URL defines its streams"):
        Pipeline("p").source("a", from_="file:*.log", streams=["x"])
    (node,) = _with_sink(Pipeline("p"), from_="file:*.log").graph().sources
    assert (node.share is not None, node.ends) == (True, True)


def _with_sink(pipeline: Pipeline, **options: Any) -> Pipeline:
    pipeline.source("in", **options).sink("out", to="file:out")
    return pipeline


def test_in_event_time_order_all_files_of_a_url_are_one_stream_and_each_named_partition_is_one() -> None:
    pipeline = Pipeline("p", order_by="event_time")
    (node,) = _with_sink(pipeline, from_="file:*.log", event_time_field="at", event_time_unit="ms").graph().sources
    assert node.share is not None
    assert node.streams == {id_in_share(node.share, stream_id(b"files"))} == node.awaited
    assert (node.time_field, node.unit) == ("at", "ms")
    url = "kafka://broker:9092/topic?partitions=0,2&stop_at_end=true"
    (node,) = _with_sink(Pipeline("q", order_by="event_time"), from_=url).graph().sources
    assert node.share is not None
    names = [b"kafka:topic/0", b"kafka:topic/2"]
    assert node.streams == {id_in_share(node.share, stream_id(name)) for name in names} == node.awaited


def test_files_in_event_time_order_need_a_field_with_the_time() -> None:
    with pytest.raises(
        PlanError, match="ordered by event time, but the records of source 'in' have no event time"
    ) as caught:
        Pipeline("p", order_by="event_time").source("in", from_="file:*.log", codec="json")
    assert "event_time_field" in str(caught.value.next_step)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"event_time_field": "at"}, "but no from_: its producers give the event times"),
        ({"event_time_unit": "ms"}, "has event_time_unit='ms', but no event_time_field"),
        ({"from_": "file:a", "event_time_field": "a..b"}, "'a..b' of source 'in' is not the name of a field"),
        ({"from_": "file:a", "event_time_field": ""}, "event_time_field='' of source 'in' is not the name of a field"),
        ({"from_": "file:a", "event_time_field": "at", "event_time_unit": "m"}, "unit='m' is not known"),
    ],
)
def test_an_invalid_event_time_field_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        Pipeline("p").source("in", **options)
