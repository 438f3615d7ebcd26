"""A process that has imported the command line and forks for each command, so that a command starts in milliseconds.

A command has its own process, environment, directory and output, as if it were typed. Its imports are those of the
server, so a test of the start of a command must not use it.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from procession.__main__ import main
from tests.walk.commands import MARK, TIMEOUT_S, living

ROOT = Path(__file__).resolve().parents[2]
IMPORTED = (
    "procession.cli.main",
    "procession.cli.run_commands",
    "procession.cli.gateway_command",
    "procession.cli.driver_command",
    "procession.cli.sink_commands",
    "procession.cli.source_commands",
    "procession.cli.verify_command",
    "procession.connectors.file_sink",
    "procession.driver.app_file",
    "procession.gateway.server",
    "procession.sdk.connector_program",
    "procession.sdk.event_time_field",
    "procession.jobs.demo",
    "procession.jobs.run_app",
    "procession.verify.live_check",
)


class CommandServer:
    """Runs commands to their end. Create it with `command_server`."""

    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        self._process = process
        self._directory = directory

    def run(self, *arguments: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command as `commands.run` does."""
        mark = uuid.uuid4().hex
        files = [self._directory / f"{mark}-{name}" for name in ("out", "err")]
        order = {
            "argv": ["procession", *map(str, arguments)],
            "cwd": str(cwd),
            "env": {**os.environ, **env, MARK: mark},
            "files": list(map(str, files)),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        status = json.loads(self._process.stdout.readline())
        assert living(mark) == [], "processes were left behind"
        return subprocess.CompletedProcess(order["argv"], status, *(path.read_text() for path in files))


@contextmanager
def command_server() -> Iterator[CommandServer]:
    argv = [sys.executable, "-m", "tests.walk.command_server"]
    with (
        tempfile.TemporaryDirectory() as directory,
        subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        yield CommandServer(process, Path(directory))
        assert process.stdin is not None
        process.stdin.close()


def serve() -> None:
    """Fork for each request on standard input, and answer with the command's exit status."""
    for name in IMPORTED:
        import_module(name)
    gc.freeze()  # so that a garbage collection in a child copies no pages
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            answers.close()
            os._exit(_status_of(order))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)


def _status_of(order: dict[str, object]) -> int:
    """Run the command and its exit handlers.

    The interpreter is not finalized, because that would copy every page of the server.
    """
    signal.alarm(int(TIMEOUT_S))
    os.environ.clear()
    os.environ.update(order["env"])  # type: ignore[call-overload]
    os.chdir(str(order["cwd"]))
    for number, path in enumerate(order["files"], 1):  # type: ignore[arg-type, var-annotated]
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    sys.argv = order["argv"]  # type: ignore[assignment]
    sys.path[0] = str(order["cwd"])
    try:
        main()
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    serve()
