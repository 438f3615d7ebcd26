"""Manages the claim of a `procession run` on its pipeline's directory, and reads it for other commands.

Invariant: one `run` at a time uses a directory. The claim is the lock on `run.lock` (`storage/process_lock`), so it is
never stale. `run.json` describes the holder. Used by `jobs/run_app` and by `procession jobs`, `status` and `stop`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from procession.errors import ConfigError
from procession.storage.process_lock import lock_holder, locked
from procession.storage.secret import make_pipeline_private

LOCK, DESCRIPTION = "run.lock", "run.json"
DRAINED = "drained.json"
"""File with the epoch at which the pipeline was drained. The next `run` removes the file."""

UPGRADE_REQUEST = "upgrade-request.json"
"""File that asks the running pipeline to switch to a new program. The next `run` removes the file."""


@dataclass(frozen=True)
class RunDescription:
    """The description of a running pipeline in `run.json`."""

    pipeline: str
    app: str
    pid: int
    started_s: float
    """Start time, in seconds since 1970."""


@contextmanager
def claimed(directory: Path, pipeline: str, app: Path) -> Iterator[None]:
    """Hold the claim on a pipeline's directory. Raises ConfigError if another `run` holds it."""
    make_pipeline_private(directory)

    def refusal() -> ConfigError:
        return ConfigError(
            f"Pipeline {pipeline!r} in {directory} runs already, in process {holder(directory)}.",
            next_step=f"Stop it with `procession stop --dir {directory}`, or give this one another --dir.",
        )

    with locked(directory / LOCK, refusal):
        describe(directory, pipeline, app)
        for left in (DRAINED, UPGRADE_REQUEST):
            (directory / left).unlink(missing_ok=True)
        try:
            yield
        finally:
            (directory / DESCRIPTION).unlink(missing_ok=True)


def describe(directory: Path, pipeline: str, app: Path) -> None:
    """Describe in `run.json` what this process runs. Only the process with the claim may call this."""
    described = RunDescription(pipeline, str(app.resolve()), os.getpid(), time.time())
    draft = directory / f"{DESCRIPTION}.draft"
    draft.write_text(json.dumps(asdict(described)))
    draft.replace(directory / DESCRIPTION)


def holder(directory: Path) -> int | None:
    """Return the process that holds the claim on this directory, or None."""
    return lock_holder(directory / LOCK)


def running(directory: Path) -> RunDescription | None:
    """Return the pipeline that runs in this directory, or None."""
    pid = holder(directory)
    if pid is None:
        return None
    try:
        found = RunDescription(**json.loads((directory / DESCRIPTION).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None  # it is starting or ending
    return found if found.pid == pid else None


def stop(directory: Path, timeout_s: float) -> int | None:
    """Ask the pipeline in this directory to stop, as Ctrl-C does, and wait until it has stopped. Return its process,
    or None if no pipeline runs. Raises ConfigError if it still runs after `timeout_s`."""
    pid = holder(directory)
    if pid is None:
        return None
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return pid
    try:
        if holder(directory) != pid:  # it has ended, and another process may now have its id
            return pid
        signal.pidfd_send_signal(process, signal.SIGTERM)
        ended = select.poll()
        ended.register(process, select.POLLIN)
        if not ended.poll(timeout_s * 1000):
            raise ConfigError(
                f"The pipeline in {directory} (process {pid}) still runs after {timeout_s:g} seconds.",
                next_step=f"Read {directory / 'logs'}, or wait longer with --timeout-s.",
            )
    except PermissionError as error:
        raise ConfigError(
            f"This user may not stop process {pid}.", next_step="Stop it as the user that started it."
        ) from error
    finally:
        os.close(process)
    return pid
