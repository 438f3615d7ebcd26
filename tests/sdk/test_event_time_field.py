"""Event times from a field of JSON records, and files as streams that a pipeline names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from procession import Pipeline, PlanError
from procession.connectors.file_source import FileSource, stream_id_of
from procession.errors import ConfigError, UsageError
from procession.sdk.batching import GatherLimits, StreamBatcher
from procession.sdk.event_time_field import EventTimeField, checked_unit
from procession.sdk.source_records import Stream

SECOND = 1_700_000_000_000_000_000


def times_of(path: Path, field: EventTimeField) -> list[int]:
    source = FileSource([path])
    (stream,) = source.streams()  # type: ignore[misc]
    assert isinstance(stream, Stream)
    batches: Any = source.read(stream, None)
    gather = StreamBatcher(stream, None, GatherLimits(), field)
    for batch in batches:
        gather.add(batch)
    found = gather.take()
    assert found is not None
    return found.event_times.tolist()


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        ("1700000000", "s", SECOND),
        ("1700000000.1", "s", SECOND + 100_000_000),
        ("1700000000.123456789", "s", SECOND + 123_456_789),
        ("1700000000250", "ms", SECOND + 250_000_000),
        ("1700000000000000001", "ns", SECOND + 1),
        ('"2023-11-14T22:13:20.25+00:00"', "s", SECOND + 250_000_000),
        ('"2023-11-15T00:13:20+02:00"', "s", SECOND),
        ('"2023-11-14T22:13:20"', "s", SECOND),
    ],
)
def test_the_event_time_in_a_field_is_exact(tmp_path: Path, value: str, unit: Any, expected: int) -> None:
    path = tmp_path / "f"
    path.write_text(f'{{"at": {value}}}\n' * 3)
    assert times_of(path, EventTimeField("at", unit)) == [expected] * 3


@pytest.mark.parametrize(
    "line", ["{}", '{"at": null}', '{"at": true}', '{"at": "soon"}', "[1]", "at", "7", '{"at": NaN}']
)
def test_a_record_without_an_event_time_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "f"
    path.write_text(f'{{"at": 1}}\n{line}\n')
    with pytest.raises(ConfigError, match=f"Message 10 of stream '{path}' has no event time"):
        times_of(path, EventTimeField("at"))


def test_a_time_out_of_range_is_reported_with_the_unit_that_it_was_read_in(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text('{"at": 1700000000000}\n')  # milliseconds
    with pytest.raises(ConfigError, match="the time 1700000000000 is out of range") as caught:
        times_of(path, EventTimeField("at"))
    assert "the unit, which is 's'" in caught.value.next_step


@pytest.mark.parametrize(
    "line", ['{"after": {"at": 2}}', '{"after.at": 2, "after": {"at": 9}}', '{"after": {"at": "1970-01-01T00:00:02Z"}}']
)
def test_a_field_of_a_nested_object_is_named_by_its_path(tmp_path: Path, line: str) -> None:
    (tmp_path / "f").write_text(f"{line}\n")
    assert times_of(tmp_path / "f", EventTimeField("after.at")) == [2_000_000_000]


def test_records_that_come_one_by_one_have_event_times_too() -> None:
    gather = StreamBatcher(Stream(1, "one"), None, GatherLimits(), EventTimeField("at", "ms"))
    gather.add((1, 0, b"", b'{"at": 1500}'))
    gather.add((2, 7, b"", b'{"at": 2500}'))
    found = gather.take()
    assert found is not None
    assert found.event_times.tolist() == [1_500_000_000, 2_500_000_000]


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(UsageError, match="no unit of time 'm'"):
        checked_unit("m")


def test_streams_are_named_by_name_by_number_and_as_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    named = Pipeline("p").source("a", streams=["sensor", 7, Path("x/../f.log"), tmp_path / "g.log"])
    (source,) = (node for node in named.sink("out", to="file:out")._pipeline.graph().sources)
    files = {stream_id_of(Path("f.log")), stream_id_of(tmp_path / "g.log")}
    assert source.streams == {Stream.named("sensor").id, 7} | files


@pytest.mark.parametrize("streams", [[], [-1], [2**64], [""], [None], [True], ["a", 1.5]])
def test_a_url_that_names_no_stream_is_refused(streams: Any) -> None:
    with pytest.raises(PlanError, match="not all ids or names of streams"):
        Pipeline("p").source("a", streams=streams)
