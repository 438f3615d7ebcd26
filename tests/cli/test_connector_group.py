"""`procession source|sink` with the commands of connectors, which are loaded when they are used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from procession.cli.main import app
from procession.errors import ConfigError
from tests.connectors import tape


def sink_tape(url: str, speed: int = 1) -> None:
    """Write a whole tape."""
    print(f"writing {url} at {speed}")


@pytest.fixture
def connector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tape, "CONNECTOR", replace(tape.CONNECTOR, commands=__name__))
    with tape.installed():
        yield


def invoked(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_a_connector_is_listed_with_its_description_and_shows_its_own_help(connector: None) -> None:
    assert "Write a tape." in invoked("sink", "--help")
    assert "Write a whole tape." in invoked("sink", "tape", "--help")
    assert "--speed" in invoked("sink", "tape", "--help")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("sink tape", ['.sink("NAME", to="tape:DRIVE")', 'to="HOST:PORT"']),
        ("source kafka", ['from_="kafka://HOST:PORT/TOPIC"', "PROCESSION_KAFKA_CONFIG"]),
        ("source postgres", ['from_="postgres://USER@HOST:PORT/DATABASE?table=TABLE"', "PGPASSFILE"]),
        ("sink kafka", ['to="kafka://HOST:PORT/TOPIC"', "sasl.password"]),
        ("sink postgres", ['to="postgres://USER@HOST:PORT/DATABASE?table=TABLE"', "PGPASSWORD"]),
        ("sink delta", ['to="delta:DIR-or-s3://BUCKET/PREFIX"', "AWS_REGION", "AWS_ENDPOINT_URL"]),
        ("sink iceberg", ['to="iceberg:WAREHOUSE/NAMESPACE.TABLE"', "PYICEBERG_CATALOG__NAME__URI"]),
        ("sink parquet", ['to="parquet:DIR-or-s3://BUCKET/PREFIX"', "AWS_SECRET_ACCESS_KEY"]),
    ],
)
def test_the_help_of_a_connector_says_how_an_app_names_it_and_where_secrets_belong(
    connector: None, command: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    shown = invoked(*command.split(), "--help")
    assert [word for word in words if word not in shown] == []


def test_a_command_of_a_connector_runs_with_its_options(connector: None) -> None:
    assert invoked("sink", "tape", "tape:a", "--speed", "3") == "writing tape:a at 3\n"


def test_a_missing_package_is_reported_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, connector: None
) -> None:
    needy = replace(tape.CONNECTOR, modules=("no_such_module",), install="procession[tape]")
    monkeypatch.setattr(tape, "CONNECTOR", needy)
    with tape.installed(), pytest.raises(ConfigError, match="procession sink tape needs the Python package") as caught:
        invoked("sink", "tape", "tape:a")
    assert caught.value.next_step == "run pip install 'procession[tape]'"


def test_a_connector_without_this_command_is_distinguished_from_an_unknown_one(connector: None) -> None:
    with pytest.raises(ConfigError, match="procession source tape cannot be loaded"):
        invoked("source", "tape", "tape:a")
    assert "No such command" in invoked("source", "mqtt")


def test_the_list_of_commands_imports_no_client_library() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from procession.cli.main import app;"
        "result = CliRunner().invoke(app, ['sink', '--help']); assert 'kafka' in result.output;"
        "heavy = {'confluent_kafka', 'psycopg', 'deltalake', 'pyiceberg', 'obstore', 'pyspark', 'pyarrow'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
