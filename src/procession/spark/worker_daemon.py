"""Runs the daemon from which Spark forks its Python workers: PySpark's daemon, with our tasks' modules imported.

Invariant: the daemon has one thread when it forks. So OpenBLAS and jemalloc are configured to start none before numpy
and pyarrow are imported; Spark itself sets OMP_NUM_THREADS. These imports take half a second of CPU time. All workers
share them, including a worker that replaces a killed one. `spark/session` names this module to Spark. In a shipped
environment it also starts the host service of its machine, before a worker reads its first task.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from pathlib import Path

import pyspark.daemon

from procession.process_start import prepare_imports

WORKER = "pyspark.worker"
"""The module whose workers run tasks."""
TASKS = "procession.spark.exchange"
"""The module that imports all modules of our tasks."""
ENVIRONMENT_VARIABLE = "PROCESSION_ENVIRONMENT"
"""Set by `bin/python` of a shipped environment."""
ARROW_ALLOCATOR = "JE_ARROW_MALLOC_CONF"
"""Environment variable that configures Arrow's copy of jemalloc."""


def load() -> None:
    """Import the modules of tasks."""
    before = os.environ.get(ARROW_ALLOCATOR)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault(ARROW_ALLOCATOR, "background_thread:false")
    prepare_imports()
    import_module(WORKER)
    import_module(TASKS)

    if before is None:
        del os.environ[ARROW_ALLOCATOR]
    gc.collect()
    gc.freeze()  # so that workers do not scan or copy shared objects


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
