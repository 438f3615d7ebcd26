"""Finds the Java that Spark will start, and checks its version before any process starts.

Invariant: the search is the same as in Spark's own scripts: first JAVA_HOME, then PATH. The module does not import
pyspark, so a command can check Java before it loads Spark.
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
    java_home = os.environ.get("JAVA_HOME")
    return str(Path(java_home) / "bin" / "java") if java_home else "java"


def java_build() -> str:
    """Return the text of the `release` file, which identifies the build of Java: each build needs its own class
    archive. The output of `java -version` would depend on the environment (JAVA_TOOL_OPTIONS) and take 0.1 s."""
    found = Path(shutil.which(java()) or java()).resolve()
    try:
        return f"{found}\n{_release_of(found).read_text()}"
    except (OSError, ValueError):
        done = subprocess.run([found, "-version"], capture_output=True, text=True, errors="replace", check=False)
        return f"{found}\n{done.stderr}"


def check_java() -> None:
    """Raise ConfigError if Spark cannot use the installed Java, or the current user has no name."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError as error:
        raise ConfigError(
            f"user {os.getuid()} has no user name on this machine, and Spark needs one to start",
            next_step="add a line for this user to /etc/passwd (in a container: in its image), or run as another user",
        ) from error
    java_home = os.environ.get("JAVA_HOME")
    found = shutil.which(java())
    if found is None:
        where = f"JAVA_HOME is {java_home}, which has no bin/java" if java_home else "there is no java in PATH"
        step = f"point JAVA_HOME at a Java installation, or unset it; or {INSTALL}" if java_home else INSTALL
        raise ConfigError(f"Spark needs Java {JAVA_MIN} or newer, and {where}", next_step=step)
    major = _major(_version_of(Path(found)))
    if major is not None and major < JAVA_MIN:
        raise ConfigError(
            f"Spark needs Java {JAVA_MIN} or newer, and {found} is Java {major}",
            next_step=f"{INSTALL}, and point JAVA_HOME or PATH to it",
        )


def _version_of(found: Path) -> str:
    """Read the version from the installation's `release` file, because starting a JVM to ask is slower. Raises
    ConfigError if there is no such file and Java does not run."""
    try:
        text = _release_of(found).read_text()
        if version := re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE):
            return version[1]
    except (OSError, ValueError):
        pass
    try:
        done = subprocess.run(
            [found, "-version"], capture_output=True, text=True, errors="replace", check=False, timeout=30
        )
    except subprocess.TimeoutExpired:
        return ""
    except OSError as error:
        raise _not_running(found, error.strerror or str(error)) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise _not_running(found, lines[0] if lines else f"it exits with status {done.returncode} and prints nothing")
    version = re.search(r'version "([^"]+)"', done.stderr)
    return version[1] if version else ""


def _release_of(found: Path) -> Path:
    return found.resolve().parent.parent / "release"


def _not_running(found: Path, why: str) -> ConfigError:
    return ConfigError(
        f"Spark needs Java {JAVA_MIN} or newer, and {found} does not run: {why}",
        next_step=f"{INSTALL}, and point JAVA_HOME or PATH to it",
    )


def _major(version: str) -> int | None:
    """Return 17 for 17.0.2 and 8 for 1.8.0_292. Return None for an unknown format; Spark then checks it."""
    found = re.match(r"(?:1\.)?([0-9]+)", version)
    return int(found[1]) if found else None
