"""Spark's process as a user sees it: a JVM that hangs, a cluster that is missing, files left on the disk; and a mistake
that makes every record a dead letter."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from procession.address import Address, listening_socket
from procession.exit_status import Status
from procession.spark.jvm_launch import JAVA_OPTIONS, archive_options, spark_home
from procession.supervisor import cleanup
from procession.verify.sink_outputs import committed_output
from tests.walk.cluster import jvms, wait_for
from tests.walk.commands import error_line, run, running

APP = """
import time
from pathlib import Path
from procession import Pipeline

def held(payload):
    (Path(__file__).parent / "started").touch()
    while (Path(__file__).parent / "wait").exists():
        time.sleep(0.01)
    return payload

pipeline = Pipeline("hang")
pipeline.source("lines").map(held).sink("output", to="file:output")
"""
LINES = [f"{number}" for number in range(50)]
ARGUMENTS = ("run", "app.py", "--input", "input.txt", "--listen", "127.0.0.1:0")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "input.txt").write_text("".join(f"{line}\n" for line in LINES))
    return tmp_path


def output(place: Path, instance: str) -> list[str]:
    return b"".join(committed_output(place / "output", instance)).decode().splitlines()


def test_a_jvm_that_hangs_is_killed_and_replaced_and_nothing_of_spark_is_left(place: Path) -> None:
    (place / "wait").touch()
    with running(*ARGUMENTS, "--jvm-timeout-s", "5", cwd=place) as command:
        wait_for(lambda: "ready: connectors" in command.said, "the pipeline", lambda: command.said)
        driver = json.loads((place / ".procession" / "hang" / "driver.json").read_text())["pid"]
        (jvm,) = jvms(driver)
        os.kill(jvm, signal.SIGSTOP)
        (place / "wait").unlink()
        assert command.wait() == Status.DONE, command.said
        assert "driver ended with status 1; restarting it" in command.said
    log = (place / ".procession" / "hang" / "logs" / "driver.log").read_text()
    assert "Spark's JVM did not answer for 5 s and was killed" in log
    assert output(place, "hang-output-0") == LINES
    assert list((place / ".procession" / "hang" / "scratch").iterdir()) == []


@pytest.mark.slow
def test_the_process_that_plans_epochs_is_killed_and_the_driver_starts_again_with_one_sentence(place: Path) -> None:
    (place / "wait").touch()
    with running(*ARGUMENTS, "--epoch-records-max", "10", cwd=place) as command:
        wait_for(lambda: "ready: connectors" in command.said, "the pipeline", lambda: command.said)
        driver = json.loads((place / ".procession" / "hang" / "driver.json").read_text())["pid"]
        (jvm,) = jvms(driver)
        wait_for((place / "started").exists, "a task", lambda: command.said)
        for planner in planners(jvm):
            os.kill(planner, signal.SIGKILL)
        (place / "wait").unlink()
        assert command.wait() == Status.DONE, command.said
        assert "driver ended with status" in command.said
    log = (place / ".procession" / "hang" / "logs" / "driver.log").read_text()
    assert "The Python process in which Spark plans epochs has ended." in log
    assert "Traceback" not in log
    assert output(place, "hang-output-0") == LINES


def planners(jvm: int) -> list[int]:
    """Return the processes of the JVM that plan epochs."""
    children = [entry.pid for entry in cleanup.processes() if entry.parent == jvm]
    found = [pid for pid in children if b"source_runner" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert found
    return found


def silent_java(place: Path) -> str:
    """Create a Java home whose JVM prints its version, but otherwise only records its start and hangs."""
    java = place / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    real = shutil.which("java")
    java.write_text(f'#!/bin/sh\n[ "$1" = -version ] && exec {real} "$@"\ntouch {place}/jvm\nexec sleep 600\n')
    java.chmod(0o755)
    (java.parents[1] / "release").write_text('JAVA_VERSION="17.0.9"\n')
    return str(java.parents[1])


@pytest.mark.slow
def test_a_jvm_that_hangs_while_it_starts_is_killed_and_replaced(place: Path) -> None:
    java = Path(silent_java(place)) / "bin" / "java"
    script = java.read_text()
    real = shutil.which("java")
    # The first one stops; those after it work.
    java.write_text(script.replace("touch", f'[ -e {place}/jvm ] && exec {real} "$@"\ntouch'))
    done = run(*ARGUMENTS, "--jvm-timeout-s", "10", cwd=place, JAVA_HOME=str(java.parents[1]))
    assert done.returncode == Status.DONE, done.stderr
    assert "driver ended with status 1; restarting it" in done.stderr
    log = (place / ".procession" / "hang" / "logs" / "driver.log").read_text()
    assert "error: Spark's JVM did not answer for 10 s and was killed" in log
    # PySpark's own processes may report a broken pipe when the driver that worked stops.
    assert "Traceback" not in log.partition("ready")[0]
    assert output(place, "hang-output-0") == LINES


@pytest.mark.slow
def test_the_logs_of_executors_of_a_local_cluster_are_removed(place: Path) -> None:
    done = run(*ARGUMENTS, "--master", "local-cluster[1,2,1024]", cwd=place)
    assert done.returncode == Status.DONE, done.stderr
    assert list((place / ".procession" / "hang" / "scratch").iterdir()) == []
    assert not (place / ".procession" / "hang" / "executors").exists()


def test_a_port_in_use_is_reported_before_a_jvm_is_started(place: Path) -> None:
    home = silent_java(place)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("run", "app.py", "--input", "input.txt", "--listen", listen, cwd=place, JAVA_HOME=home)
    assert done.returncode == Status.ACT
    assert error_line(done.stderr).endswith("is in use.")
    assert not (place / "jvm").exists()


def test_an_unreachable_master_is_reported_without_waiting_for_a_jvm(place: Path) -> None:
    home = silent_java(place)
    with running(*ARGUMENTS, "--master", "spark://127.0.0.1:9", cwd=place, JAVA_HOME=home) as command:
        word = "master spark://127.0.0.1:9 cannot be reached: Connection refused"
        wait_for(lambda: word in command.said, "the sentence", lambda: command.said)
        command.process.send_signal(signal.SIGTERM)
        command.wait()


def test_a_master_that_does_not_answer_is_reported_without_waiting_for_a_jvm(place: Path) -> None:
    home = silent_java(place)
    with closing(socket.create_server(("127.0.0.1", 0))) as mute:
        master = f"spark://127.0.0.1:{mute.getsockname()[1]}"
        with running(*ARGUMENTS, "--master", master, cwd=place, JAVA_HOME=home) as command:
            wait_for(lambda: f"{master} has not answered yet" in command.said, "it", lambda: command.said)
            assert "cannot be reached" not in command.said
            command.process.send_signal(signal.SIGTERM)
            command.wait()


def test_a_cluster_that_spark_does_not_start_is_one_sentence_and_not_tried_again(place: Path) -> None:
    done = run(*ARGUMENTS, "--master", "local-cluster[1,1,512]", cwd=place)
    assert done.returncode == Status.ACT, done.stderr
    assert "does not start with the master local-cluster[1,1,512]: Asked to launch cluster with" in error_line(
        done.stderr
    )
    assert "restarting it" not in done.stderr


def test_an_invalid_master_is_reported_before_anything_is_started(place: Path) -> None:
    for arguments in (("run", "app.py"), ("driver", "app.py", "--dir", "p")):
        done = run(*arguments, "--master", "spark:/here", cwd=place)
        assert done.returncode == Status.USAGE, done.stderr
        assert error_line(done.stderr) == "'spark:/here' is not a valid address of a Spark master."
    assert not (place / ".procession").exists()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A standalone master without a worker."""
    with closing(listening_socket(Address("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    home = spark_home()
    java_options = " ".join((*JAVA_OPTIONS, *archive_options()))  # it starts in half the time
    arguments = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
    log = tmp_path / "master.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [home / "bin" / "spark-class", "org.apache.spark.deploy.master.Master", *arguments],
            env={**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_JAVA_OPTS": java_options},
            stdout=output,
            stderr=output,
        )
    try:
        wait_for(lambda: "New state: ALIVE" in log.read_text(), "the master", log.read_text)
        yield f"spark://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def test_a_master_that_gives_no_executor_is_reported_and_waited_for(place: Path, master: str) -> None:
    with running(*ARGUMENTS, "--master", master, cwd=place) as command:
        wait_for(lambda: f"master {master} has assigned no executor yet" in command.said, "it", lambda: command.said)
        command.process.send_signal(signal.SIGTERM)
        assert command.wait() == Status.UNCLEAN, command.said
    assert "0 of " in command.said
    assert "stopped before the whole input" in command.said


MISTAKE = """
from procession import Pipeline

pipeline = Pipeline("mistake", dead_letter="file:output")
pipeline.source("lines").map(lambda line: str(int(line{what}))).sink("output", to="file:output")
"""


def test_a_mistake_that_sets_every_record_aside_stops_the_pipeline_and_loses_none(place: Path) -> None:
    (place / "app.py").write_text(MISTAKE.replace("{what}", " + b'x'"))
    limit = ("--dead-letter-records-min", str(len(LINES)))
    done = run(*ARGUMENTS, *limit, cwd=place)
    assert done.returncode == Status.ACT, done.stderr
    assert error_line(done.stderr).startswith("50 of 50 records were set aside as dead letters"), done.stderr
    assert "ValueError" in done.stderr
    (place / "app.py").write_text(MISTAKE.replace("{what}", ""))
    done = run(*ARGUMENTS, *limit, cwd=place)
    assert done.returncode == Status.DONE, done.stderr
    assert "50 of 50 records committed" in done.stdout
    assert output(place, "mistake-output-0") == LINES
    assert output(place, "mistake-dead-letter-0") == []


@pytest.mark.slow  # tests/jobs/test_run_app.py has the sentence and the status
def test_fewer_records_that_are_all_set_aside_are_counted_and_end_with_a_status_that_is_not_0(place: Path) -> None:
    (place / "app.py").write_text(MISTAKE.replace("{what}", " + b'x'"))
    done = run(*ARGUMENTS, cwd=place)
    assert done.returncode == Status.UNCLEAN, done.stderr
    assert "50 set aside as dead letters, more than dead_letter_share_max (0.5) allows" in done.stdout
    assert len(output(place, "mistake-dead-letter-0")) == 50
