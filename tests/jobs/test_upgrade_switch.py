"""The switch of a running pipeline up to the stop of the old program, without Spark."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from procession import Pipeline
from procession.api.app_settings import variable_of
from procession.deployment.local_pipeline import DRIVER, LocalPipeline
from procession.deployment.settings import Settings
from procession.errors import ConfigError
from procession.exit_status import Status
from procession.jobs import upgrade_switch
from procession.jobs.upgrade_switch import (
    STATUS,
    UpgradeRequest,
    UpgradeSwitch,
    check_sinks,
    may_take,
    settings_here,
)
from procession.merge.event_time import DeclaredOrder
from procession.savepoints.savepoint_create import create
from procession.storage.log_ranges import LogOffset
from procession.supervisor.part import Part
from procession.supervisor.restart_policy import RestartPolicy
from procession.supervisor.supervisor import PartFailed, Supervisor
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.producer import Producer
from tests.savepoints.test_upgrade_steps import Place
from tests.supervisor.started import Started
from tests.walk.cluster import wait_for

NOBODY: Any = Started()
WAITS = ("/bin/sh", "-c", "sleep 1000")


def test_a_new_sink_that_cannot_start_leaves_the_old_program_running(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (tmp_path / "copies").write_text("not a directory")
    with Supervisor(tmp_path / "logs", RestartPolicy(deaths_max=1)) as supervisor:
        old = LocalPipeline(supervisor, tmp_path / "old.py", place.old.graph, place.directory, tmp_path, Settings())
        for directory, name in old.sink_parts.items():
            supervisor.start(Part(name, (*WAITS, str(directory))))
        supervisor.start(Part(DRIVER, WAITS))
        supervisor.wait_ready()
        before = supervisor.names, supervisor.pid(DRIVER)
        UpgradeRequest("1", str(tmp_path / "new.py"), "before").write(place.directory)
        now = UpgradeSwitch(old, lambda sentence: None).perform()
        status = json.loads((place.directory / STATUS).read_text())
        assert now is old
        assert status["state"] == "failed"
        assert "A new sink could not be started, and the old program goes on" in status["sentence"]
        assert (supervisor.names, supervisor.pid(DRIVER)) == before
    assert place.accepted() == ["old"]


@pytest.mark.parametrize(("sink", "is_new"), [("sink-1", True), ("sink-0", False)])
def test_a_new_sink_that_fails_before_the_first_commit_causes_a_rollback(
    tmp_path: Path, sink: str, is_new: bool
) -> None:
    place = Place(tmp_path)
    with Supervisor(tmp_path / "logs") as supervisor:
        new = LocalPipeline(supervisor, tmp_path / "new.py", place.new.graph, place.directory, tmp_path, Settings())
        supervisor.start(Part(DRIVER, WAITS))
        supervisor.start(Part(sink, ("/bin/sh", "-c", f"echo error: no such table; exit {Status.ACT}")))
        watched = UpgradeSwitch(new, lambda sentence: None)
        if is_new:
            assert "no such table" in str(watched._failure(0, {tmp_path / "copies": "sink-1"}))
        else:
            with pytest.raises(PartFailed, match="no such table"):
                watched._failure(0, {tmp_path / "copies": "sink-1"})


def test_a_gateway_that_does_not_answer_may_have_waiting_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade_switch, "QUIET_S", 0.2)
    monkeypatch.setattr(upgrade_switch, "FIRST_COMMIT_S", 1.0)
    place = Place(tmp_path)
    with Supervisor(tmp_path / "logs") as supervisor:
        new = LocalPipeline(supervisor, tmp_path / "new.py", place.new.graph, place.directory, tmp_path, Settings())
        supervisor.start(Part(DRIVER, WAITS))
        supervisor.wait_ready()
        assert UpgradeSwitch(new, lambda sentence: None)._failure(0, {}) == "it committed nothing within 1 seconds"


@pytest.mark.parametrize("declared", [None, DeclaredOrder(frozenset({1, 2}))])
def test_the_switch_does_not_wait_for_records_behind_a_silent_stream(
    tmp_path: Path, declared: DeclaredOrder | None
) -> None:
    place = Place(tmp_path)
    local = LocalPipeline(NOBODY, tmp_path / "new.py", place.new.graph, tmp_path / "other", tmp_path, Settings())
    progress = UpgradeSwitch(local, lambda sentence: None)._progress()
    assert may_take(progress, 0), "nobody answers"
    (tmp_path / "other").mkdir()
    gateway = GatewayProcess(tmp_path / "other" / "gateway", {"declared": declared}).start()
    try:
        assert not may_take(progress, 0)
        with Producer(gateway.listen) as producer, gateway.client() as client:
            producer.hello()
            for stream in (1, 2):
                producer.notify(stream)
            producer.messages(1, range(5))
            wait_for(lambda: client.status()["records_in"] == 5, "the records")
            client.fence(1, LogOffset())
            client.offer(1, 0, 100, 1 << 20)  # as a driver asks for an epoch
            assert may_take(progress, 0) == (declared is None)
            producer.messages(2, range(5))  # now the records of both streams can be offered
            wait_for(lambda: may_take(progress, 0), "that an epoch can take them")
    finally:
        gateway.kill()


def test_a_savepoint_that_cannot_be_made_is_refused_before_the_old_program_stops(tmp_path: Path) -> None:
    place = Place(tmp_path)
    create(place.directory, "before")
    local = LocalPipeline(NOBODY, tmp_path / "old.py", place.old.graph, place.directory, tmp_path, Settings())
    for name in ("before", "../before"):
        UpgradeRequest("1", str(tmp_path / "new.py"), name).write(place.directory)
        assert UpgradeSwitch(local, lambda sentence: None).perform() is local
        assert json.loads((place.directory / STATUS).read_text())["state"] == "failed"


def test_a_full_disk_during_the_switch_fails_the_upgrade_and_the_old_program_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    place = Place(tmp_path)
    with Supervisor(tmp_path / "logs") as supervisor:
        old = LocalPipeline(supervisor, tmp_path / "old.py", place.old.graph, place.directory, tmp_path, Settings())
        for directory, name in old.sink_parts.items():
            supervisor.start(Part(name, (*WAITS, str(directory))))
        supervisor.start(Part(DRIVER, WAITS))
        supervisor.wait_ready()
        monkeypatch.setattr(UpgradeSwitch, "_start_sinks", lambda *_: None)
        monkeypatch.setattr(UpgradeSwitch, "_prepare", lambda *_: None)
        monkeypatch.setattr(upgrade_switch, "create", full)
        UpgradeRequest("1", str(tmp_path / "new.py"), "before").write(place.directory)
        assert UpgradeSwitch(old, lambda sentence: None).perform() is old
        status = json.loads((place.directory / STATUS).read_text())
        assert (status["state"], "No space left on device" in status["sentence"]) == ("failed", True)
        supervisor.wait_ready(DRIVER)
        assert supervisor.pid(DRIVER) is not None
    assert place.accepted() == ["old"]


def test_a_setting_with_another_value_than_in_the_pipeline_that_runs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    local = LocalPipeline(NOBODY, tmp_path / "old.py", place.old.graph, place.directory, tmp_path, Settings())
    monkeypatch.setenv(variable_of("limit"), "5")
    UpgradeRequest("1", str(tmp_path / "new.py"), "before", settings_here()).write(place.directory)
    monkeypatch.setenv(variable_of("limit"), "6")  # as in the process of `run`
    assert UpgradeSwitch(local, lambda sentence: None).perform() is local
    status = json.loads((place.directory / STATUS).read_text())
    assert "setting 'limit' has another value in the pipeline that runs" in status["sentence"]


def test_a_sink_that_stays_is_not_given_another_url_while_its_process_runs(tmp_path: Path) -> None:
    def local(url: str) -> LocalPipeline:
        pipeline = Pipeline("p")
        pipeline.source("words", codec="text").sink("out", to=url, codec="text")
        return LocalPipeline(NOBODY, tmp_path / "app.py", pipeline.graph(), tmp_path, tmp_path, Settings())

    old = local("kafka://localhost:9092/topic")
    check_sinks(old, replace(old, app=tmp_path / "new.py"))
    check_sinks(local("file:one"), local("file:two"))  # another directory has a process of its own
    with pytest.raises(ConfigError, match="Sink 'out' writes to another URL"):
        check_sinks(old, local("kafka://localhost:9092/other"))


def test_the_switch_does_not_wait_for_a_pipeline_of_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade_switch, "ANSWER_S", 0.1)
    monkeypatch.setattr(UpgradeRequest, "write", lambda *_: None)  # taken at once
    monkeypatch.setattr(upgrade_switch, "holder", lambda _: 1)
    with pytest.raises(ConfigError, match="started with another version of Procession"):
        list(upgrade_switch.request_upgrade(tmp_path, tmp_path / "new.py", "before"))
