"""The claim of a `procession run` on its pipeline's directory, and what others can learn from it.

Invariant: one `run` at a time uses a directory. The kernel holds the claim as a lock on `run.lock` and drops it when
the process ends, however it ends, so a claim is never stale. `run.json` says who holds it. Others ask the kernel who
holds the lock; they never take it. Used by `supervisor/run_app` and by `procession jobs`, `status` and `stop`.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from procession.errors import ConfigError
from procession.storage.durable import storage_error
from procession.storage.secret import make_pipeline_private

LOCK, DESCRIPTION = "run.lock", "run.json"
DRAINED = "drained.json"
"""The epoch at which the pipeline was drained. The next `run` removes it."""

UPGRADE_REQUEST = "upgrade-request.json"
"""Asks the pipeline that runs to switch to a new program. The next `run` removes it."""

_HELD: set[Path] = set()
"""The locks of this process. The kernel refuses a lock only to other processes, and drops it when any descriptor of the
file is closed, so in this process nobody may open the file a second time."""

_FLOCK = "hhqqi"
"""The kernel's `struct flock`: type, whence, start, length, process."""


@dataclass(frozen=True)
class RunDescription:
    """What `run.json` says about a running pipeline."""

    pipeline: str
    app: str
    pid: int
    started_s: float
    """Start time, in seconds since 1970."""


@contextmanager
def locked(path: Path, refusal: Callable[[], ConfigError]) -> Iterator[None]:
    """Hold the lock of a file, which is made if there is none. Raises `refusal()` if it is held already."""
    place = path.resolve()
    if place in _HELD:
        raise refusal()
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise storage_error(path, "open", error) from error
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise refusal() from error
        _HELD.add(place)
        try:
            yield
        finally:
            _HELD.discard(place)
    finally:
        os.close(descriptor)


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
    """Say in `run.json` what this process runs. Only for the process that holds the claim."""
    described = RunDescription(pipeline, str(app.resolve()), os.getpid(), time.time())
    draft = directory / f"{DESCRIPTION}.draft"
    draft.write_text(json.dumps(asdict(described)))
    draft.replace(directory / DESCRIPTION)


def holder(directory: Path) -> int | None:
    """The process that holds the claim on this directory, or None."""
    if (directory / LOCK).resolve() in _HELD:
        return os.getpid()
    try:
        with (directory / LOCK).open("rb") as file:
            lock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, lock))
    except FileNotFoundError:
        return None
    return None if kind == fcntl.F_UNLCK else int(pid)


def running(directory: Path) -> RunDescription | None:
    """The pipeline that runs in this directory, or None."""
    pid = holder(directory)
    if pid is None:
        return None
    try:
        found = RunDescription(**json.loads((directory / DESCRIPTION).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None  # it starts or ends just now
    return found if found.pid == pid else None


def stop(directory: Path, timeout_s: float) -> int | None:
    """Ask the pipeline in this directory to stop, as Ctrl-C does, and wait until it has. Returns its process, or None
    if none runs. Raises ConfigError if it still runs after `timeout_s`."""
    pid = holder(directory)
    if pid is None:
        return None
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return pid
    try:
        if holder(directory) != pid:  # it ended, and another process may have its number now
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
