"""The claim on a pipeline's directory: only one run has it, it ends with its process, and other commands can stop that
run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from procession.cli.main import app as cli
from procession.commit.checkpoint import Checkpoint
from procession.commit.round_record import RoundRecord
from procession.deployment.run_claim import LOCK, claimed, holder, running, stop
from procession.errors import ConfigError, StorageError
from procession.monitoring.job_status import sentences, status
from procession.monitoring.pipeline_snapshot import jobs

HOLDER = """
import signal, sys
from pathlib import Path
from procession.deployment.run_claim import claimed
signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in sys.argv else lambda *_: sys.exit(0))
with claimed(Path(sys.argv[1]), "app", Path("app.py")):
    print("held", flush=True)
    while True:
        signal.pause()
"""


@contextmanager
def held(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start another process that holds the claim."""
    command = [sys.executable, "-c", HOLDER, str(directory), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_directory_is_claimed_once_and_free_after_a_kill(tmp_path: Path) -> None:
    directory = tmp_path / "p"
    assert holder(directory) is None
    with held(directory) as process:
        assert holder(directory) == process.pid
        found = running(directory)
        assert found is not None
        assert (found.pipeline, found.pid) == ("app", process.pid)
        with (
            pytest.raises(ConfigError, match=f"runs already, in process {process.pid}"),
            claimed(directory, "app", Path("x")),
        ):
            pass
        assert holder(directory) == process.pid
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert holder(directory) is None
        assert running(directory) is None, "run.json alone does not make it running"
        with claimed(directory, "app", Path("x")):
            pass
    assert directory.stat().st_mode & 0o077 == 0


def test_a_lock_file_that_cannot_be_opened_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / LOCK).mkdir()
    with pytest.raises(StorageError, match=f"Cannot open .*{LOCK}"), claimed(tmp_path, "orders", Path("app.py")):
        pytest.fail("it was claimed")


def test_stop_waits_for_the_end_and_reports_if_it_does_not_come(tmp_path: Path) -> None:
    assert stop(tmp_path, 1.0) is None
    with held(tmp_path) as process:
        assert stop(tmp_path, 60.0) == process.pid
        assert process.wait() == 0
    assert stop(tmp_path, 1.0) is None
    with held(tmp_path, "deaf"), pytest.raises(ConfigError, match=r"still runs after 0\.1 seconds"):
        stop(tmp_path, 0.1)


def test_the_status_counts_committed_records_also_without_a_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / ".procession" / "app"
    with pytest.raises(ConfigError, match="no pipeline in"):
        status(directory)
    checkpoint = Checkpoint.claim(directory / "checkpoint", name="app", fingerprint="f")
    checkpoint.rounds.write(RoundRecord(0, checkpoint.fence, "f", 0, 7, {}, counters={"records_in": 7, "late": 2}))
    for part in ("offsets", "commits"):
        (checkpoint.directory / part).mkdir()
        (checkpoint.directory / part / "0").write_text("v1\n{}\n{}")
    monkeypatch.chdir(tmp_path)
    (stopped,) = jobs()
    assert (stopped["state"], stopped["epoch"], stopped["committed"], stopped["lag"]) == ("stopped", 0, 7, None)
    assert "does not run" in "\n".join(sentences(stopped))
    assert stopped["verdict"]["outcome"] == "unknown"  # it has no history
    listed = CliRunner().invoke(cli, ["jobs"]).stdout.splitlines()
    assert " ".join(listed[0].split()) == "pipeline state since pid epoch committed records/s lag verdict"
    assert listed[1].split() == ["app", "stopped", "-", "-", "0", "7", "-", "-", "unknown"]
    shutil.copytree(directory, directory.with_name("restored"))
    listed = CliRunner().invoke(cli, ["jobs"]).stdout.splitlines()
    assert [line.split()[-1] for line in listed[1:]] == [".procession/app", ".procession/restored"], "of the same name"
    assert json.loads(CliRunner().invoke(cli, ["stop", "--json", "--dir", str(directory)]).stdout) == {"stopped": None}
    with held(directory) as process:
        found = status(directory)
        assert (found["state"], found["pid"], found["lag"]) == ("running", process.pid, None)
        text = "\n".join(sentences(found))
        assert f"in process {process.pid}" in text
        assert "7 records in" in text
        assert "2 late records" in text
        assert "its gateway does not answer" in text


def test_in_its_own_process_a_claim_is_seen_and_cannot_be_taken_twice_or_lost(tmp_path: Path) -> None:
    with claimed(tmp_path, "app", Path("app.py")):
        assert holder(tmp_path) == os.getpid()
        with pytest.raises(ConfigError, match="runs already"), claimed(tmp_path, "app", Path("app.py")):
            pass
        ask = "import sys; from pathlib import Path; from procession.deployment.run_claim import holder;"
        found = subprocess.check_output(
            [sys.executable, "-c", f"{ask} print(holder(Path(sys.argv[1])))", str(tmp_path)]
        )
        assert int(found) == os.getpid(), "the lock is still held"
    assert holder(tmp_path) is None
