"""The shipped environment: how executors that lack our packages get them from Spark.

Invariant: Spark gives each executor one small file with the secret and, once its machine is known to have what it
needs, the unpacked environment archive, both in the executor's working directory. Neither the secret nor a path of an
executor's machine is in a task or on a command line. The driver's JVM works in a directory in which the same relative
path leads to the driver's own Python, because Spark uses one path for both. `supervisor/environment_archive` makes
archives; `spark/executor_probe` asks the machines; `storage/executor_host` reads the file.
"""

from __future__ import annotations

import sys
import tarfile
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from procession.storage.executor_host import SHIPPED_FILE, ShippedFile
from procession.storage.secret import make_private, write_private

NAME = "environment"
PYTHON = f"./{NAME}/bin/python"
"""Path of Python in the working directory of an executor, and of the driver's JVM."""
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
PACKED_PYTHON = f"python/bin/python{VERSION}"
"""Name of Python in an archive that has one. It is among the first files."""
FIRST_FILES = 2
DAEMON = "procession.spark.worker_daemon"


@dataclass(frozen=True)
class ShippedEnvironment:
    """An environment archive, and what executors get beside it."""

    archive: str
    """A path of this machine, or a URL that Spark can read, such as hdfs://…"""
    driver: str
    """Host name or address of this machine for executors."""
    secret: bytes = field(repr=False)

    def properties(self, directory: Path) -> dict[str, str]:
        """Write what is shipped to a directory of this driver, and return Spark's properties for it."""
        write_private(directory / SHIPPED_FILE, ShippedFile(self.secret, self.driver).to_json())
        return {
            "spark.files": str(directory / SHIPPED_FILE),
            "spark.python.daemon.module": DAEMON,
            "spark.driver.host": self.driver,
            "spark.driver.bindAddress": self.driver,
        }

    @property
    def location(self) -> str:
        """The archive, and the name of the directory that Spark makes of it."""
        return f"{self.archive}#{NAME}"

    @property
    def archive_bytes(self) -> int:
        """The size of the archive; 0 if it is not on this machine."""
        with suppress(OSError):
            return Path(self.archive).stat().st_size
        return 0

    @property
    def may_have_python(self) -> bool:
        """Whether the archive has a Python of its own, or is not on this machine."""
        try:
            with tarfile.open(self.archive, "r|gz") as files:
                return PACKED_PYTHON in [member.name for member in islice(files, FIRST_FILES)]
        except (OSError, tarfile.TarError):
            return True

    def python_here(self, directory: Path) -> None:
        """Make the path of the executors' Python in this directory, for the Python of this process."""
        script = directory / PYTHON
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        script.chmod(0o700)


def make_place(scratch: Path, shipped: ShippedEnvironment) -> Path:
    """Return a directory for the driver's JVM, in which the path of the executors' Python exists."""
    place = scratch / "shipped"
    make_private(place)
    shipped.python_here(place)
    return place
