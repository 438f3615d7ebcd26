"""Runs the command line as a user does, to its end or in the background, and checks the form of errors."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from procession.supervisor import cleanup

TIMEOUT_S = 240.0
"""The longest wait, below the limit of pytest. Long, because Spark starts twice if a test kills a driver."""
MARK = "PROCESSION_TEST_MARK"


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "procession", *map(str, arguments)]


def run(*arguments: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and check that it leaves no process."""
    mark = uuid.uuid4().hex
    done = subprocess.run(
        command(*arguments),
        cwd=cwd,
        env={**os.environ, **env, MARK: mark},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert living(mark) == [], "processes were left behind"
    return done


class Running:
    """A command that keeps running. Its output is stored in a file."""

    def __init__(self, process: subprocess.Popen[bytes], output_path: Path, mark: str) -> None:
        self.process = process
        self.mark = mark
        self._output_path = output_path

    @property
    def said(self) -> str:
        return self._output_path.read_text(errors="replace")

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        return self.process.wait(timeout_s)


@contextmanager
def running(*arguments: str | Path, cwd: Path, **env: str) -> Iterator[Running]:
    mark = uuid.uuid4().hex
    path = cwd / f"output-{mark}.txt"
    with path.open("wb") as output:
        process = subprocess.Popen(
            command(*arguments), cwd=cwd, env={**os.environ, **env, MARK: mark}, stdout=output, stderr=output
        )
    try:
        yield Running(process, path, mark)
    finally:
        process.kill()
        process.wait()


def living(mark: str) -> list[str]:
    """Return the commands of all processes that descend from the one with this mark, even if their parents are dead."""
    return list(_living(mark).values())


def all_pids(mark: str) -> list[int]:
    return list(_living(mark))


def pids(mark: str, part: str) -> list[int]:
    """Return those processes that run this command of ours."""
    return [pid for pid, cmdline in _living(mark).items() if f" -m procession {part} " in cmdline]


def _living(mark: str) -> dict[int, str]:
    found = {}
    for process in cleanup.processes():
        try:
            environment = Path(f"/proc/{process.pid}/environ").read_bytes()
            cmdline = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in environment.split(b"\0"):
            found[process.pid] = cmdline.replace(b"\0", b" ").decode(errors="replace")
    return found


def error_line(stderr: str, *, is_users_code: bool = False) -> str:
    """Return the sentence of the only error in `stderr`, and check that a next step follows.

    A trace belongs to errors of the user's own code."""
    lines = stderr.splitlines()
    errors = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    assert len(errors) == 1, stderr
    assert lines[errors[0] + 1].startswith("  Next: "), stderr
    assert len(lines[errors[0] + 1]) > len("  Next: "), stderr
    assert stderr.count("Traceback") <= is_users_code, stderr
    return lines[errors[0]].removeprefix("error: ")
