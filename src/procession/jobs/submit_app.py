"""Prepares `procession submit`: a run whose executors, on other machines, get Python's packages and the app from
here.

Invariant: errors that can be detected are reported before the start: an unreachable master, a missing archive, or
settings that executors could not use. `jobs/run_app` then runs the app with these settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from procession.deployment.app_packages import app_packages
from procession.deployment.environment_archive import packed
from procession.deployment.settings import Settings
from procession.driver.app_file import load_app
from procession.errors import ConfigError, UsageError
from procession.planner.graph import Exchange
from procession.spark.master import STANDALONE, check_master, is_on_this_machine, unreachable
from procession.spark.shipped_environment import check_archive
from procession.storage.executor_host import own_address

FOLDER = "environment"
"""Folder of archives in the pipeline's directory."""
ANY_PORT = 0
K8S = re.compile(r"k8s://(?:https?://)?([^/:]+|\[[^\]]+\])")


def submitted(
    app: Path,
    directory: Path | None,
    settings: Settings,
    say: Callable[[str], None],
    *,
    address: str | None = None,
    packages: Sequence[str] = (),
    has_python: bool = False,
) -> tuple[Path, Settings]:
    """Return the pipeline's directory and the settings with which `run_app` runs this app on the settings' master.
    `address` is the address of this machine for executors. Raises ConfigError or UsageError if the app cannot run on
    this master."""
    master = _checked_master(settings)
    graph = load_app(app).graph
    if graph.exchange is Exchange.SPARK:
        raise ConfigError(
            'exchange="spark" sends runs through Spark, and `submit` starts services for them.',
            next_step='Use exchange="runs" in the app, or `procession run` on machines with Procession.',
        )
    directory = directory or Path(".procession") / graph.name
    address = address or own_address(_host_of(master))
    if master.startswith(STANDALONE) and settings.spark_secret_file is None:
        say(
            "Spark's ports on a standalone cluster need no secret unless its master and workers have one: give it"
            " with --spark-secret-file, or let only trusted machines reach them"
        )
    archive = settings.environment_archive
    if archive is None:
        say("packing Procession and the app for the executors")
        needed = app_packages(app, packages)
        archive = str(packed(directory.resolve() / FOLDER, needed, has_python=has_python))
    else:
        archive = check_archive(archive)
    here = f"[{address}]:{ANY_PORT}" if ":" in address else f"{address}:{ANY_PORT}"
    given = settings.model_fields_set
    changed = {
        "environment_archive": archive,
        "host_services": True,
        "driver_files": settings.driver_files if "driver_files" in given else here,
        "flight": settings.flight or here,
    }
    return directory, settings.model_copy(update=changed)


def _checked_master(settings: Settings) -> str:
    master = settings.master
    if master is None or is_on_this_machine(master):
        raise UsageError(
            "`procession submit` runs an app on a Spark cluster, and no cluster is named.",
            next_step="Give --master spark://HOST:PORT, yarn or k8s://HOST:PORT, or use `procession run`.",
        )
    check_master(master)
    if reason := unreachable(master):
        raise ConfigError(
            f"Spark's master {master} cannot be reached: {reason}.",
            next_step="Start it, or correct its address, then submit again.",
        )
    if settings.tls_ca is not None and master.startswith(STANDALONE) and settings.spark_secret_file is None:
        raise ConfigError(
            "The key of the certificate would go to executors through ports of Spark that ask for no secret.",
            next_step="Give the cluster's secret with --spark-secret-file, or submit without TLS.",
        )
    return master


def _host_of(master: str) -> str:
    """Return a host of the cluster, for which this machine's address is chosen."""
    if master.startswith(STANDALONE):
        return master.removeprefix(STANDALONE).split(",")[0].rpartition(":")[0].strip("[]")
    if found := K8S.match(master):
        return found[1].strip("[]")
    raise UsageError(
        f"With --master {master} the address of this machine for executors must be given.",
        next_step="Give --address HOST: a name or address of this machine that the cluster's machines can reach.",
    )
