"""Properties of Spark: those that order and commit depend on are refused by name, the others pass."""

from __future__ import annotations

import zipfile

import pytest

from procession.commit.spark_log import OFFSETS_VERSION
from procession.errors import UsageError
from procession.spark.session import FILES, SETTINGS, python_archives, settings_of
from procession.spark.spark_conf import REFUSED, parse_properties, task_failures_max


def test_other_properties_pass_as_they_are() -> None:
    given = ["spark.executor.memory=4g", "spark.driver.host = 192.0.2.1", "spark.x=a=b", "spark.task.maxFailures=8"]
    assert parse_properties(given) == {
        "spark.executor.memory": "4g",
        "spark.driver.host": "192.0.2.1",
        "spark.x": "a=b",
        "spark.task.maxFailures": "8",
    }


@pytest.mark.parametrize(
    "name",
    [
        "spark.sql.adaptive.enabled",
        "spark.sql.adaptive.coalescePartitions.enabled",
        "spark.speculation",
        "spark.speculation.quantile",
        "spark.sql.streaming.checkpointFileManagerClass",
        "spark.sql.streaming.offsetLog.formatVersion",
        "spark.sql.streaming.asyncProgressTracking.enabled",
        "spark.hadoop.fs.defaultFS",
        "spark.hadoop.fs.file.impl",
        "spark.hadoop.fs.AbstractFileSystem.file.impl",
        "spark.python.use.daemon",
        "spark.python.daemon.module",
        "spark.python.worker.module",
        "spark.submit.deployMode",
        "spark.master",
    ],
)
def test_a_property_that_order_or_commit_depend_on_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(UsageError, match=f"The property {name} cannot be set: ") as caught:
        parse_properties(["spark.executor.cores=2", f"{name}=x"])
    assert caught.value.next_step == f"Leave {name} out."


def test_every_refused_property_says_why() -> None:
    assert all(why and not why.endswith(".") for _, why in REFUSED)
    assert {"spark.sql.adaptive.enabled", "spark.speculation"} <= {name for name, _, _ in SETTINGS}


def test_spark_writes_the_version_of_offsets_that_is_read() -> None:
    (version,) = [value for name, value, _ in SETTINGS if name == "spark.sql.streaming.offsetLog.formatVersion"]
    assert f"v{version}" == OFFSETS_VERSION


@pytest.mark.parametrize("text", ["spark.x", "executor.memory=4g", "", "=1", "spark.task.maxFailures=0"])
def test_a_text_that_is_not_a_property_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_properties([text])
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("master", "value", "failures"),
    [
        ("local", "8", 1),
        ("local[4]", None, 1),
        ("local[*, 3]", "8", 3),
        ("local[2,4]", None, 4),
        ("local-cluster[2,1,1024]", None, 4),
        ("spark://h:7077", "7", 7),
        ("yarn", None, 4),
    ],
)
def test_the_last_attempt_is_the_one_that_spark_makes_last(master: str, value: str | None, failures: int) -> None:
    assert task_failures_max(master, value) == failures


@pytest.mark.parametrize("master", ["local", "local-cluster[2,1,1024]", "spark://h:7077", "k8s://h", "yarn"])
def test_yarn_starts_without_the_raw_file_system_and_without_sockets_of_files(master: str) -> None:
    settings = {name: value for name, value, _ in settings_of(master)}
    is_yarn = master == "yarn"
    assert (FILES in settings) != is_yarn
    assert (settings["spark.python.unix.domain.socket.enabled"] == "false") == is_yarn
    assert ("spark.network.timeout" in settings) != master.startswith("local")


def test_the_archives_that_yarn_gets_are_those_of_spark() -> None:
    assert [zipfile.is_zipfile(path) for path in python_archives()] == [True, True]
