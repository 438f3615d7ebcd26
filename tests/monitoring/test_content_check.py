"""The output of a pipeline without stages is compared with its input files, record by record, while it grows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from procession import Pipeline
from procession.api.stage import Stage
from procession.commit.checkpoint import Checkpoint
from procession.connectors.file_source import stream_id_of
from procession.deployment.local_pipeline import LocalPipeline
from procession.deployment.run_details import DETAILS, read_details, write_details
from procession.deployment.settings import Settings
from procession.gateway.gateway_directory import save_snapshot
from procession.gateway.snapshot import Position, Snapshot
from procession.monitoring.content_check import ContentCheck
from procession.monitoring.pipeline_snapshot import PipelineSnapshots
from tests.supervisor.started import Started
from tests.verify.test_live_check import RECORDS, Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    found = Run(tmp_path)
    output = {"directory": str(found.output), "instance": "app-0", "order": "total"}
    (tmp_path / DETAILS).write_text(json.dumps({"passthrough": {"out": output}}))
    (tmp_path / "gateway").mkdir()
    name_stream(tmp_path, found.input)
    return found


def name_stream(directory: Path, path: Path) -> None:
    save_snapshot(directory / "gateway", Snapshot(1, 0, 7, 9, {stream_id_of(path): Position(str(path), 40)}))


def commit(run: Run, records: list[bytes]) -> None:
    part = run.vote(records)
    run.decide(part)
    run.log.decide(part.txn, True)
    run.end = part.end


def test_records_are_compared_as_they_are_committed(run: Run, tmp_path: Path) -> None:
    check = ContentCheck(tmp_path)
    assert check.poll() == {"outcome": "unknown", "records": 0, "lost": 0, "doubled": 0, "disordered": 0, "why": ""}
    for end in (10, 20, 30):
        commit(run, RECORDS[end - 10 : end])
        found = check.poll()
        assert found is not None
        assert (found["outcome"], found["records"]) == ("clean", end)
    commit(run, RECORDS[40:50])
    found = check.poll()
    assert found is not None
    assert (found["outcome"], found["lost"]) == ("violated", 10)
    verdict = PipelineSnapshots(tmp_path).take()["verdict"]
    assert (verdict["outcome"], verdict["lost"]) == ("violated", 10)
    assert "the contents differ" in verdict["why"][0]
    check.close()


def test_streams_without_a_local_file_and_large_inputs_are_not_compared(run: Run, tmp_path: Path) -> None:
    commit(run, RECORDS[:10])
    found = ContentCheck(tmp_path, bytes_max=10).poll()
    assert found is not None
    assert "`procession verify` compares it" in found["why"]
    name_stream(tmp_path, tmp_path / "elsewhere.txt")
    assert ContentCheck(tmp_path).poll() is None
    name_stream(tmp_path, run.input)
    (tmp_path / DETAILS).write_text("{}")
    assert ContentCheck(tmp_path).poll() is None


def test_only_a_program_that_never_had_a_stage_is_compared(tmp_path: Path) -> None:
    def write(change: Callable[[Stage], Stage] = lambda stage: stage, codec: str = "text") -> list[str]:
        pipeline = Pipeline("p")
        change(pipeline.source("lines", codec=codec)).sink("out", to="file:out")
        nobody: Any = Started()
        graph = pipeline.graph()
        write_details(LocalPipeline(nobody, tmp_path / "a.py", graph, tmp_path, tmp_path, Settings()), tmp_path)
        return [*read_details(tmp_path)["passthrough"]]

    assert write(codec="json") == []  # JSON may be written in another form than it was read
    assert write() == ["out"]
    Checkpoint.claim(tmp_path / "checkpoint", name="p", fingerprint="f")
    assert write() == ["out"]
    assert write(lambda stage: stage.map(str.upper)) == []
    assert write() == []  # there is output of the earlier program
