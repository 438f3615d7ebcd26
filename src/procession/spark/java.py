"""Java: which one Spark will start, and whether it is new enough. Told before anything is started.

The one rule: look where Spark's own scripts look, in JAVA_HOME first, then in PATH. Imports no pyspark, so that a
command can ask before it loads anything. Before it the command line; after it `spark/session`.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path

from procession.errors import ConfigError

JAVA_MIN = 17
INSTALL = f"install Java {JAVA_MIN} or newer (on Debian or Ubuntu: apt-get install openjdk-17-jre-headless)"


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def check_java() -> None:
    """Raise ConfigError unless there is a Java that Spark can use, and a user whom it knows."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError as error:
        raise ConfigError(
            f"user {os.getuid()} has no name here, and Spark does not start for a user without one",
            next_step="add a line for this user to /etc/passwd (in a container: when it is built), or run as another",
        ) from error
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(java())
    if found is None:
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java in PATH"
        step = f"point JAVA_HOME at one, or unset it; or {INSTALL}" if home else INSTALL
        raise ConfigError(f"Spark needs Java {JAVA_MIN} or newer, and {where}", next_step=step)
    major = _major(_version_of(Path(found)))
    if major is not None and major < JAVA_MIN:
        raise ConfigError(
            f"Spark needs Java {JAVA_MIN} or newer, and {found} is Java {major}",
            next_step=f"{INSTALL}, and let JAVA_HOME or PATH name it",
        )


def _version_of(found: Path) -> str:
    """From the file `release` of the installation; starting a JVM to ask takes longer."""
    try:
        text = (found.resolve().parent.parent / "release").read_text()
        if version := re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE):
            return version[1]
    except (OSError, ValueError):
        pass
    try:
        told = subprocess.run([found, "-version"], capture_output=True, text=True, check=False, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""
    version = re.search(r'version "([^"]+)"', told)
    return version[1] if version else ""


def _major(version: str) -> int | None:
    """17 of 17.0.2, 8 of 1.8.0_292; None of what is no version: then Spark finds out."""
    found = re.match(r"(?:1\.)?([0-9]+)", version)
    return int(found[1]) if found else None
