"""Starts the JVM of a driver before the driver loads its other modules.

Invariant: the JVM gets the same environment and options as from `spark/session`, which connects to it later. It decides
nothing, and ends with the driver. Loading the driver's modules and planning the app takes as long as the JVM's start.
Used by the command `procession driver`; `driver/spark_process` takes the JVM over.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from procession.driver.scratch_directory import SCRATCH, ScratchDirectory
from procession.spark.java import check_java
from procession.spark.jvm_launch import (
    JAVA_OPTIONS,
    Jvm,
    archive_options,
    driver_options,
    is_direct,
    set_variables,
    start_jvm,
)

LOG = Path("logs") / "spark.log"
"""The JVM's log, in the pipeline's directory."""


@dataclass
class EarlyJvm:
    """A JVM and the scratch directory that it was started with."""

    scratch: ScratchDirectory
    jvm: Jvm
    is_taken: bool = False
    """Whether a session uses the JVM."""

    def take(self) -> Jvm:
        self.is_taken = True
        return self.jvm

    def close(self) -> None:
        """End the JVM, unless a session uses it."""
        if not self.is_taken:
            self.jvm.close()
            self.scratch.close()


def add_to_path(app: Path) -> None:
    """Let the Python processes that this process starts import modules from the app's directory."""
    directory, before = str(app.parent.resolve()), os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if before[0] != directory:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [directory, *before]))


def start_early(
    directory: Path, app: Path, master: str | None, properties: Mapping[str, str], shipped: object, spark_secret: str
) -> EarlyJvm | None:
    """Start the JVM of a driver of this pipeline. Return None if only Spark's launcher can start it."""
    if not is_direct(master, properties, shipped, spark_secret):
        return None
    check_java()
    scratch = ScratchDirectory(directory / SCRATCH)
    set_variables(scratch.directory)
    add_to_path(app)
    options = driver_options([*JAVA_OPTIONS, *archive_options()], scratch.directory, directory / LOG)
    jvm = start_jvm(options)
    if jvm is None:
        scratch.close()
        return None
    return EarlyJvm(scratch, jvm)
