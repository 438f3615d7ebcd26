"""A rollback after committed epochs, with Spark: it is killed at every step, and nothing is lost or duplicated."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from procession import faults
from tests.walk.cluster import wait_for
from tests.walk.commands import Running, run, running
from tests.walk.test_upgrades import (
    APP,
    ARGUMENTS,
    DIRECTORY,
    RECORDS,
    expected,
    lines,
    output,
    source,
    until_ready,
    write,
)

WRONG = APP.replace("count + 1, f", "count + 7, f")
STEPS = (
    "rollback:begun",
    "rollback:after-checkpoint",
    "rollback:before-snapshot",
    "rollback:after-gateway",
    "rollback:after-sink",
    "rollback:before-end",
)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_rollback_behind_a_commit_is_killed_at_every_step_and_takes_the_wrong_output_back(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "new.py").write_text(WRONG)
    given = [lines(number) for number in range(3)]
    with running(*ARGUMENTS, cwd=tmp_path) as pipeline:
        until_ready(tmp_path, pipeline)
        assert run(*source(tmp_path, write(tmp_path, "0.txt", given[0])), cwd=tmp_path).returncode == 0
        done = run("upgrade", "new.py", "--savepoint", "good", "--keep-input", "--json", cwd=tmp_path)
        assert done.returncode == 0, f"{done.stdout}\n{pipeline.said}"
        made = run("savepoint", "describe", "good", "--json", cwd=tmp_path)
        assert json.loads(made.stdout)["kept_input"]["state"] == "kept", made.stderr
        assert run(*source(tmp_path, write(tmp_path, "1.txt", given[1])), cwd=tmp_path).returncode == 0
        assert run("stop", cwd=tmp_path).returncode == 0
    assert output(tmp_path, "out", "out") != expected(given[0] + given[1])
    fence = int((tmp_path / DIRECTORY / "checkpoint" / "CURRENT").read_text())
    for step in STEPS:
        assert run("rollback", "good", cwd=tmp_path, **{faults.VARIABLE: step}).returncode == -signal.SIGKILL, step
        refused = run(*ARGUMENTS, cwd=tmp_path)
        assert "Finish it: procession rollback good" in refused.stderr, step
    result = json.loads(run("rollback", "good", "--json", cwd=tmp_path).stdout)
    assert result["epochs_taken_back"] > 0
    assert int((tmp_path / DIRECTORY / "checkpoint" / "CURRENT").read_text()) > fence
    assert output(tmp_path, "out", "out") == expected(given[0])
    with running(*ARGUMENTS, cwd=tmp_path) as pipeline:
        until_ready(tmp_path, pipeline)
        wait_for(lambda: len(output(tmp_path, "out", "out")) == 2 * RECORDS, "the output", lambda: pipeline.said)
        assert run(*source(tmp_path, write(tmp_path, "2.txt", given[2])), cwd=tmp_path).returncode == 0
        found = json.loads(run("status", "--json", cwd=tmp_path).stdout)
        assert found["verdict"]["outcome"] == "clean", found["verdict"]
        assert run("stop", cwd=tmp_path).returncode == 0
    assert output(tmp_path, "out", "out") == expected([line for some in given for line in some])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_after_a_rollback_sources_send_the_records_again_that_the_log_no_longer_has(tmp_path: Path) -> None:
    followed = APP.replace('codec="text"', 'codec="text", from_="file:feed.txt", ends=False')
    (tmp_path / "app.py").write_text(followed)
    (tmp_path / "wrong.py").write_text(followed.replace("count + 1, f", "count + 7, f"))
    given = [lines(number) for number in range(3)]

    def feed(number: int) -> None:
        with (tmp_path / "feed.txt").open("a") as file:
            file.writelines(f"{line}\n" for line in given[number])

    def until_written(pipeline: Running, inputs: int) -> None:
        until_ready(tmp_path, pipeline)
        wait_for(lambda: len(output(tmp_path, "out", "out")) == inputs * RECORDS, "it", lambda: pipeline.said)

    feed(0)
    with running(*ARGUMENTS, cwd=tmp_path) as pipeline:
        until_written(pipeline, 1)
        assert run("savepoint", "create", "good", cwd=tmp_path).returncode == 0
        assert run("stop", cwd=tmp_path).returncode == 0
    feed(1)
    with running("run", "wrong.py", *ARGUMENTS[2:], cwd=tmp_path) as pipeline:
        until_written(pipeline, 2)
        assert run("stop", cwd=tmp_path).returncode == 0
    assert output(tmp_path, "out", "out") != expected(given[0] + given[1])
    for path in (tmp_path / DIRECTORY / "gateway" / "log").glob("*.segment"):
        path.unlink()  # as the gateway does when there is more
    (tmp_path / "feed.txt").rename(tmp_path / "away.txt")
    refused = run("rollback", "good", cwd=tmp_path)
    assert "feed.txt" in refused.stderr, refused.stderr
    (tmp_path / "away.txt").rename(tmp_path / "feed.txt")
    for step in STEPS:
        assert run("rollback", "good", cwd=tmp_path, **{faults.VARIABLE: step}).returncode == -signal.SIGKILL, step
    result = json.loads(run("rollback", "good", "--json", cwd=tmp_path).stdout)
    assert (result["rows_again"], result["epochs_taken_back"] > 0) == (0, True)
    with running(*ARGUMENTS, cwd=tmp_path) as pipeline:
        until_written(pipeline, 2)
        feed(2)
        until_written(pipeline, 3)
        found = json.loads(run("status", "--json", cwd=tmp_path).stdout)
        assert found["verdict"]["outcome"] == "clean", found["verdict"]
        assert run("stop", cwd=tmp_path).returncode == 0
    assert output(tmp_path, "out", "out") == expected([line for some in given for line in some])
