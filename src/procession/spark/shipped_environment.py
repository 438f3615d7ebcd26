"""The shipped environment: how executors that lack our packages get them from Spark.

Invariant: Spark gives each executor the environment archive, unpacked, and one small file with the secret, both in the
executor's working directory. Neither the secret nor a path of an executor's machine is in a task or on a command line.
The driver's JVM works in a directory in which the same relative path leads to the driver's own Python, because Spark
uses one path for both. `supervisor/environment_archive` makes archives; `storage/executor_host` reads the file.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from procession.storage.executor_host import SHIPPED_FILE, ShippedFile
from procession.storage.secret import make_private, write_private

NAME = "environment"
PYTHON = f"./{NAME}/bin/python"
"""Path of Python in the working directory of an executor, and of the driver's JVM."""
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
            "spark.archives": f"{self.archive}#{NAME}",
            "spark.files": str(directory / SHIPPED_FILE),
            "spark.python.daemon.module": DAEMON,
            "spark.driver.host": self.driver,
            "spark.driver.bindAddress": self.driver,
        }

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
