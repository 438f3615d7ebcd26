"""Ships an environment through Spark to executors that lack our packages, or only the secret.

Invariant: Spark puts two things into the working directory of each executor: a small file with the secret, and, after
the check of the machine, the unpacked environment archive. No task and no command line contains the secret, the key
of the pipeline's certificate or a path of an executor's machine. Spark uses the same path of Python for executors and
the driver. So the driver's JVM runs in a directory where this relative path leads to the driver's own Python.
`deployment/environment_archive` makes archives; `spark/executor_probe` asks the machines; `storage/executor_host`
reads the file.
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from procession.errors import ConfigError
from procession.storage.executor_host import SHIPPED_FILE, ShippedFile
from procession.storage.secret import Secret, find_secret, make_private, write_private
from procession.storage.shipped_tls import TlsFiles
from procession.tls import ClientTls

NAME = "environment"
PYTHON = f"./{NAME}/bin/python"
"""Path of Python in the working directory of an executor, and of the driver's JVM."""
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
PACKED_PYTHON = f"python/bin/python{VERSION}"
"""Path of Python in an archive that contains Python. It is among the first files."""
FIRST_FILES = 2
SUFFIX = ".tar.gz"
"""Suffix of archives. Spark preserves file modes only for archives with this suffix."""
SHIPPED = "shipped"
"""Folder of a driver with what it ships."""
FILE_URL = "file://"
DAEMON = "procession.spark.worker_daemon"


@dataclass(frozen=True)
class ShippedEnvironment:
    """An environment archive, and the data that is sent with it."""

    archive: str
    """A path of this machine, or a URL that Spark can read, such as hdfs://…"""
    driver: str
    """Host name or address of this machine for executors."""
    secret: bytes = field(repr=False)
    tls: ClientTls | None = None
    """The TLS files of the driver, which executors also get."""

    def properties(self, directory: Path) -> dict[str, str]:
        """Write the files for executors to a directory of this driver. Return Spark's properties that ship them."""
        tls = None if self.tls is None else TlsFiles.read(self.tls)
        write_private(directory / SHIPPED_FILE, ShippedFile(self.secret, self.driver, tls).to_json())
        return {
            "spark.files": str(directory / SHIPPED_FILE),
            "spark.python.daemon.module": DAEMON,
            "spark.driver.host": self.driver,
            "spark.driver.bindAddress": self.driver,
        }

    @property
    def location(self) -> str:
        """The archive, and the name of the directory into which Spark unpacks it. A path becomes a URI,
        because Spark takes the name for a part of a path that has a space."""
        archive = self.archive if "://" in self.archive else Path(self.archive).absolute().as_uri()
        return f"{archive}#{NAME}"

    @property
    def archive_bytes(self) -> int:
        """The size of the archive; 0 if it is not on this machine."""
        with suppress(OSError):
            return Path(self.archive).stat().st_size
        return 0

    @property
    def may_have_python(self) -> bool:
        """Whether the archive contains Python. Also true if the archive is not on this machine."""
        try:
            with tarfile.open(self.archive, "r|gz") as files:
                return PACKED_PYTHON in [member.name for member in islice(files, FIRST_FILES)]
        except (OSError, tarfile.TarError):
            return True

    def python_here(self, directory: Path) -> None:
        """Create the relative path of the executors' Python in this directory, as a script that runs this process's
        Python."""
        script = directory / PYTHON
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        script.chmod(0o700)


def check_archive(archive: str) -> str:
    """Return the archive as Spark needs it: a URL, or an absolute path. Raises ConfigError if it is a file of this
    machine that does not exist."""
    if "://" in archive and not archive.startswith(FILE_URL):
        return archive
    path = Path(archive.removeprefix(FILE_URL)).resolve()
    if not path.is_file():
        raise ConfigError(
            f"There is no environment archive {archive}.", next_step=f"Make it: procession pack --output {archive}."
        )
    if not path.name.endswith(SUFFIX):
        raise ConfigError(
            f"The environment archive {archive} does not end in {SUFFIX}: Spark would lose the modes of its files.",
            next_step="Make it with `procession pack`.",
        )
    return str(path)


class ShippedSecret(bytes):
    """A secret that pickles without its bytes. An executor that unpickles it reads the file that Spark has fetched for
    it, and a process on the driver's machine the copy in the pipeline's directory."""

    directory: str

    def __new__(cls, secret: bytes, directory: str) -> ShippedSecret:
        made = super().__new__(cls, secret)
        made.directory = directory
        return made

    def __reduce__(self) -> tuple[Callable[[str], ShippedSecret], tuple[str]]:
        return _received, (self.directory,)


def _received(directory: str) -> ShippedSecret:
    from pyspark import SparkFiles

    if SparkFiles._is_running_on_worker and (fetched := Path(SparkFiles.get(SHIPPED_FILE))).exists():
        return ShippedSecret(ShippedFile.read(fetched).secret, directory)
    kept = find_secret(Path(directory), Secret.EXECUTORS)
    return ShippedSecret(kept or ShippedFile.read(Path(SHIPPED_FILE)).secret, directory)


def write_secret(scratch: Path, secret: bytes) -> Path:
    """Write the file for executors that get only the secret, and return its path."""
    path = scratch / SHIPPED / SHIPPED_FILE
    write_private(path, ShippedFile(secret, driver="").to_json())
    return path


def make_place(scratch: Path, shipped: ShippedEnvironment) -> Path:
    """Return a directory for the driver's JVM, in which the path of the executors' Python exists."""
    place = scratch / SHIPPED
    make_private(place)
    shipped.python_here(place)
    return place
