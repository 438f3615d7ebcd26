"""pandas is loaded only when it is used, and Arrow then treats its objects as always."""

from __future__ import annotations

import subprocess
import sys

CONVERSIONS = """
import sys
from procession.pandas_loading import defer_pandas

if "deferred" in sys.argv:
    defer_pandas()
import pyarrow as pa

pa.array([b"a", None], pa.binary()), pa.scalar(1, pa.int64())
print("pandas" in sys.modules)
import importlib.util

assert importlib.util.find_spec("pandas") is not None  # as libraries ask whether it is installed
import pandas as pd

print(pa.array(pd.Series([1.0, float("nan")])).null_count, pa.array([pd.NA, 1.5], from_pandas=True).null_count)
print(pa.table({"a": [1]}).to_pandas()["a"].tolist(), pa.lib._pandas_api.have_pandas)
print(pd.__loader__ is pd.__spec__.loader, type(pd.__loader__).__name__)
"""

COMMANDS = """
import sys
from procession.pandas_loading import defer_pandas

defer_pandas()
import pyspark.worker
import procession.driver.driver
import procession.spark.query
import procession.jobs.run_app

print("pandas" in sys.modules)
"""


def run(program: str, *arguments: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_arrow_does_not_load_pandas_and_knows_its_objects_once_it_is_loaded() -> None:
    """The first line says whether pandas is loaded. The others are the same without the delay."""
    loaded, *found = run(CONVERSIONS, "deferred")
    assert loaded == "False"
    assert found == ["1 1", "[1] True", "True SourceFileLoader"]
    assert run(CONVERSIONS)[1:] == found


def test_the_modules_of_a_run_a_driver_and_a_worker_load_no_pandas() -> None:
    assert run(COMMANDS) == ["False"]
