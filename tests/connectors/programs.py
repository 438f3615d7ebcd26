"""Runs connectors as separate programs that tests start, kill and wait for."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from procession import faults
from procession.address import parse_address
from procession.sdk.doubles import Worker
from procession.storage.secret import Secret, find_secret

SINK = """
import sys
from pathlib import Path
from procession.connectors.file_sink import run_file_sink
from procession.errors import ProcessionError
try:
    run_file_sink(Path(sys.argv[1]), "127.0.0.1:0")
except ProcessionError as error:
    sys.exit(error.explain())
"""

SOURCE = """
import sys
from procession.connectors.file_source import FileSource
from procession.sdk.source_options import SourceOptions
from procession.sdk.connector_program import run_source
sys.exit(0 if run_source(FileSource(sys.argv[2:]), sys.argv[1], SourceOptions("test", "test")) else 3)
"""


@asynccontextmanager
async def program(code: str, *arguments: str, fault: str = "") -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, *arguments),
        env=os.environ | {faults.VARIABLE: fault},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class SinkProgram:
    """A file sink in a process, over several runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @asynccontextmanager
    async def running(self, fault: str = "") -> AsyncIterator[Process]:
        async with program(SINK, str(self.directory), fault=fault) as process:
            await self._announced(process)
            yield process

    async def _announced(self, process: Process) -> None:
        while process.returncode is None:
            try:
                if json.loads((self.directory / "sink.json").read_bytes())["pid"] == process.pid:
                    return
            except FileNotFoundError:
                pass
            await asyncio.sleep(0.01)  # a file's appearance is all that there is to see
        raise AssertionError("the sink died before it listened")

    @property
    def port(self) -> int:
        return parse_address(json.loads((self.directory / "sink.json").read_bytes())["listen"]).port

    async def worker(self) -> Worker:
        worker = await Worker.connect(parse_address(f"127.0.0.1:{self.port}"))
        worker.cookie = find_secret(self.directory, Secret.SINKS)
        return worker

    def data(self, instance: str = "out") -> bytes:
        return (self.directory / f"{instance}.data").read_bytes()
