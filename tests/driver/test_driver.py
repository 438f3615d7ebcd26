"""A driver refuses unusable settings before it claims the checkpoint or starts Spark, and notices the end of the
query."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession.commit.checkpoint import Checkpoint
from procession.driver.app_file import load_app
from procession.driver.driver import Driver, run_driver
from procession.driver.driver_config import DriverConfig
from procession.errors import ConfigError, RoundError
from procession.exit_status import FINAL_STATUSES, status_of
from procession.storage.host_runs import DIRECTORY_VARIABLE

APP = """
from procession import Pipeline

pipeline = Pipeline("walk", exchange={exchange!r})
pipeline.source("lines").sink("out", to="file:out")
"""


@pytest.mark.parametrize(
    ("exchange", "why"),
    [("spark", "sends runs through Spark"), ("runs", "has no host service: PROCESSION_HOST_DIR is not set")],
)
def test_host_services_that_could_not_be_used_are_refused_at_the_start(
    exchange: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DIRECTORY_VARIABLE, raising=False)
    (tmp_path / "app.py").write_text(APP.format(exchange=exchange))
    directory = tmp_path / "pipeline"
    with pytest.raises(ConfigError, match=why) as caught:
        run_driver(DriverConfig(tmp_path / "app.py", directory, directory / "gateway", host_services=True))
    assert caught.value.next_step
    assert not (directory / "checkpoint").exists()


class EndedQuery:
    """A query whose thread has ended without an error, as Spark's does after a stack overflow in the text of an
    error."""

    isActive = False  # noqa: N815  (Spark's name)

    def awaitTermination(self) -> None:  # noqa: N802  (Spark's name)
        pass

    def stop(self) -> None:
        pass


@pytest.mark.parametrize("is_stopping", [False, True])
def test_a_query_that_ends_by_itself_is_a_failure_and_the_driver_is_restarted(
    tmp_path: Path, is_stopping: bool
) -> None:
    (tmp_path / "app.py").write_text(APP.format(exchange="runs"))
    app = load_app(tmp_path / "app.py")
    checkpoint = Checkpoint.claim(tmp_path / "checkpoint", name="walk", fingerprint=app.graph.fingerprint())
    driver = Driver(DriverConfig(tmp_path / "app.py", tmp_path, tmp_path / "gateway"), app, checkpoint, print)
    if is_stopping:
        driver._is_stopping.set()
    driver._await_end(EndedQuery())
    if is_stopping:
        assert driver._error is None
    else:
        assert isinstance(driver._error, RoundError)
        assert status_of(driver._error) not in FINAL_STATUSES, "the supervisor restarts it"
