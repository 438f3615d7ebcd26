"""The daemon from which Spark forks its Python workers: PySpark's own, with the modules of our tasks imported.

Invariant: the daemon has one thread when it forks. So OpenBLAS and jemalloc are told to start none before numpy and
pyarrow are imported; Spark itself sets OMP_NUM_THREADS. A worker needs half a second of CPU time for these imports,
and now shares them with all others, also one that replaces a killed worker. `spark/session` names this module to Spark.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module

import pyspark.daemon

WORKER = "pyspark.worker"
"""The module whose workers run tasks."""
TASKS = "procession.spark.exchange"
"""Imports all that our tasks need."""
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


if __name__ == "__main__":
    if WORKER in sys.argv[1:]:
        load()
    pyspark.daemon.manager()
