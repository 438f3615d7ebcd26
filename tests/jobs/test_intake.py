"""`procession pause`, `resume` and `drain`, with a real gateway and a driver without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from procession.deployment.run_claim import DRAINED, claimed
from procession.errors import ConfigError
from procession.jobs.intake import Intake
from procession.monitoring.job_status import sentences, status
from procession.wire.messages import Ok
from tests.deployment.test_run_claim import held
from tests.gateway.epoch_reader import EpochReader
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.producer import Producer

PATIENCE_S = 60.0
COUNT = 1_000


@contextmanager
def gateway(directory: Path) -> Iterator[GatewayProcess]:
    process = GatewayProcess(directory / "gateway", {"limits": {"credits_max": 50}})
    process.start()
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def producer(at: GatewayProcess) -> Iterator[Producer]:
    with Producer(at.listen) as sender:
        sender.hello()
        sender.notify(1)
        yield sender


def test_a_paused_gateway_reads_no_records_until_it_is_resumed_also_after_a_restart(tmp_path: Path) -> None:
    intake = Intake(tmp_path)
    with held(tmp_path), gateway(tmp_path) as process:
        with producer(process) as before:
            before.messages(1, range(10))
            assert intake.pause() == ["gateway-0"]
            with process.client() as client:
                assert client.status()["is_paused"]
        process.kill()
        process.start()
        with process.client() as client, Producer(process.listen) as after:
            assert client.status()["is_paused"]
            assert after.hello() == Ok(1), "only the credits for its NOTIFY"
            assert client.status()["is_over"], "its records are not read"
            assert intake.resume() == ["gateway-0"]
            after.notify(1)
            assert not client.status()["is_paused"]
        process.kill()
        process.start()
        with process.client() as client:
            assert not client.status()["is_paused"], "a restart does not pause it again"


def test_a_drain_commits_all_received_records_saves_the_epoch_and_stops(tmp_path: Path) -> None:
    with held(tmp_path) as run, gateway(tmp_path) as process, producer(process) as sends:
        sends.messages(1, range(20))
        epoch_reader = EpochReader(tmp_path / "checkpoint", tmp_path / "gateway", records_max=7).begin()
        try:
            done = Intake(tmp_path).drain(PATIENCE_S)
        finally:
            epoch_reader.finish()
        assert run.wait(PATIENCE_S) == 0
        assert (done["process"], done["epoch"]) == (run.pid, epoch_reader.epoch)
        with process.client() as client:
            found = client.status()
        assert found["buffered"] == 0
        assert found["is_paused"]
        assert len(epoch_reader.ids.get(1, [])) == found["next_sequence"], "all records that the gateway had read"
    assert json.loads((tmp_path / DRAINED).read_text())["epoch"] == epoch_reader.epoch
    shown = status(tmp_path)
    assert shown["state"] == "drained"
    assert "everything received is committed" in next(iter(sentences(shown)))
    with claimed(tmp_path, "epoch_reader", Path("app.py")):
        pass
    assert status(tmp_path)["state"] == "stopped", "records of the next run only"


def test_a_drain_that_takes_too_long_leaves_the_pipeline_as_it_was(tmp_path: Path) -> None:
    with held(tmp_path) as run, gateway(tmp_path) as process, producer(process) as sends, process.client() as client:
        sends.messages(1, range(60))  # more than the first credits, so the gateway has read some
        with pytest.raises(ConfigError, match=r"Not everything is committed after 0\.2 seconds: [\d]+ at gateway-0"):
            Intake(tmp_path).drain(0.2)
        assert run.poll() is None
        assert not client.status()["is_paused"]
        assert not (tmp_path / DRAINED).exists()
        client.pause(is_kept=True)
        with pytest.raises(ConfigError, match="Not everything is committed"):
            Intake(tmp_path).drain(0.2)
        assert client.status()["is_paused"], "the gateway was paused before"


def test_a_pipeline_that_does_not_run_cannot_be_paused_or_drained(tmp_path: Path) -> None:
    for act in (Intake(tmp_path).pause, Intake(tmp_path).resume, lambda: Intake(tmp_path).drain(1.0)):
        with pytest.raises(ConfigError, match="No pipeline runs in"):
            act()
