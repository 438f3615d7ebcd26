"""`procession submit` refuses impossible requests in one sentence before anything starts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.deployment.settings import Settings
from procession.errors import ConfigError, UsageError
from procession.jobs.submit_app import submitted
from procession.spark.master import YARN_FILE

APP = """
from procession import Pipeline

pipeline = Pipeline("submitted"{more})
pipeline.source("words", codec="text").sink("output", to="file:output", codec="text")
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP.format(more=""))
    (tmp_path / "ours.tar.gz").touch()
    return tmp_path / "app.py"


@pytest.fixture
def master() -> Iterator[str]:
    """Listen on a port, and yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"spark://127.0.0.1:{server.getsockname()[1]}"


def test_an_archive_and_the_addresses_of_this_machine_are_added_to_the_settings(app: Path, master: str) -> None:
    said: list[str] = []
    archive = app.parent / "ours.tar.gz"
    settings = Settings(master=master, environment_archive=str(archive), epoch_records_max=7)
    directory, found = submitted(app, None, settings, said.append)
    assert directory == Path(".procession/submitted")
    assert (found.environment_archive, found.epoch_records_max) == (str(archive), 7)
    assert found.host_services
    assert (found.driver_files, found.flight) == ("127.0.0.1:0", "127.0.0.1:0")
    assert "need no secret" in said[0]
    secret = app.parent / "secret"
    said.clear()
    submitted(app, None, settings.model_copy(update={"spark_secret_file": secret}), said.append)
    assert said == []


def test_a_given_address_is_used(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (app.parent / YARN_FILE).touch()
    monkeypatch.setenv("HADOOP_CONF_DIR", str(app.parent))
    settings = Settings(master="yarn", environment_archive=str(app.parent / "ours.tar.gz"), flight="10.0.0.1:7102")
    _, found = submitted(app, None, settings, print, address="10.0.0.1")
    assert (found.driver_files, found.flight) == ("10.0.0.1:0", "10.0.0.1:7102")
    with pytest.raises(UsageError, match="the address of this machine for executors must be given"):
        submitted(app, None, settings, print)


def test_a_master_that_does_not_listen_is_refused(app: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConfigError, match=f"master spark://127.0.0.1:{port} cannot be reached: Connection refused"):
        submitted(app, None, Settings(master=f"spark://127.0.0.1:{port}"), print)


@pytest.mark.parametrize("local", [None, "local[2]", "local-cluster[1,1,1024]"])
def test_a_master_of_this_machine_is_refused(app: Path, local: str | None) -> None:
    with pytest.raises(UsageError, match="no cluster is named"):
        submitted(app, None, Settings(master=local), print)


def test_a_key_over_open_ports_an_exchange_through_spark_and_a_missing_archive_are_refused(
    app: Path, master: str
) -> None:
    with pytest.raises(ConfigError, match="ports of Spark that ask for no secret"):
        submitted(app, None, Settings(master=master, tls_ca=app), print)
    with pytest.raises(ConfigError, match="There is no environment archive nothing"):
        submitted(app, None, Settings(master=master, environment_archive="nothing.tar.gz"), print)
    app.write_text(APP.format(more=', exchange="spark"'))
    with pytest.raises(ConfigError, match="sends runs through Spark"):
        submitted(app, None, Settings(master=master), print)
