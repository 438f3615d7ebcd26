"""Savepoints of a pipeline that runs, with Spark: made between two epochs, and continued in another directory."""

from __future__ import annotations

from pathlib import Path

from procession.supervisor.local_pipeline import COMMAND
from procession.supervisor.part import Part
from procession.supervisor.savepoint_create import create
from procession.supervisor.savepoint_restore import restore
from procession.supervisor.settings import Settings
from tests.walk.cluster import Cluster

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
    """The sequential reference."""
    counts: dict[str, int] = {}
    found = []
    for line in (line.decode() for line in lines):
        found.append(f"{line} {counts.get(line[-1], 0)}")
        counts[line[-1]] = counts.get(line[-1], 0) + 1
    return found


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
        # The producers send everything again. They are told that the first input is committed.
        for number, path in enumerate(inputs):
            argv = [*COMMAND, "source", "file", str(path), "--to", cluster.local.address]
            cluster.supervisor.start(Part(f"again-{number}", (*argv, *cluster.local.producer_arguments)))
            cluster.until_done(f"again-{number}")
        assert cluster.committed("out").decode().splitlines() == expected(lines[0] + lines[1])[RECORDS:]
