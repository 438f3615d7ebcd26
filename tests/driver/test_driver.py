"""What a driver refuses before it claims the checkpoint or starts Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession.driver.driver import DriverConfig, run_driver
from procession.errors import ConfigError
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
