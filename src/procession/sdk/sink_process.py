"""A sink as a separate process, killed and started again, driven by a scripted worker.

Invariant: only the program's command is known. The program is killed at a named point or from outside, and started
again in the same directory. `sdk/conformance` defines the expected behaviour.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from procession import faults
from procession.address import Address, address_of, listening_socket, reserved_socket
from procession.errors import ConfigError
from procession.sdk.doubles import Worker
from procession.storage.secret import Secret, find_secret

START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.02
LAST_LINES_BYTES = 2000

ERROR = "error: "
"""The prefix of the last sentence that a program of this project prints when it fails."""

Visible = Callable[[Path, str], bytes]
"""Reads the output that a reader sees. The arguments are the sink's directory and an instance."""


class SinkProcess:
    """Runs a sink's program. `{dir}` in `command` stands for the sink's directory, `{listen}` for the address to listen
    at.

    The program's standard output and error are kept in files next to its directory.

    Args:
        command: The program and its arguments.
        directory: The sink's directory is created in this directory.
        visible: Reads the output.
        has_faults: Whether the program checks for the fault points of `arm`. The checks take time, so benchmarks
            disable them.
    """

    def __init__(
        self, command: Sequence[str], directory: Path, visible: Visible | None = None, *, has_faults: bool = True
    ) -> None:
        self.directory = directory / "sink"
        self._visible = visible
        with listening_socket(Address("127.0.0.1", 0)) as listener:
            self.address = address_of(listener)
        self._kept = reserved_socket(self.address)
        self._command = [
            word.replace("{dir}", str(self.directory)).replace("{listen}", str(self.address)) for word in command
        ]
        self._fault = directory / "fault"
        self._environment = {faults.FILE_VARIABLE: str(self._fault)} if has_faults else {}
        self.stdout = directory / "stdout"
        self.stderr = directory / "stderr"
        self._process: subprocess.Popen[bytes] | None = None
        self.lives = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._kept.close()

    async def worker(self) -> Worker:
        """Connect to the program, without a HELLO. Starts the program if it does not run."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        return await self._connected()

    def kill(self) -> None:
        """Kill the program with SIGKILL, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def arm(self, point: str) -> None:
        """Make the program die at this fault point."""
        self._fault.write_text(point)

    @property
    def is_armed(self) -> bool:
        return self._fault.exists()

    def disarm(self) -> None:
        self._fault.unlink(missing_ok=True)

    async def died(self) -> None:
        """Wait until the program ends."""
        assert self._process
        try:
            await asyncio.to_thread(self._process.wait, END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None

    def logged_bytes(self) -> int:
        """Return the number of bytes that the program has written to its standard error, over all starts."""
        return self.stderr.stat().st_size if self.stderr.exists() else 0

    async def last_lines(self, after: int, timeout_s: float) -> str:
        """Return the reason for the program's end, from its standard error after this many bytes. Empty if the program
        does not end in time."""
        if self._process is None:
            return ""
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, timeout_s)
            with self.stderr.open("rb") as file:
                file.seek(max(after, self.logged_bytes() - LAST_LINES_BYTES))
                lines = file.read().decode(errors="replace").strip().splitlines()
            first = max((row for row, line in enumerate(lines) if line.startswith(ERROR)), default=len(lines) - 1)
            return " ".join(line.strip() for line in lines[first:]).removeprefix(ERROR)
        return ""

    def visible(self, instance: str) -> bytes | None:
        """Return the output as a reader sees it. None: there is no command that reads it."""
        return None if self._visible is None else self._visible(self.directory, instance)

    def _start(self) -> None:
        self.lives += 1
        with self.stdout.open("ab") as stdout, self.stderr.open("ab") as stderr:
            try:
                self._process = subprocess.Popen(
                    self._command,
                    env=os.environ | self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                )
            except OSError as error:
                raise ConfigError(
                    f"Cannot start {self._command[0]}: {error.strerror}.",
                    next_step="Give the sink's command after --, with {dir} and {listen} in it.",
                ) from error

    async def _connected(self) -> Worker:
        """Connect to the program. Retries until it listens, because no other sign shows that it is ready."""
        assert self._process
        async with asyncio.timeout(START_TIMEOUT_S):
            while self._process.poll() is None:
                try:
                    worker = await Worker.connect(self.address)
                    worker.cookie = find_secret(self.directory, Secret.SINKS)
                    return worker
                except ConnectionError:
                    await asyncio.sleep(POLL_INTERVAL_S)
        output = self.stderr.read_bytes()[-LAST_LINES_BYTES:].decode(errors="replace").strip()
        raise ConfigError(
            f"The sink ended with status {self._process.returncode} before it listened at {self.address}: {output}",
            next_step="Start it by hand with the same arguments; --listen must be {listen}, its directory {dir}.",
        )
