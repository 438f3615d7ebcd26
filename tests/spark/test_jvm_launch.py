"""The recorded command of Spark's JVM. Other programs stand in for the JVM, so that the tests are quick."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from procession.cache import VARIABLE
from procession.driver.early_jvm import EarlyJvm, add_to_path, start_early
from procession.driver.scratch_directory import ScratchDirectory
from procession.spark import jvm_launch
from procession.spark.jvm_launch import (
    SUBMIT,
    is_direct,
    jar_path,
    launch_path,
    record_launch,
    spark_version,
    start_jvm,
)

WAITING = "import sys; print('started', flush=True); sys.stdin.read()"
OPTIONS = ["-Da=1", "-Db=two words"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm_launch, "INSTALLED", tmp_path / "installed")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "SPARK_LOCAL_DIRS", "TMPDIR", "PYTHONPATH"):
        monkeypatch.setenv(name, "")


@contextmanager
def launched(*options: str) -> Iterator[int]:
    """Run a program with the command line that Spark's launcher makes with these options; yield its process id."""
    command = [sys.executable, "-c", WAITING, "-Xmx1g", *options, "-Dof.spark=1", SUBMIT, "--conf", "a=b", "shell"]
    environment = {"PYTHONHASHSEED": "0", "SPARK_SCALA_VERSION": "2.13", "OTHER": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()  # before, the system has no command line of it
        yield process.pid


def test_a_jvm_starts_with_the_recorded_command_and_its_own_options(capfd: pytest.CaptureFixture[str]) -> None:
    with launched(*OPTIONS) as pid:
        record_launch(pid, OPTIONS)
    jvm = start_jvm(["-Dmine=1"], "2g")
    assert jvm is not None
    expected = [sys.executable, "-c", WAITING, "-Xmx2g", "-Dmine=1", "-Dof.spark=1", SUBMIT, "pyspark-shell"]
    assert jvm.popen.args == expected
    while "started" not in capfd.readouterr().out:
        assert jvm.popen.poll() is None
    variables = Path(f"/proc/{jvm.popen.pid}/environ").read_text().split("\0")
    assert {"PYTHONHASHSEED=0", "SPARK_SCALA_VERSION=2.13"} <= set(variables)
    assert "OTHER=1" not in variables
    jvm.close()
    assert jvm.popen.returncode is not None


def test_a_launcher_that_changes_the_options_is_not_recorded() -> None:
    with launched("-Da=2") as pid, pytest.raises(ValueError, match="changed"):
        record_launch(pid, OPTIONS)
    assert not launch_path().exists()


@pytest.mark.parametrize("name", ["SPARK_CONF_DIR", "SPARK_DRIVER_MEMORY", "PYSPARK_SUBMIT_ARGS", "HADOOP_CONF_DIR"])
def test_the_launcher_starts_a_jvm_that_the_user_configures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with launched(*OPTIONS) as pid:
        record_launch(pid, OPTIONS)
        monkeypatch.setenv(name, "value")
        assert start_jvm(OPTIONS) is None
        launch_path().unlink()
        record_launch(pid, OPTIONS)
    assert not launch_path().exists()


@pytest.mark.parametrize("name", ["SPARK_HOME", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"])
def test_variables_that_pyspark_sets_do_not_count_as_configuration(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    with launched(*OPTIONS) as pid:
        record_launch(pid, OPTIONS)
    assert launch_path().exists()


def test_the_jar_is_at_the_end_of_the_class_path() -> None:
    with launched(*OPTIONS) as pid:
        record_launch(pid, OPTIONS)
    jar_path().touch()
    jvm = start_jvm(OPTIONS)
    assert jvm is not None
    assert f"{WAITING}:{jar_path()}" in jvm.popen.args  # type: ignore[operator]
    jvm.close()


@pytest.mark.parametrize("text", ["", "{", "{}", '{"home": "/elsewhere"}'])
def test_without_a_fitting_record_the_launcher_starts_the_jvm(text: str) -> None:
    assert start_jvm(OPTIONS) is None
    launch_path().write_text(text)
    assert start_jvm(OPTIONS) is None


def test_only_a_session_in_the_drivers_jvm_starts_directly() -> None:
    assert is_direct(None, {}, None, "")
    assert is_direct("local[4]", {}, None, "")
    assert not is_direct("local-cluster[1,1,1024]", {}, None, "")
    assert not is_direct("spark://host:7077", {}, None, "")
    assert not is_direct(None, {"spark.jars": "a.jar"}, None, "")
    assert not is_direct(None, {}, "environment.tar.gz", "")
    assert not is_direct(None, {}, None, "secret")


def test_the_version_is_read_without_importing_pyspark() -> None:
    assert spark_version() == pyspark.__version__


def test_a_jvm_that_nobody_takes_ends_with_its_scratch_directory(tmp_path: Path) -> None:
    with launched(*OPTIONS) as pid:
        record_launch(pid, OPTIONS)
    early = start_early(tmp_path / "work", tmp_path / "app.py", None, {}, None, "")
    assert early is not None
    early.close()
    assert early.jvm.popen.returncode is not None
    assert not early.scratch.directory.exists()


def test_a_jvm_that_was_taken_stays(tmp_path: Path) -> None:
    with launched(*OPTIONS) as pid:
        record_launch(pid, OPTIONS)
    jvm = start_jvm(OPTIONS)
    assert jvm is not None
    early = EarlyJvm(ScratchDirectory(tmp_path), jvm)
    assert early.take() is jvm
    early.close()
    assert jvm.popen.poll() is None
    jvm.close()
    early.scratch.close()


def test_the_directory_of_the_app_is_added_to_the_path_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/other")
    for _ in range(2):
        add_to_path(tmp_path / "app.py")
        assert os.environ["PYTHONPATH"] == f"{tmp_path}:/other"
