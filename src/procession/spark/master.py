"""Checks the master, the address from which Spark gets its executors.

Checks the form of the address and whether the master is reachable. Decides when to tell the user that the master has
provided no executors yet. Invariant: an invalid address is refused before any process starts. The module does not
import pyspark, so a command can check the address before it loads Spark.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from procession.errors import ConfigError, UsageError

STANDALONE = "spark://"
YARN = "yarn"
YARN_VARIABLES = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Environment variables with the directory of a YARN cluster's configuration."""
YARN_FILE = "yarn-site.xml"
"""File of that configuration with the addresses of the cluster."""
LOCAL_CLUSTER = "local-cluster["
"""Prefix of masters whose executors are JVMs on this machine, so they can use the driver's class archive."""

THREADS = re.compile(r"local(\[.*\])?")
"""Masters with which the driver's JVM is the executor, so there are no executors to wait for."""
FORMS = re.compile(
    r"local(\[([0-9]+|\*)(, *[0-9]+)?\])?"
    r"|local-cluster\[ *[0-9]+ *, *[0-9]+ *, *[0-9]+ *\]"
    r"|spark://[^,/]+:[0-9]+(,[^,/]+:[0-9]+)*"
    r"|k8s://.+|yarn"
)
FORMS_TEXT = "spark://HOST:PORT, local[THREADS], local-cluster[WORKERS,CORES,MEGABYTES], k8s://HOST:PORT or yarn"

PATIENCE_S = 7.0
"""Seconds from the start of a command until it reports that a cluster does not answer or gives no executors. Below 10
s, so that the user sees the report within 10 s."""
PATIENCE_AGAIN_S = 3.0
"""For a driver that is started later: seconds from the driver's start until such a report."""
GRACE_S = 1.0
"""Minimum time for executors to appear after Spark has started."""
REPEAT_S = 60.0
"""Interval between repeated notices."""

REACH_TIMEOUT_S = 2.0


def check_master(master: str | None) -> None:
    """Raise UsageError unless Spark supports this form of address. For YARN, raise ConfigError if the environment does
    not say where the cluster is."""
    if master is not None and not FORMS.fullmatch(master):
        raise UsageError(f"{master!r} is not a valid address of a Spark master.", next_step=f"Use one of {FORMS_TEXT}.")
    if master == YARN and not any(Path(os.environ.get(name, ""), YARN_FILE).is_file() for name in YARN_VARIABLES):
        raise ConfigError(
            "Neither HADOOP_CONF_DIR nor YARN_CONF_DIR names a directory with yarn-site.xml.",
            next_step="Set HADOOP_CONF_DIR to a directory of this machine with the cluster's configuration.",
        )


def has_executors(master: str) -> bool:
    """Return whether executors are separate processes that must be waited for."""
    return not THREADS.fullmatch(master)


def is_on_this_machine(master: str) -> bool:
    """Return whether all executors are processes or threads of this machine that the driver starts."""
    return not has_executors(master) or master.startswith(LOCAL_CLUSTER)


def unreachable(master: str) -> str | None:
    """Return why a standalone master is unreachable at all of its addresses; None if it is reachable, or not
    standalone."""
    if not master.startswith(STANDALONE):
        return None
    reason = "it has no address"
    for address in master.removeprefix(STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), REACH_TIMEOUT_S).close()
            return None
        except (OSError, ValueError) as error:
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return reason


def first_notice(command_started: float, driver_started: float) -> float:
    """Return the time of the first notice about a cluster that does not answer."""
    return max(command_started + PATIENCE_S, driver_started + PATIENCE_AGAIN_S)


class ExecutorNotice:
    """Decides when to report that a cluster has given no executor. `report` returns the sentence when it is due."""

    def __init__(self, master: str, due: float, now: float) -> None:
        self._master = master
        self._step = "start a worker, or check that the workers have free cores and memory"
        if master.startswith(LOCAL_CLUSTER):
            self._step = (
                "scratch/*/executors/work in the pipeline's directory has the logs of executors that do not start"
            )
        self._due = max(due, now + GRACE_S)
        self._is_reported = False

    def report(self, executors: int, now: float) -> str | None:
        """Return the sentence to print for this number of executors, or None."""
        if executors:
            self._due = now + PATIENCE_S
            was_reported, self._is_reported = self._is_reported, False
            return f"Spark's master {self._master} has assigned an executor" if was_reported else None
        if now < self._due:
            return None
        self._due = now + REPEAT_S
        self._is_reported = True
        return f"Spark's master {self._master} has assigned no executor yet; still waiting: {self._step}"
