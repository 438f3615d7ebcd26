"""The inputs of a run: each file is a stream, unless the app declares a pattern of files as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession import Pipeline
from procession.connectors.file_source import stream_id_of
from procession.deployment.run_inputs import FilePattern, read_inputs
from procession.errors import ConfigError
from procession.planner.graph import Graph


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("calls-1.jsonl", "calls-2.jsonl", "rates.jsonl", "rates-old.jsonl"):
        Path(name).write_text("{}\n")


def graph_of(*streams: Path, ends: bool | None = None) -> Graph:
    pipeline = Pipeline("p", order_by="event_time")
    pipeline.source("calls", streams=streams, ends=ends).sink("o", to="file:o")
    return pipeline.graph()


def test_the_files_of_a_declared_pattern_are_one_stream_and_every_other_file_is_a_stream() -> None:
    found = read_inputs(graph_of(Path("calls-*.jsonl"), Path("rates.jsonl")), [Path("calls-*.jsonl"), Path("rates*")])
    stream = stream_id_of(Path("calls-*.jsonl"))
    assert found.patterns == (FilePattern(str(Path("calls-*.jsonl").absolute()), stream, "calls", is_endless=False),)
    assert sorted(found.paths.values()) == ["rates-old.jsonl", "rates.jsonl"]
    assert found.files == (Path("rates*"),)
    assert found.streams == {stream, stream_id_of(Path("rates.jsonl")), stream_id_of(Path("rates-old.jsonl"))}


def test_a_pattern_of_a_source_that_never_ends_needs_no_file_yet() -> None:
    (found,) = read_inputs(graph_of(Path("bills-*"), ends=False), [Path("bills-*")]).patterns
    assert found.is_endless
    with pytest.raises(ConfigError, match=r"No file matches .*bills-\*"):
        read_inputs(graph_of(Path("bills-*")), [Path("bills-*")])


def test_files_that_the_shell_has_expanded_are_refused_with_the_pattern_in_quotes() -> None:
    with pytest.raises(ConfigError, match=r"calls-1\.jsonl belongs to the pattern calls-\*\.jsonl") as caught:
        read_inputs(graph_of(Path("calls-*.jsonl")), [Path("calls-1.jsonl"), Path("calls-2.jsonl")])
    assert "--input 'calls-*.jsonl'" in caught.value.next_step


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="Cannot read bills"):
        read_inputs(graph_of(Path("calls-*.jsonl")), [Path("bills")])
