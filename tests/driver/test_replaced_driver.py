"""A driver that was stopped after its claim and replaced: when it continues, it removes nothing of its successor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from procession import faults
from procession.commit.checkpoint import Checkpoint
from procession.driver.app_file import load_app
from procession.storage.run_store import Manifest, RunStore
from procession.storage.state_version import file_prefix
from procession.storage.table_copies import TableCopies

APP = """
from pathlib import Path
from procession import Pipeline, tables

pipeline = Pipeline("walk")
lines = pipeline.source("lines", codec="text")
counted = lines.map_stateful(lambda state, line: (state, line), key=lambda line: line, initial=0, name="counted")
table = tables.of_json_lines(Path(__file__).parent / "table.jsonl", by="id", refresh=True)
counted.hash_join(table, key=lambda line: "k", join=lambda line, row: line, name="told").sink("out", to="file:out")
"""
DRIVE = """
import sys
from pathlib import Path
from procession.errors import FencedError
from procession.driver.driver import run_driver
from procession.driver.driver_config import DriverConfig

app, directory = map(Path, sys.argv[1:])
try:
    run_driver(DriverConfig(app, directory, directory / "gateway", sinks={"out": "127.0.0.1:1"}))
except FencedError:
    sys.exit(42)
"""
PATIENCE_S = 120.0


def state_of(process: subprocess.Popen[bytes]) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def files_below(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.is_file()}


def test_a_driver_that_was_paused_after_its_claim_removes_nothing_of_its_successors(tmp_path: Path) -> None:
    app, directory, fault = tmp_path / "app.py", tmp_path / "pipeline", tmp_path / "fault"
    app.write_text(APP)
    (tmp_path / "table.jsonl").write_text('{"id": "k"}\n')
    directory.mkdir()
    fault.write_text("pause:driver:claimed")
    paused = subprocess.Popen(
        [sys.executable, "-c", DRIVE, str(app), str(directory)], env={**os.environ, faults.FILE_VARIABLE: str(fault)}
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while state_of(paused) != "T":
            assert paused.poll() is None
            assert time.monotonic() < deadline, "the driver does not reach its pause"
            time.sleep(0.02)
        graph = load_app(app).graph
        successor = Checkpoint.claim(
            directory / "checkpoint", name=graph.name, fingerprint=graph.fingerprint(), endpoints=graph.endpoints()
        )
        assert successor.fence == 2
        RunStore(directory / "runs" / successor.id / "0000000002").writer(0, 0, 0, 1).publish(Manifest(0, 0, 0, 0, 1))
        TableCopies(directory / "sides" / successor.id, successor.fence).take(tmp_path / "table.jsonl")
        states = directory / "state" / successor.id
        states.mkdir(parents=True)
        (states / f"{file_prefix(2, 'counted', 0, 0, 0)}-0.state").touch()
        before = files_below(directory)
        paused.send_signal(signal.SIGCONT)
        assert paused.wait(PATIENCE_S) == 42
        assert before <= files_below(directory)
    finally:
        paused.kill()
        paused.wait()
