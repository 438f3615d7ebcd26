"""A sink as a separate process, over several lives, driven by a scripted worker.

Invariant: only the program's command is known. The program is killed at a named point, or from outside, and started
again in the same directory. `sdk/conformance` says what must hold.
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
from procession.address import Address, address_of, kept, listening_socket
from procession.errors import ConfigError
from procession.sdk.testing import Worker
from procession.storage.secret import Secret, find_secret

START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.02
LAST_LINES_BYTES = 2000

ERROR = "error: "
"""How our programs begin the sentence that they end with."""

Visible = Callable[[Path, str], bytes]
"""What a reader of the output sees: of the sink's directory, and an instance."""


class SinkProcess:
    """`command` has `{dir}` where the sink's directory belongs, and `{listen}` for the address it is to listen at.

    The program's standard output and error are kept in files beside its directory.

    Args:
        command: The program and its arguments.
        directory: Where its directory is made.
        visible: Reads the output.
        has_faults: Whether the program looks for faults that `arm` names. That costs time, so benchmarks go without.
    """

    def __init__(
        self, command: Sequence[str], directory: Path, visible: Visible | None = None, *, has_faults: bool = True
    ) -> None:
        self.directory = directory / "sink"
        self._visible = visible
        with listening_socket(Address("127.0.0.1", 0)) as listener:
            self.address = address_of(listener)
        self._kept = kept(self.address)
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
        """A connection, before HELLO. The program is started if it does not run."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        return await self._connected()

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def arm(self, point: str) -> None:
        """The program is to die when it comes to this fault point."""
        self._fault.write_text(point)

    @property
    def is_armed(self) -> bool:
        return self._fault.exists()

    def disarm(self) -> None:
        self._fault.unlink(missing_ok=True)

    async def died(self) -> None:
        """Wait for the end of the program."""
        assert self._process
        try:
            await asyncio.to_thread(self._process.wait, END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None

    def said_bytes(self) -> int:
        """How much the program has written to its standard error so far, over all of its lives."""
        return self.stderr.stat().st_size if self.stderr.exists() else 0

    async def last_lines(self, after: int, timeout_s: float) -> str:
        """What the program says of its end, if it ends in this time: the last of what it wrote behind this many
        bytes."""
        if self._process is None:
            return ""
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, timeout_s)
            with self.stderr.open("rb") as file:
                file.seek(max(after, self.said_bytes() - LAST_LINES_BYTES))
                lines = file.read().decode(errors="replace").strip().splitlines()
            first = max((row for row, line in enumerate(lines) if line.startswith(ERROR)), default=len(lines) - 1)
            return " ".join(line.strip() for line in lines[first:]).removeprefix(ERROR)
        return ""

    def visible(self, instance: str) -> bytes | None:
        """The output as a reader sees it; None without a command that reads it."""
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
        """That it accepts connections is all that there is to see of a program that is getting ready."""
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
