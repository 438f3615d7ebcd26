"""The address of a master, and the errors for one that does not answer or gives no executor."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import pytest

from procession.errors import ConfigError, UsageError
from procession.spark.master import (
    GRACE_S,
    PATIENCE_S,
    REPEAT_S,
    YARN_FILE,
    ExecutorNotice,
    check_master,
    first_notice,
    has_executors,
    unreachable,
)

TAKEN = (
    "local",
    "local[4]",
    "local[*]",
    "local[2,4]",
    "local[*, 4]",
    "local-cluster[2,1,1024]",
    "yarn",
    "spark://h:7077",
    "spark://[::1]:7077",
    "spark://a:1,b:2",
    "k8s://https://h:6443",
)


@pytest.mark.parametrize("master", TAKEN)
def test_all_forms_of_a_master_that_spark_knows_are_accepted(
    master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / YARN_FILE).touch()
    monkeypatch.setenv("YARN_CONF_DIR", str(tmp_path))
    check_master(master)
    assert has_executors(master) == (not master.startswith("local") or master.startswith("local-cluster"))


@pytest.mark.parametrize(
    "master",
    ["", "foo", "spark://", "spark://h", "spark:h:1", "local[", "local-cluster", "local-cluster[2,1]", "k8s://"],
)
def test_a_text_that_is_not_a_master_address_is_refused_with_the_allowed_forms(master: str) -> None:
    with pytest.raises(UsageError, match="is not a valid address of a Spark master") as caught:
        check_master(master)
    assert "spark://HOST:PORT" in caught.value.next_step


@pytest.mark.parametrize("directory", ["", "missing"])
def test_yarn_is_refused_if_the_environment_does_not_say_where_it_is(
    directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / directory))
    with pytest.raises(ConfigError, match="Neither HADOOP_CONF_DIR nor YARN_CONF_DIR names a directory"):
        check_master("yarn")


def test_a_master_that_does_not_listen_is_reported_with_the_reason() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        assert unreachable(f"spark://127.0.0.1:{port}") is None
        assert unreachable(f"spark://127.0.0.1:1,127.0.0.1:{port}") is None, "one reachable address is enough"
    assert unreachable(f"spark://127.0.0.1:{port}") == "Connection refused"
    assert unreachable("yarn") is None, "its address is unknown"


def test_a_user_gets_the_note_within_ten_seconds_of_the_start_of_the_command_not_of_spark() -> None:
    due = first_notice(command_started=100.0, driver_started=102.0)
    assert 100.0 + PATIENCE_S == due <= 108.0
    notice = ExecutorNotice("spark://h:1", due, now=105.0)
    assert notice.report(0, due - 0.01) is None
    assert "spark://h:1 has assigned no executor yet; still waiting: start a worker" in (notice.report(0, due) or "")


def test_a_driver_that_is_started_later_has_its_own_time_limit() -> None:
    due = first_notice(command_started=100.0, driver_started=500.0)
    assert 500.0 < due < 510.0


def test_executors_have_a_moment_to_come_after_a_slow_start_of_spark() -> None:
    notice = ExecutorNotice("spark://h:1", 107.0, now=120.0)
    assert notice.report(0, 120.0) is None
    assert notice.report(0, 120.0 + GRACE_S) is not None


def test_the_note_is_repeated_and_executors_that_come_and_leave_are_reported() -> None:
    notice = ExecutorNotice("local-cluster[2,1,1024]", 107.0, now=105.0)
    assert notice.report(1, 106.0) is None, "nobody asked"
    message = notice.report(0, 106.0 + PATIENCE_S)
    assert message is not None
    assert "executors/work" in message
    assert notice.report(0, 106.5 + PATIENCE_S) is None
    assert notice.report(0, 106.0 + PATIENCE_S + REPEAT_S) == message
    assert notice.report(2, 200.0) == "Spark's master local-cluster[2,1,1024] has assigned an executor"
    assert notice.report(2, 300.0) is None
