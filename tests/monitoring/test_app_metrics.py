"""The counters of an app among the metrics of a gateway: those of the last committed epoch, never an error."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from procession.commit.checkpoint import Checkpoint
from procession.commit.round_record import RoundRecord
from procession.monitoring.pipeline_metrics import APP_COUNTER, app_metrics
from procession.monitoring.pipeline_snapshot import PipelineSnapshots
from tests.walk.cluster import wait_for
from tests.walk.commands import running


def committed(root: Path, epoch: int, counters: dict[str, int]) -> None:
    """Write a round record, and Spark's commit of it."""
    checkpoint = Checkpoint.claim(root, name="app", fingerprint="f")
    checkpoint.rounds.write(RoundRecord(epoch, checkpoint.fence, "f", 0, 0, {}, counters=counters))
    for name in ("offsets", "commits"):
        (checkpoint.directory / name).mkdir(exist_ok=True)
        (checkpoint.directory / name / str(epoch)).write_text("v1\n{}")


def test_counters_are_those_of_the_last_committed_epoch(tmp_path: Path) -> None:
    committed(tmp_path, 0, {"records_in": 7, "counter large": 3, "counter balance": -2})
    (metric,) = app_metrics(tmp_path)
    assert metric.values == [(("balance",), -2.0), (("large",), 3.0)]


def test_the_status_and_the_dashboard_have_the_counters_too(tmp_path: Path) -> None:
    committed(tmp_path / "checkpoint", 0, {"records_in": 7, "counter large": 3, "counter balance": -2})
    assert PipelineSnapshots(tmp_path, is_asking=False).take()["counters"] == {"balance": -2, "large": 3}


def test_a_missing_or_empty_checkpoint_has_no_counters(tmp_path: Path) -> None:
    assert app_metrics(tmp_path / "none") == []
    Checkpoint.claim(tmp_path, name="app", fingerprint="f")
    assert [metric.values for metric in app_metrics(tmp_path)] == [[]]


def test_a_gateway_serves_the_counters_of_its_pipeline(tmp_path: Path) -> None:
    committed(tmp_path / "checkpoint", 0, {"counter large": 3})
    arguments = ("gateway", "--dir", "gateway", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    addresses = tmp_path / "gateway" / "gateway.json"
    with running(*arguments, cwd=tmp_path) as gateway:
        wait_for(addresses.exists, "the gateway", lambda: gateway.said)
        address = json.loads(addresses.read_text())["metrics"]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
            assert f'{APP_COUNTER}{{counter="large"}} 3.0' in answer.read().decode()
