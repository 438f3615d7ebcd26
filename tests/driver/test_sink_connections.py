"""A driver derives limits, message forms and addresses of its sinks from their URLs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.api.pipeline import Pipeline
from procession.driver.driver_config import DriverConfig
from procession.driver.sink_connections import epoch_limits, sink_options
from procession.errors import ConfigError
from tests.connectors import tape


@pytest.fixture(autouse=True)
def _plugged_in() -> Iterator[None]:
    with tape.installed():
        yield


def pipeline(*targets: str) -> Pipeline:
    made = Pipeline("p")
    source = made.source()
    for number, target in enumerate(targets):
        source.sink(f"s{number}", to=target)
    return made


def config(**sinks: str) -> DriverConfig:
    return DriverConfig(
        app=Path("app.py"),
        directory=Path("dir"),
        gateway=Path("dir/gateway"),
        sinks=sinks,
        epoch_records_max=1000,
        epoch_bytes_max=5000,
        sink_cookie=b"given",
        file_sink_cookie=b"made",
    )


@pytest.mark.parametrize(
    ("targets", "records_max"),
    [
        (["file:out"], 1000),
        (["tape:a"], 1000),
        (["tape:a?records=70", "tape:b?records=80"], 70),
        (["tape:a?records=2000"], 1000),
    ],
)
def test_the_sink_with_the_smallest_limit_bounds_the_epochs_of_the_pipeline(
    targets: list[str], records_max: int
) -> None:
    assert epoch_limits(pipeline(*targets).graph(), config()) == (records_max, 5000)


def test_a_sink_gets_the_message_form_of_its_connector_and_the_right_secret() -> None:
    graph = pipeline("file:out", "tape:a", "127.0.0.1:9").graph()
    file, blocks, other = sink_options(graph, config(s0="127.0.0.1:7", s1="127.0.0.1:8"))
    assert (file.port, file.pack_bytes_max, file.is_in_blocks, file.cookie) == (7, 64 * 1024, False, b"made")
    assert (blocks.port, blocks.pack_bytes_max, blocks.is_in_blocks, blocks.cookie) == (8, 256 * 1024, True, b"made")
    assert (other.port, other.pack_bytes_max, other.is_in_blocks, other.cookie) == (9, 0, False, b"given")
    assert [one.is_authoritative for one in (file, blocks, other)] == [True, True, False]


def test_a_sink_that_was_not_started_has_no_address() -> None:
    with pytest.raises(ConfigError, match="sink 's0' has no address"):
        sink_options(pipeline("tape:a").graph(), config())
