"""The doctor finds problems that would stop a pipeline before it starts, and names a next step."""

from __future__ import annotations

import json
import resource
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from procession.cli.main import app
from procession.deployment.settings import Settings
from procession.jobs import doctor
from procession.jobs.doctor import Health, MachineCheck, examine, is_ready
from procession.planner.connector_registry import connector_named

ANY_PORT = "127.0.0.1:0"


def found(directory: Path, listen: str = ANY_PORT, **settings: object) -> dict[str, MachineCheck]:
    return {
        finding.name.split()[0]: finding for finding in examine(directory, listen, Settings.model_validate(settings))
    }


def test_this_machine_can_run_a_pipeline(tmp_path: Path) -> None:
    findings = found(tmp_path / "not" / "yet")
    assert is_ready(list(findings.values()))
    assert all(finding.health is Health.GOOD or finding.next_step for finding in findings.values())
    assert not (tmp_path / "not").exists(), "the doctor changes nothing"


def test_a_problem_that_prevents_the_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        findings = found(tmp_path, f"127.0.0.1:{taken.getsockname()[1]}", master="nonsense", disk_free_bytes_min=2**62)
    bad = {name for name, finding in findings.items() if finding.health is Health.BAD}
    assert bad == {"java", "port", "master", "disk"}
    assert all(findings[name].next_step for name in bad)
    assert not is_ready(list(findings.values()))


def test_a_problem_that_appears_later_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = time.time_ns() + int(3600e9)
    (tmp_path / "epochs.jsonl").write_text(json.dumps({"committed_ns": later}) + "\n")
    kafka = connector_named("kafka")
    assert kafka is not None
    monkeypatch.setattr(doctor, "connectors", lambda: [replace(kafka, modules=("no_such_package",))])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
    try:
        findings = found(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    warnings = {name for name, finding in findings.items() if finding.health is Health.WARNING}
    assert warnings >= {"clock", "open", "connector"}
    assert "pip install 'procession[kafka]'" in findings["connector"].next_step
    assert is_ready(list(findings.values()))


def test_the_command_exits_with_3_if_a_pipeline_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["doctor", "--dir", str(tmp_path), "--listen", ANY_PORT]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 3
    assert not json.loads(result.stdout)["is_ready"]
    assert "Next: " in CliRunner().invoke(app, arguments).stdout
