"""Upgrades of a running pipeline, with Spark: states are kept, producers only wait, a failing program is rolled
back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from procession.gateway.control_client import ControlClient
from procession.gateway.listen_address import addresses
from procession.verify.sink_outputs import committed_output
from tests.walk.cluster import wait_for
from tests.walk.commands import Running, run, running

APP = """
from procession import Pipeline

def counted(count, line):
    return count + 1, f"{line} {count}"

pipeline = Pipeline("up", parallelism=2)
lines = pipeline.source("lines", codec="text")
lines.map_stateful(counted, key=lambda line: line[-1], initial=0, name="counted").sink("out", to="file:out")
"""
CHANGED = """
from procession import Pipeline, Upgrade

def totalled(state, line):
    return {"n": state["n"] + 1}, f"{line} {state['n']}"

pipeline = Pipeline("up", parallelism=2)
lines = pipeline.source("lines", codec="text")
totals = lines.map_stateful(
    totalled, key=lambda line: line[-1], initial={"n": 0}, name="totals", parallelism=3
)
totals.sink("out", to="file:out")
totals.sink("copy", to="file:copies")
upgrade = Upgrade(rename={"counted": "totals"}, migrate={"totals": lambda count: {"n": count}})
"""
FAILING = APP.replace("    return count", "    import sys; assert 'pyspark' not in sys.modules\n    return count")
RECORDS = 300
DIRECTORY = Path(".procession") / "up"
ARGUMENTS = ("run", "app.py", "--listen", "127.0.0.1:0", "--epoch-records-max", "100")


def lines(number: int, count: int = RECORDS) -> list[str]:
    return [f"input {number} record {record}" for record in range(count)]


def expected(given: list[str]) -> list[str]:
    """Return the output of the sequential reference, for both programs."""
    counts: dict[str, int] = {}
    found = []
    for line in given:
        found.append(f"{line} {counts.get(line[-1], 0)}")
        counts[line[-1]] = counts.get(line[-1], 0) + 1
    return found


def output(place: Path, directory: str, sink: str) -> list[str]:
    return b"".join(committed_output(place / directory, f"up-{sink}-0")).decode().splitlines()


def write(place: Path, name: str, given: list[str]) -> Path:
    (place / name).write_text("".join(f"{line}\n" for line in given))
    return place / name


def source(place: Path, path: Path, *options: str) -> tuple[str | Path, ...]:
    to = str(addresses(place / DIRECTORY / "gateway")["listen"])
    return "source", "file", path, "--to", to, "--dir", DIRECTORY, *options


def until_ready(place: Path, pipeline: Running) -> None:
    wait_for(lambda: "ready: connectors" in pipeline.said, "the start", lambda: pipeline.said)


@pytest.mark.slow  # test_upgrade_crashes upgrades a pipeline under kills in each run
def test_an_upgrade_keeps_states_and_adds_a_sink_while_producers_only_wait(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "new.py").write_text(CHANGED)
    first, second, third = (lines(number) for number in range(3))
    with running(*ARGUMENTS, cwd=tmp_path) as pipeline:
        until_ready(tmp_path, pipeline)
        assert run(*source(tmp_path, write(tmp_path, "0.txt", first)), cwd=tmp_path).returncode == 0
        tried = run("upgrade", "new.py", "--dry-run", cwd=tmp_path)
        assert "stage 'totals': migrated, was 'counted', 2 tasks become 3" in tried.stdout, tried.stderr
        with running(*source(tmp_path, write(tmp_path, "1.txt", second), "--rate", "60"), cwd=tmp_path):
            done = run("upgrade", "new.py", "--keep-input", "--json", cwd=tmp_path)
            assert done.returncode == 0, f"{done.stderr}\n{done.stdout}\n{pipeline.said}"
            assert run(*source(tmp_path, write(tmp_path, "2.txt", third)), cwd=tmp_path).returncode == 0
            wait_for(lambda: len(output(tmp_path, "out", "out")) == 3 * RECORDS, "the output", lambda: pipeline.said)
        result = json.loads(done.stdout)
        assert (result["state"], result["sinks_added"]) == ("done", ["copy"])
        found = output(tmp_path, "out", "out")
        reference = expected([line.rsplit(" ", 1)[0] for line in found])
        assert found == reference
        assert sorted(line.rsplit(" ", 1)[0] for line in found) == sorted(first + second + third)
        copies = output(tmp_path, "copies", "copy")
        assert copies == reference[-len(copies) :]
        assert RECORDS <= len(copies) < 3 * RECORDS
        listed = json.loads(run("savepoint", "list", "--json", cwd=tmp_path).stdout)["savepoints"]
        assert [savepoint["name"] for savepoint in listed] == [result["savepoint"]]
        with ControlClient(tmp_path / DIRECTORY / "gateway", timeout_s=10.0) as client:
            assert client.status()["buffered"] == 0
        assert run("stop", cwd=tmp_path).returncode == 0
    assert run("run", "app.py", "--listen", "127.0.0.1:0", cwd=tmp_path).returncode == 3
    rolled = run("rollback", result["savepoint"], "--json", cwd=tmp_path)
    assert rolled.returncode == 0, rolled.stderr
    assert json.loads(rolled.stdout)["rows_again"] >= len(copies)
    assert output(tmp_path, "out", "out") == reference[: len(reference) - len(copies)]
    assert output(tmp_path, "copies", "copy") == []


@pytest.mark.slow
def test_a_program_that_fails_before_its_first_commit_is_rolled_back(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "new.py").write_text(FAILING)
    given = lines(0, 3 * RECORDS)
    with running(*ARGUMENTS, cwd=tmp_path) as pipeline:
        until_ready(tmp_path, pipeline)
        path = write(tmp_path, "0.txt", given)
        with running(*source(tmp_path, path, "--rate", "20"), cwd=tmp_path):
            wait_for(lambda: bool(output(tmp_path, "out", "out")), "the first output", lambda: pipeline.said)
            done = run("upgrade", "new.py", "--json", cwd=tmp_path)
            assert done.returncode == 1, done.stderr
            assert json.loads(done.stdout)["state"] == "went back"
            wait_for(lambda: len(output(tmp_path, "out", "out")) == len(given), "the output", lambda: pipeline.said)
        assert output(tmp_path, "out", "out") == expected(given)
        assert run("stop", cwd=tmp_path).returncode == 0
