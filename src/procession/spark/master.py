"""The master: where Spark gets its executors. What forms its address has, whether somebody listens there, and what a
user is told who waits for it.

The one rule: what cannot be the address of a master is refused before anything is started. Imports no pyspark, so that
a command can ask before it loads anything. Before it the command line and `driver/spark_process`.
"""

from __future__ import annotations

import os
import re
import socket

from procession.errors import UsageError

STANDALONE = "spark://"
LOCAL_CLUSTER = "local-cluster["
"""Executors that are JVMs on this machine: they start as the driver's does. Elsewhere the archive is not there."""

THREADS = re.compile(r"local(\[.*\])?")
"""The executor is the driver's own JVM: there is none to wait for."""
FORMS = re.compile(
    r"local(\[([0-9]+|\*)(, *[0-9]+)?\])?"
    r"|local-cluster\[ *[0-9]+ *, *[0-9]+ *, *[0-9]+ *\]"
    r"|spark://[^,/]+:[0-9]+(,[^,/]+:[0-9]+)*"
    r"|k8s://.+|yarn"
)
FORMS_TOLD = "spark://HOST:PORT, local[THREADS], local-cluster[WORKERS,CORES,MEGABYTES], k8s://HOST:PORT or yarn"

PATIENCE_S = 7.0
"""How long after the start of a command a cluster may take to answer, or to give executors, before that is told; a user
is to be told within 10 s."""
PATIENCE_AGAIN_S = 3.0
"""The same for a driver that is started later, after its own start."""
GRACE_S = 1.0
"""How long executors may take at least, once Spark has started."""
REPEAT_S = 60.0
"""When it is told again."""

REACH_TIMEOUT_S = 2.0


def check_master(master: str | None) -> None:
    """Raise UsageError if Spark has no such master."""
    if master is not None and not FORMS.fullmatch(master):
        raise UsageError(f"{master!r} is not the address of a master of Spark.", next_step=f"Write {FORMS_TOLD}.")


def has_executors(master: str) -> bool:
    """Whether executors are processes of their own, which have to come."""
    return not THREADS.fullmatch(master)


def unreachable(master: str) -> str | None:
    """Why nobody listens at any of the addresses of a standalone master; None if somebody does, or it is none."""
    if not master.startswith(STANDALONE):
        return None
    trouble = "it has no address"
    for address in master.removeprefix(STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), REACH_TIMEOUT_S).close()
            return None
        except (OSError, ValueError) as error:
            trouble = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return trouble


def first_notice(command_started: float, driver_started: float) -> float:
    """When a user is told first that a cluster keeps everybody waiting."""
    return max(command_started + PATIENCE_S, driver_started + PATIENCE_AGAIN_S)


class ExecutorNotice:
    """When a user is told that a cluster has given no executor: `look` gives the sentence when it is due."""

    def __init__(self, master: str, due: float, now: float) -> None:
        self._master = master
        self._step = "start a worker, or see whether the workers have cores and memory to spare"
        if master.startswith(LOCAL_CLUSTER):
            self._step = "scratch/*/executors/work in the pipeline's directory tells why they do not start"
        self._due = max(due, now + GRACE_S)
        self._is_told = False

    def look(self, executors: int, now: float) -> str | None:
        """What to say now that there are so many executors; None if there is nothing to say."""
        if executors:
            self._due = now + PATIENCE_S
            was_told, self._is_told = self._is_told, False
            return f"Spark's master {self._master} has given us an executor" if was_told else None
        if now < self._due:
            return None
        self._due = now + REPEAT_S
        self._is_told = True
        return f"Spark's master {self._master} has given us no executor yet; waiting for one: {self._step}"
