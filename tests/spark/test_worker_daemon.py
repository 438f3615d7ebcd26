"""The daemon of Spark's Python workers imports the shared modules before it forks, with one thread."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from procession.spark.worker_daemon import ARROW_ALLOCATOR

LOADED = f"""
import os, sys
from procession.spark import worker_daemon

worker_daemon.load()
print(len(os.listdir("/proc/self/task")))
print("procession.spark.tasks" in sys.modules, "pyspark.worker" in sys.modules)
print(os.environ.get({ARROW_ALLOCATOR!r}))
"""


@pytest.mark.parametrize("given", [None, "background_thread:false,narenas:1"])
def test_the_daemon_has_one_thread_when_its_modules_are_imported(given: str | None) -> None:
    unset = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", ARROW_ALLOCATOR)
    env = {name: value for name, value in os.environ.items() if name not in unset}
    env |= {} if given is None else {ARROW_ALLOCATOR: given}
    done = subprocess.run([sys.executable, "-c", LOADED], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1", "True True", str(given)]
