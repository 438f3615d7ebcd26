"""Savepoints of a running pipeline with Spark, made between two epochs and continued in another directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from procession.deployment.local_pipeline import COMMAND
from procession.deployment.settings import Settings
from procession.exit_status import Status
from procession.savepoints.savepoint_create import create
from procession.savepoints.savepoint_restore import restore
from procession.supervisor.part import Part
from procession.verify.sink_outputs import committed_output
from tests.walk.cluster import Cluster
from tests.walk.commands import run

APP = """
from procession import Pipeline

def counted(count, line):
    return count + 1, f"{line} {count}"

pipeline = Pipeline("saved", parallelism=2)
lines = pipeline.source("lines", codec="text")
lines.map_stateful(counted, key=lambda line: line[-1], initial=0, name="counted").sink("out", to="file:out")
"""
SETTINGS = Settings(epoch_interval_s=0.02, epoch_records_max=100)
RECORDS = 300


def expected(lines: list[bytes]) -> list[str]:
    """Return the output of the sequential reference."""
    counts: dict[str, int] = {}
    found = []
    for line in (line.decode() for line in lines):
        found.append(f"{line} {counts.get(line[-1], 0)}")
        counts[line[-1]] = counts.get(line[-1], 0) + 1
    return found


@pytest.mark.slow  # tests/savepoints restores savepoints without Spark
def test_a_savepoint_of_a_running_pipeline_continues_in_another_directory_where_it_was_made(tmp_path: Path) -> None:
    lines: list[list[bytes]] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with Cluster(tmp_path / "one", APP, SETTINGS) as cluster:
        assert cluster.local.start()
        for _ in range(2):
            lines.append(cluster.numbered(RECORDS))
            cluster.until_done(cluster.send(lines[-1]))
            if len(lines) == 1:
                saved = create(cluster.directory, "middle")
        inputs = cluster.inputs
        assert cluster.committed("out").decode().splitlines() == expected(lines[0] + lines[1])
    saved.verify()
    restored = tmp_path / "two" / "restored"
    restore(saved, restored, continues_outputs=False)
    with Cluster(restored, APP, SETTINGS) as cluster:
        assert cluster.local.start()
        # The producers send everything again. They learn that the first input is committed.
        for number, path in enumerate(inputs):
            argv = [*COMMAND, "source", "file", str(path), "--to", cluster.local.address]
            cluster.supervisor.start(Part(f"again-{number}", (*argv, *cluster.local.producer_arguments)))
            cluster.until_done(f"again-{number}")
        assert cluster.committed("out").decode().splitlines() == expected(lines[0] + lines[1])[RECORDS:]


@pytest.mark.slow
def test_a_copy_continues_on_another_machine_and_is_kept_from_the_outputs_of_the_original(tmp_path: Path) -> None:
    here, there, given = tmp_path / "here", tmp_path / "there", tmp_path / "input.txt"
    lines = [f"record {number}" for number in range(2 * RECORDS)]
    reference = expected([line.encode() for line in lines])
    for machine in (here, there):
        machine.mkdir()
        (machine / "app.py").write_text(APP)

    def start(machine: Path, directory: str, count: int) -> tuple[int, str]:
        given.write_text("".join(f"{line}\n" for line in lines[:count]))
        options = ("--dir", directory, "--input", given, "--listen", "127.0.0.1:0", "--no-dashboard")
        done = run("run", "app.py", *options, cwd=machine)
        return done.returncode, done.stderr

    def output(machine: Path) -> list[str]:
        return b"".join(committed_output(machine / "out", None)).decode().splitlines()

    assert start(here, "first", RECORDS)[0] == Status.DONE
    assert run("savepoint", "good", "--dir", "first", cwd=here).returncode == 0
    assert run("savepoint", "copy", "good", there / "copy", "--dir", "first", cwd=here).returncode == 0
    assert start(here, "first", 2 * RECORDS)[0] == Status.DONE
    assert output(here) == reference
    restored = json.loads(run("savepoint", "restore", there / "copy", "second", "--json", cwd=here).stdout)
    ids = [json.loads((here / name / "checkpoint" / "pipeline.json").read_text())["id"] for name in ("first", "second")]
    assert restored["checkpoint_id"] == ids[1] != ids[0]
    status, error = start(here, "second", 2 * RECORDS)
    assert status == Status.ACT
    assert "'out'" in error
    assert output(here) == reference, "the sink has refused the copy"
    shutil.rmtree(here)

    assert run("savepoint", "verify", "./copy", cwd=there).returncode == 0
    assert run("savepoint", "restore", "./copy", "third", cwd=there).returncode == 0
    assert start(there, "third", 2 * RECORDS)[0] == Status.DONE
    assert output(there) == reference[RECORDS:]
