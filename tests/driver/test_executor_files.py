"""Tasks present a secret to gateways and services without containing it."""

from __future__ import annotations

import pickle
import stat
from pathlib import Path

import pytest
from pyspark import SparkFiles, cloudpickle

from procession.api.pipeline import Pipeline
from procession.driver.executor_files import task_access
from procession.errors import ConfigError
from procession.planner.graph import Graph
from procession.spark.shipped_environment import write_secret
from procession.storage.secret import Secret, path_of

SECRET = b"a secret of this test"


def graph(exchange: str) -> Graph:
    pipeline = Pipeline("p", exchange=exchange)
    pipeline.source("words", codec="text").sink("output", to="file:output", codec="text")
    return pipeline.graph()


@pytest.mark.parametrize("exchange", ["runs", "spark"])
@pytest.mark.parametrize("master", [None, "local-cluster[2,1,1024]", "spark://192.0.2.1:7077", "yarn"])
def test_no_secret_is_in_what_spark_ships(tmp_path: Path, exchange: str, master: str | None) -> None:
    access = task_access(SECRET, None, tmp_path, graph(exchange), master)
    assert access.cookie == SECRET
    shipped = cloudpickle.dumps(access)
    assert SECRET not in shipped
    assert SECRET.hex().encode() not in shipped
    again = pickle.loads(shipped)
    assert again == access, "the process that plans epochs is on the driver's machine"
    assert SECRET not in cloudpickle.dumps(again)


def test_an_executor_that_shares_no_directory_reads_the_secret_from_the_file_that_spark_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = task_access(SECRET, None, tmp_path / "driver", graph("spark"), "spark://192.0.2.1:7077")
    shipped = cloudpickle.dumps(access)
    path_of(tmp_path / "driver", Secret.EXECUTORS).unlink()  # as on another machine
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no file procession-executor\.json"):
        pickle.loads(shipped)
    fetched = write_secret(tmp_path, SECRET)
    fetched.chmod(0o755)  # as Spark leaves it
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(fetched.parent))
    assert pickle.loads(shipped).cookie == SECRET
    assert stat.S_IMODE(fetched.stat().st_mode) == 0o600
