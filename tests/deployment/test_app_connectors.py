"""The connectors that an app names, as they are read before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from procession.api.pipeline import Pipeline
from procession.connectors.file_source import stream_id_of
from procession.deployment.app_connectors import check_connectors, connected_streams, connector_lines, ending_parts
from procession.deployment.part_arguments import connector_arguments
from procession.errors import ConfigError
from procession.planner import connector_registry
from procession.record import id_in_share, share_of
from tests.connectors import tape


@pytest.fixture(autouse=True)
def _plugged_in() -> Iterator[None]:
    with tape.installed():
        yield


def app(*urls: str | None, to: str = "file:out") -> Pipeline:
    pipeline = Pipeline("p")
    for number, url in enumerate(urls):
        pipeline.source(f"s{number}", from_=url).sink(f"o{number}", to=to)
    return pipeline


@pytest.mark.parametrize(
    ("urls", "has_inputs", "parts"),
    [
        (["file:a"], False, ["source-s0"]),
        (["file:a", "file:b"], False, ["source-s0", "source-s1"]),
        (["file:a", "tape:x"], False, []),
        (["file:a", None], False, []),
        (["file:a", None], True, ["source", "source-s0"]),
        ([None], False, []),
        ([None], True, ["source"]),
        (["tape:x"], True, []),
    ],
)
def test_a_run_ends_if_all_its_sources_end(urls: list[str | None], has_inputs: bool, parts: list[str]) -> None:
    assert ending_parts(app(*urls).graph(), ["source"] * has_inputs) == parts


def test_the_streams_of_files_are_known_before_the_start(tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).touch()
    graph = app(f"file:{tmp_path}/?.log", "tape:x").graph()
    ids = {id_in_share(share_of("s0"), stream_id_of(tmp_path / name)) for name in ("a.log", "b.log")}
    assert connected_streams(graph) == ids


def test_a_missing_file_is_reported_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No file matches"):
        connected_streams(app(f"file:{tmp_path}/?.log").graph())


@pytest.mark.parametrize(("url", "to", "owner"), [("tape:x", "file:out", "source 's0'"), (None, "tape:x", "sink 'o0'")])
def test_a_missing_package_is_reported_before_the_start(
    url: str | None, to: str, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = app(url, to=to).graph()
    check_connectors(graph)
    needy = replace(tape.CONNECTOR, modules=("no_such_module",), install="procession[tape]")
    monkeypatch.setattr(tape, "CONNECTOR", needy)
    with tape.installed(), pytest.raises(ConfigError, match=f"{owner} needs the Python package") as caught:
        check_connectors(graph)
    assert "pip install 'procession[tape]'" in caught.value.next_step


@pytest.mark.parametrize(("scheme", "extra"), [("parquet", "s3"), ("delta", "delta")])
def test_the_client_of_an_object_store_is_needed_only_for_a_table_in_a_store(
    scheme: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_there = connector_registry._is_there
    monkeypatch.setattr(connector_registry, "_is_there", lambda name: name != "obstore" and is_there(name))
    check_connectors(app(None, to=f"{scheme}:table").graph())
    with pytest.raises(ConfigError, match="sink 'o0' needs the Python package 'obstore'") as caught:
        check_connectors(app(None, to=f"{scheme}:s3://bucket/table").graph())
    assert caught.value.next_step == f"run pip install 'procession[{extra}]'"


def test_the_run_prints_what_its_connectors_read_and_write() -> None:
    assert connector_lines(app("tape:x", None, to="tape:y").graph()) == [
        "source 's0' reads tape:x",
        "sink 'o0' writes to tape:y",
        "sink 'o1' writes to tape:y",
    ]


def test_files_that_are_followed_do_not_end_the_run_and_their_program_gets_the_options(tmp_path: Path) -> None:
    pipeline = Pipeline("p", order_by="event_time")
    followed = pipeline.source("a", from_="file:a*", ends=False, event_time_field="at", event_time_unit="ms")
    followed.sink("out", to="file:out")
    (source,) = pipeline.graph().sources
    assert ending_parts(pipeline.graph(), []) == []
    assert connected_streams(pipeline.graph()) == frozenset(), "the file need not exist yet"
    assert connector_arguments(source, tmp_path) == [
        *("a*", "--one-stream", "files", "--state", str(tmp_path), "--follow"),
        *("--event-time-field", "at", "--event-time-unit", "ms"),
    ]


def test_files_in_event_time_order_are_one_stream_that_ends(tmp_path: Path) -> None:
    pipeline = Pipeline("p", order_by="event_time")
    pipeline.source("a", from_=f"file:{tmp_path}/*.log", event_time_field="at").sink("out", to="file:out")
    with pytest.raises(ConfigError, match="No file matches"):
        connected_streams(pipeline.graph())
    (tmp_path / "a.log").touch()
    assert connected_streams(pipeline.graph()) == pipeline.graph().streams
