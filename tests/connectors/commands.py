"""Runs `procession source …` as a process, with its arguments, output and exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

PATIENCE_S = 60.0


class Command:
    """A running command. Its standard error is collected as it arrives."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "procession", "source", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"COLUMNS": "200"},
        )
        self.said = ""
        self._news = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            with self._news:
                self.said += line.decode()
                self._news.notify_all()

    def wait_for(self, text: str) -> str:
        """Wait for a line with this text, and return it."""
        with self._news:
            assert self._news.wait_for(lambda: text in self.said, PATIENCE_S), self.said
        return next(line for line in self.said.splitlines() if text in line)

    @property
    def stdin(self) -> IO[bytes]:
        assert self.process.stdin
        return self.process.stdin

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def status(self) -> int:
        """Wait for the end, and return the exit status."""
        status = self.process.wait(PATIENCE_S)
        self._listener.join(PATIENCE_S)
        return status

    def printed(self) -> str:
        assert self.process.stdout
        return self.process.stdout.read().decode()


@contextmanager
def command(*arguments: str) -> Iterator[Command]:
    started = Command(*arguments)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        started.status()
        for pipe in (started.process.stdin, started.process.stdout, started.process.stderr):
            if pipe:
                pipe.close()


def until(is_so: object, patience_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds that another process brings about."""
    deadline = time.monotonic() + patience_s
    assert callable(is_so)
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)
