"""Secrets that a program must send to a port, each in its own file in the pipeline's directory.

Invariant: a secret is created once, by the first process that needs it, in a file that only its owner can read. Later
it is read, never replaced. A file that others can read, or could have written, is refused. Commands and gateways create
and find secrets; the ports compare them in constant time. A secret is never part of a pickled task: the task names
directories, and the secret is read where the task runs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from procession.errors import ConfigError
from procession.runtime.host_files import sync, write_all
from procession.storage.driver_claim import CHECKPOINT
from procession.storage.durable import fsync_dir, make_directory, storage_error

FOLDER = "secrets"
SECRET_BYTES = 32
PRIVATE_UMASK = 0o077
OTHERS = stat.S_IRWXG | stat.S_IRWXO
PIPELINE_NAMES = frozenset(
    {
        *(FOLDER, "gateway", CHECKPOINT, "logs", "runs", "state", "sides", "executors", "emitter"),
        *("epochs.jsonl", "driver.json", "run.json", "run.lock", "plan.json", "driver-status.json"),
        *("run-details.json", "run-events.jsonl", "dashboard-links.json", "program", "environment"),
    }
)
"""Names of a pipeline's files in its directory, in this version and the previous one, except for gateways that
joined."""
GATEWAY = "gateway"
"""Name of the first gateway's directory inside the pipeline's directory."""


class Secret(StrEnum):
    """The secrets, by sender, with the names of their files."""

    PRODUCERS = "producers"
    CONTROL = "control"
    """The driver, the other gateways, executors that fetch a log, and operators."""
    SINKS = "sinks"
    EXECUTORS = "executors"
    """A copy of the control secret, for the tasks of a pipeline on this machine."""
    SOS = "sos"
    """The secret of an object service, in its own directory."""
    DASHBOARD = "dashboard"
    """Signs the cookies of the dashboard."""


def pipeline_of(directory: Path) -> Path:
    """Return the directory whose secrets a gateway in this directory uses: its pipeline's directory, or its own."""
    directory = directory.absolute()
    if directory.name == GATEWAY or (not (directory / FOLDER).is_dir() and (directory.parent / FOLDER).is_dir()):
        return directory.parent
    return directory


def path_of(directory: Path, which: Secret) -> Path:
    return directory / FOLDER / which


def find_secret(directory: Path, which: Secret) -> bytes:
    """Return the secret of this directory. Empty if there is none."""
    path = path_of(directory, which)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        raise ConfigError(
            f"The secret {path} cannot be read: {error.strerror}.",
            next_step="Run this as the user who runs the pipeline, or give a copy of the secret with --cookie-file.",
        ) from error
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if found.st_mode & OTHERS or found.st_uid not in (os.geteuid(), 0):
            raise ConfigError(
                f"The secret {path} could be read or written by others.",
                next_step="Delete it, and a new one is created; if you trust it: chown it to yourself and chmod 600.",
            )
        return file.read().strip()


def make_secret(directory: Path, which: Secret) -> bytes:
    """Return the secret of this directory, which is created if needed. Concurrent callers get the same secret."""
    if secret := find_secret(directory, which):
        return secret
    path = path_of(directory, which)
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    try:
        make_private(path.parent)
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            write_all(descriptor, os.urandom(SECRET_BYTES).hex().encode() + b"\n", 0)
            sync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(draft, path)
        except FileExistsError:
            pass  # another process created it first
        finally:
            draft.unlink(missing_ok=True)
        fsync_dir(path.parent)
    except OSError as error:
        raise storage_error(path, "write", error) from error
    return find_secret(directory, which)


def keep_copy(directory: Path, secret: bytes) -> None:
    """Write the secret for the tasks that run on this machine. It replaces an earlier copy."""
    if find_secret(directory, Secret.EXECUTORS) != secret:
        write_private(path_of(directory, Secret.EXECUTORS), secret)


def write_private(path: Path, data: bytes) -> None:
    """Write or replace a file that only its owner can read, in a directory that only its owner can enter."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    try:
        make_private(path.parent)
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
        draft.replace(path)
    except OSError as error:
        raise storage_error(path, "write", error) from error


class KeptSecret(bytes):
    """A secret that is pickled without its bytes. The process that unpickles it reads the copy in the first of these
    directories that has one. Their names may contain environment variables."""

    directories: tuple[str, ...]

    def __new__(cls, secret: bytes, directories: tuple[str, ...]) -> KeptSecret:
        made = super().__new__(cls, secret)
        made.directories = directories
        return made

    def __reduce__(self) -> tuple[Callable[[tuple[str, ...]], KeptSecret], tuple[tuple[str, ...]]]:
        return _found_copy, (self.directories,)


def _found_copy(directories: tuple[str, ...]) -> KeptSecret:
    for directory in directories:
        if secret := find_secret(Path(os.path.expandvars(directory)), Secret.EXECUTORS):
            return KeptSecret(secret, directories)
    raise ConfigError(
        f"The secret for gateways and the driver is not on this machine: {' and '.join(directories)} have no copy.",
        next_step="Start `procession host` of this version here and name its directory in PROCESSION_HOST_DIR, or"
        " share the pipeline's directory.",
    )


def make_private(directory: Path) -> None:
    """Create a directory that only this user can enter, or restrict an existing one. Raises the plain OSError."""
    if not directory.parent.exists():
        make_directory(directory.parent)
    try:
        directory.mkdir(0o700)
    except FileExistsError:
        if directory.stat().st_mode & OTHERS:
            directory.chmod(0o700)


def make_pipeline_private(directory: Path) -> None:
    """Make a pipeline's directory, and the files of an earlier version in it, accessible only to the owner. If the
    directory holds other files, it keeps its mode; files created in it are private anyway. Raises ConfigError if it
    belongs to another user, who could replace the files in it."""
    try:
        if not directory.exists():
            make_private(directory)
            return
        found = directory.stat()
        if os.geteuid() not in (0, found.st_uid):
            raise ConfigError(
                f"The directory {directory} belongs to another user.",
                next_step="Give --dir a directory of your own.",
            )
        names = {entry.name for entry in directory.iterdir()}
        is_ours = not names or any(name in names for name in PIPELINE_NAMES)
        if found.st_mode & OTHERS and is_ours and not found.st_mode & stat.S_ISVTX:
            directory.chmod(0o700)
            for name in names & PIPELINE_NAMES:
                _shut(directory / name)
    except OSError as error:
        raise storage_error(directory, "make private", error) from error


def _shut(root: Path) -> None:
    if root.is_file():
        root.chmod(0o600)
    for folder, _, files in os.walk(root):
        os.chmod(folder, 0o700)
        for name in files:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) & ~OTHERS)
