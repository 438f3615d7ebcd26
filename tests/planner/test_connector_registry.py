"""The registry of connectors: which connector a URL belongs to, and what is refused."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from procession.errors import ConfigError, PlanError
from procession.planner import connector_registry
from procession.planner.connector import Connector, SinkTraits, SourceTraits
from procession.planner.connector_registry import (
    ADDRESS,
    FILE,
    GROUP,
    OURS,
    check_installed,
    connector_of,
    connectors,
    sink_of,
    source_of,
)

ROOT = Path(__file__).resolve().parent.parent.parent

SINK_ONLY = Connector(name="tape", form="tape:DRIVE", sink=SinkTraits(help="Write a tape."))
SOURCE_ONLY = Connector(name="sundial", form="sundial:ZONE", source=SourceTraits(help="Send the time."))
NOT_A_CONNECTOR = object()


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install connectors of other packages, as far as the registry can see."""
    points = {
        name: EntryPoint(name, f"{__name__}:{attribute}", GROUP)
        for name, attribute in {
            "tape": "SINK_ONLY",
            "sundial": "SOURCE_ONLY",
            "broken": "NOT_THERE",
            "odd": "NOT_A_CONNECTOR",
        }.items()
    }
    monkeypatch.setattr(connector_registry, "_plugged_in", lambda: points)
    connector_registry.connector_named.cache_clear()
    yield
    connector_registry.connector_named.cache_clear()


@pytest.mark.parametrize(
    ("target", "connector", "place"),
    [
        ("file:out", FILE, "out"),
        ("file:/a/b:7", FILE, "/a/b:7"),
        ("file:7100", FILE, "7100"),
        ("file:what?.log", FILE, "what?.log"),
        ("localhost:7200", ADDRESS, "localhost:7200"),
        ("kafka:9092", ADDRESS, "kafka:9092"),
    ],
)
def test_a_target_has_one_connector_and_a_place(target: str, connector: Connector, place: str) -> None:
    found, url = sink_of(target, "sink 'x'")
    assert found is connector
    assert url.place == place


@pytest.mark.parametrize("target", ["", "file:", "out", "a:b", "host:", ":7100", "host:123456", "a b:7100", None, 7])
def test_anything_else_is_refused_with_the_forms_that_are_known(target: str) -> None:
    with pytest.raises(PlanError) as caught:
        sink_of(target, "sink 'x'")
    assert "file:DIR" in caught.value.next_step or "SCHEME:PLACE" in caught.value.next_step


def test_an_unknown_scheme_names_all_that_are_known(plugins: None) -> None:
    with pytest.raises(PlanError, match="sink 'x' names 'mqtt://a/b', whose scheme no connector has") as caught:
        sink_of("mqtt://a/b", "sink 'x'")
    for form in ("file:DIR", "tape:DRIVE", "HOST:PORT"):
        assert form in caught.value.next_step
    assert "sundial" not in caught.value.next_step


def test_an_unknown_scheme_repeats_no_password() -> None:
    with pytest.raises(PlanError, match="whose scheme no connector has") as caught:
        sink_of("posgres://ann:hunter2@db/shop", "sink 'x'")
    assert "hunter2" not in caught.value.explain()


def test_a_connector_of_another_package_is_found_by_its_scheme(plugins: None) -> None:
    assert connector_of("tape:a") is SINK_ONLY
    assert {connector.name for connector in connectors()} >= {"file", "tape", "sundial"}


def test_a_source_connector_is_refused_as_a_sink_and_the_reverse(plugins: None) -> None:
    with pytest.raises(PlanError, match="there is no sink for sundial:ZONE"):
        sink_of("sundial:utc", "sink 'x'")
    with pytest.raises(PlanError, match="there is no source for tape:DRIVE"):
        source_of("tape:a", "source 'x'")
    with pytest.raises(PlanError, match="there is no source for HOST:PORT"):
        source_of("here:7100", "source 'x'")


@pytest.mark.parametrize("scheme", ["broken", "odd"])
def test_a_plug_in_that_cannot_be_loaded_is_named_if_it_is_used_and_breaks_nothing_else(
    scheme: str, plugins: None
) -> None:
    with pytest.raises(ConfigError, match=f"{scheme!r} of the package"):
        connector_of(f"{scheme}:a")
    assert scheme not in {connector.name for connector in connectors()}


def test_a_plug_in_cannot_replace_a_shipped_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = EntryPoint("file", f"{__name__}:SINK_ONLY", GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [theirs])
    connector_registry._plugged_in.cache_clear()
    connector_registry.connector_named.cache_clear()
    try:
        assert connector_of("file:a") is FILE
        assert "tape" not in {connector.name for connector in connectors()}
    finally:
        connector_registry._plugged_in.cache_clear()


def test_the_error_for_a_missing_package_has_the_command_that_installs_it() -> None:
    needy = Connector(name="tape", form="tape:DRIVE", modules=("json", "no_such.module"), install="procession[tape]")
    with pytest.raises(ConfigError, match=r"source 'x' needs the Python package 'no_such\.module'") as caught:
        check_installed(needy, "source 'x'")
    assert caught.value.next_step == "run pip install 'procession[tape]'"


def test_our_connectors_are_declared_as_entry_points_too() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    assert declared == OURS


def test_the_registry_imports_no_client_library_and_no_connector() -> None:
    code = (
        "import sys; from procession.planner.connector_registry import connectors; connectors();"
        "heavy = {'confluent_kafka', 'psycopg', 'deltalake', 'pyiceberg', 'obstore', 'asyncio', 'pandas'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_shipped_scheme_is_found_without_looking_at_installed_packages() -> None:
    code = (
        "import sys; from procession.planner.connector_registry import sink_of; sink_of('file:out', 'x');"
        "sink_of('kafka://broker/topic', 'x'); print('importlib.metadata' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_clock_is_read_as_a_url_although_it_looks_like_an_address() -> None:
    assert source_of("clock:1", "source 'x'")[0].name == "clock"
    with pytest.raises(PlanError, match="there is no source for HOST:PORT"):
        source_of("here:7100", "source 'x'")
