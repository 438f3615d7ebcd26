"""Checks the executors on other machines before the first epoch: Python, packages, disk space, host service and clock.

Invariant: an executor that cannot run our tasks is reported as one sentence with its host, instead of a trace from its
first task. A host service that does not run is waited for, as the pipeline waits for its other parts. `examine` runs in
executors that may lack our package, so it is pickled by value and uses only the standard library; `complaint`,
`clock_notice` and `service_notice` decide, and are pure. Used by `driver/driver`.
"""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from procession.errors import ConfigError, error_in_text

if TYPE_CHECKING:
    from procession.spark.session import Session

PACKAGES = ("procession", "pyspark", "pyarrow")
"""Packages that must have the same version in the driver and in the executors."""
ROOM_BYTES_MIN = 64 * 1024 * 1024
"""Minimum free space in the directory of a host service."""
CLOCK_TOLERANCE_S = 5.0
"""Difference to the driver's clock above which an executor's clock is reported."""

ASK_AGAIN_S = 1.0
"""Interval at which executors are asked again while a host service does not run."""
REACH_TIMEOUT_S = 2.0

MISMATCH = re.compile(r"PYTHON_VERSION_MISMATCH\].*?version: ([0-9.]+) than that in driver: ([0-9.]+)", re.DOTALL)
NO_PLAIN_PYTHON = re.compile(r"procession: there is no Python ([0-9.]+) on (\S+)")
"""Printed by `bin/python` of an environment archive."""
NO_FILE = re.compile(r"java\.io\.FileNotFoundException: (?:File (?:does not exist: )?)?(\S+)")
"""Executors fetch only files that the driver names."""
NO_PYTHON = re.compile(r'Cannot run program "([^"]+)".*?No such file or directory', re.DOTALL)


def examine(_partition: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Yield the facts about the executor that runs this."""
    import importlib.metadata
    import json
    import os
    import platform
    import shutil
    import socket
    import time

    import pyspark

    packages = {"pyspark": pyspark.__version__}  # Spark's own copy, which may not be an installed package
    for name in ("procession", "pyarrow"):
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            packages[name] = ""
    directory = os.environ.get("PROCESSION_HOST_DIR", "")
    try:
        free_bytes = shutil.disk_usage(directory).free if directory else None
    except OSError:
        free_bytes = None
    location, unreachable = "", ""
    try:
        with open(os.path.join(directory, "host.json"), "rb") as announcement:  # written by storage/host_service
            location = str(json.load(announcement)["location"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    else:
        try:
            service, _, port = location.rpartition("://")[2].rpartition(":")
            socket.create_connection((service.strip("[]"), int(port)), 2.0).close()
        except (OSError, ValueError) as error:
            unreachable = getattr(error, "strerror", None) or str(error)
    yield {
        "host": os.environ.get("SPARK_LOCAL_HOSTNAME") or socket.gethostname(),
        "python": platform.python_version(),
        "packages": packages,
        "directory": directory,
        "free_bytes": free_bytes,
        "service": location,
        "unreachable": unreachable,
        "clock_s": time.time(),
    }


def own_packages() -> dict[str, str]:
    """Return the versions of PACKAGES in this process."""
    return {name: version(name) for name in PACKAGES}


def complaint(facts: Mapping[str, Any], packages: Mapping[str, str], *, has_services: bool) -> ConfigError | None:
    """Return why an executor with these facts cannot run tasks of a driver with these packages, or None."""
    host = facts["host"]
    for name, wanted in packages.items():
        found = facts["packages"].get(name, "")
        if not found:
            return ConfigError(
                f"The executor on {host} does not have the package {name}.",
                next_step=f"Install {name} {wanted} there, for the same Python as the driver's.",
            )
        if found != wanted:
            return ConfigError(
                f"The executor on {host} has {name} {found}, the driver {wanted}.",
                next_step="Install the same versions on all machines.",
            )
    if not has_services:
        return None
    if not facts["directory"]:
        return ConfigError(
            f"The executor on {host} has no host service: PROCESSION_HOST_DIR is not set.",
            next_step="Run `procession host --dir D` on each machine with executors, and set PROCESSION_HOST_DIR=D in"
            " the environment of Spark's worker.",
        )
    free_bytes = facts["free_bytes"]
    if free_bytes is not None and free_bytes < ROOM_BYTES_MIN:
        return ConfigError(
            f"The disk of {facts['directory']} on {host} has only {free_bytes / 1e6:.1f} MB free.",
            next_step=f"Free at least {ROOM_BYTES_MIN / 1e6:.0f} MB, or choose another directory for its host service.",
        )
    return None


def service_notice(facts: Mapping[str, Any], unreachable: str) -> str | None:
    """Return a notice if the host service of an executor does not run, else None. `unreachable`: why the driver cannot
    reach it; empty if it can."""
    host, service = facts["host"], facts["service"]
    if not service:
        return f"no host service has been started in {facts['directory']} on {host}; waiting for it"
    if facts["unreachable"]:
        return f"the host service on {host} does not run at {service}: {facts['unreachable']}; waiting for it"
    if unreachable:
        return f"the driver cannot reach the host service on {host} at {service}: {unreachable}; waiting for it"
    return None


def unreachable_service(location: str) -> str:
    """Return why this process cannot connect to a host service; empty if it can."""
    try:
        host, _, port = location.rpartition("://")[2].rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), REACH_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def clock_notice(facts: Mapping[str, Any], before_s: float, after_s: float) -> str | None:
    """Return a notice if an executor's clock differs from the driver's, else None. The executor was asked between
    these two times of the driver's clock."""
    apart_s = max(before_s - facts["clock_s"], facts["clock_s"] - after_s)
    if apart_s <= CLOCK_TOLERANCE_S:
        return None
    return (
        f"the clock of the executor on {facts['host']} is {apart_s:.0f} s apart from the driver's: times that functions"
        " take from the clock will be wrong; synchronize the clocks of all machines"
    )


def python_failure(text: str) -> ConfigError | None:
    """Return the error for an executor without the right Python, from the text of Spark's error; None if it is
    another error."""
    if found := MISMATCH.search(text):
        return ConfigError(
            f"Executors run Python {found[1]}, the driver runs {found[2]}.",
            next_step="Install the driver's version of Python on all machines.",
        )
    if found := NO_PLAIN_PYTHON.search(text):
        return ConfigError(
            f"The executor on {found[2]} has no Python {found[1]}.",
            next_step=f"Install Python {found[1]} there, or submit with --with-python.",
        )
    if found := NO_PYTHON.search(text):
        return ConfigError(
            f"Executors have no Python at {found[1]}.",
            next_step="Install Procession at the same path on all machines.",
        )
    return None


def failure(text: str) -> ConfigError | None:
    """Return the error for an executor on which the check could not run, from the text of Spark's error; None if
    unknown."""
    if (wrong := python_failure(text)) is not None:
        return wrong
    if (ours := error_in_text(text)) is not None:
        return ConfigError(ours.sentence, next_step=ours.next_step or "Fix that, and start again.")
    if found := NO_FILE.search(text):
        return ConfigError(
            f"Executors cannot fetch {found[1]}: there is no such file.",
            next_step="Correct --environment-archive, or the files that --conf names.",
        )
    return None


def check_executors(spark: Session, say: Callable[[str], None], *, has_services: bool) -> None:
    """Ask the executors, and raise ConfigError if one cannot run tasks. Waits until there are executors and, with host
    services, until those of their machines run."""
    from procession.spark.pickled_program import ship_by_value

    ship_by_value(sys.modules[__name__])
    said: set[str] = set()
    while missing := _missing_services(_asked(spark, say, said, has_services=has_services), has_services=has_services):
        for sentence in missing:
            if sentence not in said:
                say(sentence)
                said.add(sentence)
        time.sleep(ASK_AGAIN_S)


def _asked(
    spark: Session, say: Callable[[str], None], said: set[str], *, has_services: bool
) -> Sequence[Mapping[str, Any]]:
    """Return the facts about one executor of each machine. Raises ConfigError if one cannot run tasks."""
    context = spark.sparkContext
    tasks = max(2, context.defaultParallelism)
    before_s = time.time()
    try:
        found = context.parallelize(range(tasks), tasks).mapPartitions(examine).collect()
    except Exception as error:
        if known := failure(str(error)):
            raise known from error
        raise
    after_s = time.time()
    packages = own_packages()
    by_host = {facts["host"]: facts for facts in found}
    for host, facts in by_host.items():
        if wrong := complaint(facts, packages, has_services=has_services):
            raise wrong
        if (sentence := clock_notice(facts, before_s, after_s)) and f"clock {host}" not in said:
            said.add(f"clock {host}")
            say(sentence)
    return list(by_host.values())


def _missing_services(found: Sequence[Mapping[str, Any]], *, has_services: bool) -> list[str]:
    if not has_services:
        return []
    notices = (service_notice(facts, unreachable_service(facts["service"])) for facts in found)
    return [sentence for sentence in notices if sentence is not None]
