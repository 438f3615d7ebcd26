"""The daemon from which Spark forks its Python workers: PySpark's own, with the modules of our tasks imported.

Invariant: the daemon has one thread when it forks. So OpenBLAS and jemalloc are told to start none before numpy and
pyarrow are imported; Spark itself sets OMP_NUM_THREADS. A worker needs half a second of CPU time for these imports,
and now shares them with all others, also one that replaces a killed worker. `spark/session` names this module to Spark.
In a shipped environment it also starts the host service of its machine, before a worker reads its first task.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from pathlib import Path

import pyspark.daemon

WORKER = "pyspark.worker"
"""The module whose workers run tasks."""
TASKS = "procession.spark.exchange"
"""Imports all that our tasks need."""
ENVIRONMENT_VARIABLE = "PROCESSION_ENVIRONMENT"
"""Set by `bin/python` of a shipped environment."""
ARROW_ALLOCATOR = "JE_ARROW_MALLOC_CONF"
"""Environment variable that configures Arrow's copy of jemalloc."""


def load() -> None:
    """Import what tasks need."""
    before = os.environ.get(ARROW_ALLOCATOR)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault(ARROW_ALLOCATOR, "background_thread:false")
    import_module(WORKER)
    import_module(TASKS)

    if before is None:
        del os.environ[ARROW_ALLOCATOR]
    gc.collect()
    gc.freeze()  # so that workers neither scan nor copy what they share


def join_host() -> None:
    """Find or start the host service of this machine, if this executor runs in a shipped environment."""
    if os.environ.get(ENVIRONMENT_VARIABLE):
        # After `load`, because these import pyarrow.
        from procession.storage.executor_host import join_service
        from procession.storage.host_runs import DIRECTORY_VARIABLE

        os.environ[DIRECTORY_VARIABLE] = str(join_service(os.environ, Path.cwd()))


if __name__ == "__main__":
    if WORKER in sys.argv[1:]:
        load()
        join_host()
    pyspark.daemon.manager()
