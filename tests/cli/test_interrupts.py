"""Ctrl-C while a command starts ends it soon, without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from procession.exit_status import Status
from procession.gateway.listen_address import ADDRESS_FILE

APP = """
from procession import Pipeline

pipeline = Pipeline("interrupted")
pipeline.source("lines").sink("output", to="file:output")
"""
COMMANDS = {
    "run": ["run", "app.py", "--dir", "p", "--listen", "127.0.0.1:0"],
    "demo": ["demo", "--records", "10"],
    "source": ["source", "file", "input", "--to", "127.0.0.1:1"],
    "sink": ["sink", "file", "output", "--listen", "127.0.0.1:0"],
    "gateway": ["gateway", "--dir", "g", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"],
    "driver": ["driver", "app.py", "--dir", "p", "--sink", "output=127.0.0.1:1"],
    "chaos": ["chaos", "--minutes", "1", "--scenario", "none"],
    "simulate": ["simulate", "--runs", "100000", "--jobs", "2"],
}
PATIENCE_S = 60.0
ENDS_WITHIN_S = 3.0
STOPS_ITSELF = """
import os, signal, sys

def stop(event, arguments):
    if event == "import" and arguments[0] == "numpy.linalg":
        os.kill(os.getpid(), signal.SIGSTOP)

sys.addaudithook(stop)
"""
"""A `sitecustomize` module: the process stops itself when it imports `numpy.linalg`, and waits for SIGCONT."""


def start(directory: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    (directory / "app.py").write_text(APP)
    (directory / "input").write_text("x\n")
    return subprocess.Popen(
        [sys.executable, "-m", "procession", *arguments],
        cwd=directory,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline


def waited_s(pid: int) -> float:
    """Return how long the process was ready to run without a core, in seconds, as the kernel counted it."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def interrupted(process: subprocess.Popen[str]) -> str:
    """Interrupt a process as a terminal does with Ctrl-C, wait for its end, and return its output.

    Fails if the end takes too long. Time in which the process waited for a core does not count.
    """
    began, waited = time.monotonic(), waited_s(process.pid)
    for number in (signal.SIGINT, signal.SIGCONT):
        os.killpg(process.pid, number)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    took_s = time.monotonic() - began - (waited_s(process.pid) - waited)
    process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # a child that is not Java does not end with its parent
    assert took_s < ENDS_WITHIN_S
    return process.communicate()[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_interrupt_during_imports_ends_a_command_without_output(command: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(STOPS_ITSELF)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    process = start(tmp_path, *COMMANDS[command], PYTHONPATH=path)
    stopped = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert stopped is not None
    assert stopped.si_code == os.CLD_STOPPED
    assert interrupted(process) == ""
    assert process.returncode == 130


@pytest.mark.parametrize(("command", "status"), [("demo", Status.UNCLEAN), ("chaos", Status.INTERRUPTED)])
def test_an_interrupt_while_the_parts_start_ends_a_command_with_a_sentence(
    command: str, status: int, tmp_path: Path
) -> None:
    process = start(tmp_path, *COMMANDS[command], TMPDIR=str(tmp_path))
    assert process.stdout is not None
    assert any(line.startswith("starting ") for line in process.stdout)
    # No limit here: the time that the parts take to end depends on the machine.
    os.killpg(process.pid, signal.SIGINT)
    output = process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode == status, output
    assert "stopped" in output
    for word in ("Traceback", "error:", "verdict", "nothing to compare"):
        assert word not in output


def test_a_driver_that_waits_for_spark_ends_at_once(tmp_path: Path) -> None:
    """Before Spark has started the driver has no work to finish."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\n[ "$1" = -version ] && exec "$REAL_JAVA" -version\ntouch "$ASKED"\nexec sleep 600\n')
    java.chmod(0o755)
    real = subprocess.run(["sh", "-c", "command -v java"], capture_output=True, text=True, check=True).stdout.strip()
    gateway = start(tmp_path, "gateway", "--dir", "p/gateway", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0")
    until((tmp_path / "p" / "gateway" / ADDRESS_FILE).exists)
    request = tmp_path / "asked"
    path = f"{java.parent}{os.pathsep}{os.environ['PATH']}"
    driver = start(
        tmp_path, *COMMANDS["driver"], JAVA_HOME=str(java.parents[1]), REAL_JAVA=real, ASKED=str(request), PATH=path
    )
    until(request.exists)
    output = interrupted(driver)
    assert "Traceback" not in output
    assert driver.returncode == 0
    interrupted(gateway)
