"""The API in which users write pipelines: the graph that it builds, and the error for each mistake."""

from __future__ import annotations

import doctest
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from procession.api import pipeline as pipeline_module
from procession.api.pipeline import Pipeline
from procession.commit.checkpoint import Checkpoint
from procession.errors import PlanError
from procession.planner.graph import Kind, OnError, PayloadCodec, SinkFraming
from tests.planner.pipelines import asked


def small(name: str = "p", **options: Any) -> Pipeline:
    pipeline = Pipeline(name, **options)
    pipeline.source("in").sink("out", to="file:out")
    return pipeline


def test_the_example_in_the_docstring_runs() -> None:
    assert doctest.testmod(pipeline_module).attempted > 0
    assert doctest.testmod(pipeline_module).failed == 0


def test_stages_are_in_the_order_in_which_they_were_written_each_after_its_parent() -> None:
    pipeline = Pipeline("p", parallelism=3)
    words = pipeline.source("in", codec="text").flat_map(str.split)
    words.filter(str.isalpha).sink("letters", to="file:a")
    words.map(str.upper, name="loud").map_batches(lambda batch: batch).sink("rest", to="host:7200", framing="raw")
    graph = pipeline.graph()
    assert [(node.kind, node.name, node.parents) for node in graph.nodes] == [
        (Kind.SOURCE, "in", ()),
        (Kind.FLAT_MAP, "flat-map-1", (0,)),
        (Kind.FILTER, "filter-2", (1,)),
        (Kind.SINK, "letters", (2,)),
        (Kind.MAP, "loud", (1,)),
        (Kind.MAP_BATCHES, "map-batches-5", (4,)),
        (Kind.SINK, "rest", (5,)),
    ]
    assert (graph.parallelism, graph.on_error, graph.sources[0].codec) == (3, OnError.STOP, PayloadCodec.TEXT)
    assert [(sink.target, sink.framing) for sink in graph.sinks] == [
        ("file:a", SinkFraming.LINES),
        ("host:7200", SinkFraming.RAW),
    ]


def test_dead_letters_add_a_sink() -> None:
    graph = small(dead_letter="file:dead").graph()
    assert graph.on_error is OnError.DEAD_LETTER
    assert graph.dead_letter is graph.sinks[-1]
    assert graph.sinks[-1].target == "file:dead"
    assert small().graph().dead_letter is None


def test_a_changed_number_of_connections_on_an_old_checkpoint_is_refused_with_a_next_step(tmp_path: Path) -> None:
    def claim(connections: int) -> None:
        pipeline = Pipeline("p", order="key")
        pipeline.source("in").sink("out", to="file:out", connections=connections)
        graph = pipeline.graph()
        Checkpoint.claim(tmp_path, name="p", fingerprint=graph.fingerprint(), endpoints=graph.endpoints())

    claim(2)
    with pytest.raises(PlanError) as caught:
        claim(3)
    assert "'out' is a sink of lines over 3 connections by key, and was a" in caught.value.sentence
    assert "make it a sink of lines over 2 connections by key again, or start over" in caught.value.next_step
    with pytest.raises(PlanError, match="was a sink of lines over 2 connections by key"):
        claim(1)


def test_several_connections_with_a_total_order_are_refused_with_two_alternatives() -> None:
    for pipeline, order in ((Pipeline("p"), None), (Pipeline("p", order="key"), "total")):
        with pytest.raises(PlanError) as caught:
            pipeline.source().sink("out", to="file:out", order=order, connections=2)  # type: ignore[arg-type]
        assert "sink 'out' has 2 connections" in caught.value.sentence
        assert 'order="key"' in caught.value.next_step
        assert "or omit connections" in caught.value.next_step
    for number in (0, 65, True, "2"):
        with pytest.raises(PlanError, match="connections="):
            Pipeline("p", order="key").source().sink("out", to="file:out", connections=number)  # type: ignore[arg-type]


Mistake = Callable[[], object]
MISTAKES: dict[str, tuple[Mistake, str]] = {
    "no source": (lambda: Pipeline("p").graph(), "has no source"),
    "no sink": (lambda: (p := Pipeline("p"), p.source(), p.graph()), "has no sink"),
    "two sources": (lambda: (p := Pipeline("p"), p.source("a"), p.source("b")), "second source 'b'"),
    "two sources of one stream": (
        lambda: (p := Pipeline("p"), p.source("a", streams=[1, 2]), p.source("b", streams=[2])),
        "second source 'b' for the streams of 'a'",
    ),
    "an unknown way to exchange": (lambda: Pipeline("p", exchange="sparc"), "exchange='sparc' is not known"),  # type: ignore[arg-type]
    "no streams": (lambda: Pipeline("p").source(streams=[]), "not all ids"),
    "a flag that is a word": (lambda: Pipeline("p", preserve_order="no"), "neither True nor False"),  # type: ignore[arg-type]
    "strictness as a word": (lambda: Pipeline("p", strict="yes"), "strict='yes'"),  # type: ignore[arg-type]
    "a stream that is no id": (lambda: Pipeline("p").source(streams=[1.5]), "not all ids"),  # type: ignore[list-item]
    "order and preserve_order": (lambda: Pipeline("p", order="key", preserve_order=True), "exclude each other"),
    "a stage with no tasks": (lambda: Pipeline("p").source().map(bytes, parallelism=0), "of stage 'map-1' is out of"),
    "a function that is not asynchronous": (
        lambda: Pipeline("p").source().map_async(bytes),
        "not a coroutine function",
    ),
    "no concurrency": (
        lambda: Pipeline("p").source().map_async(asked, concurrency=0),
        "concurrency=0 of map_async",
    ),
    "no time": (lambda: Pipeline("p").source().map_async(asked, timeout_s=0), "timeout_s=0"),
    "nothing to merge": (lambda: Pipeline("p").source().merge(), "has no other stage"),
    "a stage merged with itself": (lambda: (s := Pipeline("p").source()).merge(s), "the same stage twice"),
    "a merge of two pipelines": (
        lambda: Pipeline("p").source().merge(Pipeline("q").source()),
        "not a stage of pipeline 'p'",
    ),
    "lines of msgpack": (
        lambda: Pipeline("p").source().sink("s", to="file:x", codec="msgpack", framing="lines"),
        "may hold newlines",
    ),
    "two stages of one name": (
        lambda: Pipeline("p").source("a").map(bytes, name="x").map(bytes, name="x"),
        "two stages named 'x'",
    ),
    "two sinks of one name": (
        lambda: Pipeline("p").source("a").sink("x", to="file:x").sink("x", to="file:y"),
        "two sinks named 'x'",
    ),
    "a sink named as the dead letters": (lambda: Pipeline("p").source().sink("dead-letter", to="file:x"), "two sinks"),
    "a name with a slash": (lambda: Pipeline("a/b"), "'a/b' cannot name a pipeline"),
    "a name with a colon": (lambda: Pipeline("p").source().sink("a:b", to="file:x"), "cannot name a sink"),
    "no name": (lambda: Pipeline(""), "cannot name a pipeline"),
    "a name that is no text": (lambda: Pipeline(7), "7 cannot name a pipeline"),  # type: ignore[arg-type]
    "no tasks": (lambda: Pipeline("p", parallelism=0), "parallelism=0"),
    "too many tasks": (lambda: Pipeline("p", parallelism=1025), "parallelism=1025"),
    "tasks that are no number": (lambda: Pipeline("p", parallelism="2"), "parallelism='2'"),  # type: ignore[arg-type]
    "an unknown order": (lambda: Pipeline("p", order="some"), "order='some'"),  # type: ignore[arg-type]
    "an unknown codec": (lambda: Pipeline("p").source(codec="xml"), "codec='xml'"),  # type: ignore[arg-type]
    "an unknown framing": (
        lambda: Pipeline("p").source().sink("s", to="file:x", framing="csv"),  # type: ignore[arg-type]
        "framing='csv'",
    ),
    "a target that is neither": (lambda: Pipeline("p").source().sink("s", to="out"), "sink 's' names 'out'"),
    "a file sink without a directory": (lambda: Pipeline("p").source().sink("s", to="file:"), "'file:' is not a URL"),
    "a dead letter that goes nowhere": (lambda: Pipeline("p", dead_letter="dead"), "names 'dead'"),
    "no function": (lambda: Pipeline("p").source().map("upper"), "map() was given 'upper'"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_a_plan_error_that_names_its_line_and_a_next_step(mistake: str) -> None:
    act, sentence = MISTAKES[mistake]
    with pytest.raises(PlanError) as caught:
        act()
    assert sentence in caught.value.sentence
    assert caught.value.next_step


@pytest.mark.parametrize("word", ["map", "filter", "flat_map", "key_by", "peek", "add_timestamps", "rebalance"])
def test_a_coroutine_function_or_one_with_wrong_arguments_is_refused_at_once(
    word: str,
) -> None:
    place = Pipeline("p").source()
    with pytest.raises(PlanError, match="coroutine function") as caught:
        getattr(place, word)(asked)
    assert "map_async" in caught.value.next_step
    for function in (lambda: None, lambda one, two: one):
        with pytest.raises(PlanError, match="cannot be called with one argument"):
            getattr(place, word)(function)
    for function in (str, bytes.decode, lambda *all: all, lambda one, two=2: one, "x".join):  # type: ignore[assignment]
        getattr(place, word)(function)


def test_a_stage_is_shown_by_its_name() -> None:
    stage = Pipeline("p").source("lines").map(str, name="mine")
    assert repr(stage) == "<stage 'mine' of pipeline 'p'>"
    with pytest.raises(PlanError, match="has <stage 'mine' of pipeline 'p'>, which is not a stage of pipeline 'q'"):
        Pipeline("q").source().merge(stage)


@pytest.mark.parametrize("codec", ["bytes", "text", "json", "msgpack", "arrow"])
def test_a_sink_has_the_codec_of_its_source_by_default(codec: Any) -> None:
    pipeline = Pipeline("p")
    stage = pipeline.source("in", codec=codec).filter(bool).map(list)
    stage.sink("out", to="file:out")
    stage.sink("told", to="file:out", codec="bytes")
    stage.map_batches(list).sink("payloads", to="file:out")
    out, kept_codec, payloads = pipeline.graph().sinks
    assert (out.codec, kept_codec.codec, payloads.codec) == (
        PayloadCodec(codec),
        PayloadCodec.BYTES,
        PayloadCodec.BYTES,
    )
    assert out.framing is (SinkFraming.RAW if codec in ("msgpack", "arrow") else SinkFraming.LINES)


def test_a_sink_after_sources_with_different_codecs_must_name_its_codec() -> None:
    def sink(first: Any, second: Any, **options: Any) -> PayloadCodec:
        pipeline = Pipeline("p")
        one = pipeline.source("one", codec=first, streams=[1])
        one.merge(pipeline.source("two", codec=second)).map(list).sink("out", to="file:out", **options)
        return pipeline.graph().sinks[0].codec

    assert sink("json", "json") is PayloadCodec.JSON
    assert sink("text", "bytes") is PayloadCodec.BYTES, "both codecs write the same bytes"
    assert sink("text", "json", codec="json") is PayloadCodec.JSON
    with pytest.raises(PlanError) as caught:
        sink("text", "json")
    assert "'one' (codec=\"text\") and 'two' (codec=\"json\")" in caught.value.sentence
    assert 'codec="json"' in caught.value.next_step


def test_a_sink_whose_codec_differs_from_its_checkpoint_is_refused_unless_it_is_named(tmp_path: Path) -> None:
    def claim(source: Any = "json", **options: Any) -> None:
        pipeline = Pipeline("p")
        pipeline.source("in", codec=source).sink("out", to="file:out", **options)
        graph = pipeline.graph()
        fields = {"fingerprint": graph.fingerprint(), "endpoints": graph.endpoints(), "codecs": graph.sink_codecs()}
        Checkpoint.claim(tmp_path, name="p", **fields)

    claim()
    document = json.loads((tmp_path / "pipeline.json").read_text())
    assert document.pop("codecs") == {"out": "json"}
    (tmp_path / "pipeline.json").write_text(json.dumps(document))  # as it was before sinks had their source's codec
    with pytest.raises(PlanError) as caught:
        claim()
    assert "'out' names no codec and would write json" in caught.value.sentence
    assert 'codec="bytes"' in caught.value.next_step
    claim(codec="json")
    claim()  # a codec that was named once is remembered
    claim(codec="text")
    with pytest.raises(PlanError, match="was made when it wrote text"):
        claim()
    claim(source="bytes")  # text and bytes are written as the same bytes
