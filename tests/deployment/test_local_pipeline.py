"""The gateways of a local pipeline: their number, their arguments, and which can join."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from procession.api.pipeline import Pipeline
from procession.cli.main import app
from procession.commit.checkpoint import Checkpoint
from procession.commit.log_locations import abandon
from procession.deployment.local_pipeline import STARTED, LocalPipeline
from procession.deployment.membership import listed
from procession.deployment.part_arguments import gateway_arguments
from procession.deployment.settings import Settings, load_settings
from procession.driver.spark_process import COMMAND_STARTED
from procession.errors import ConfigError, UsageError
from procession.exit_status import Status
from procession.planner.graph import Graph
from procession.storage.driver_claim import checkpoint_of
from procession.storage.secret import Secret, find_secret, path_of
from procession.supervisor.part import Part
from tests.supervisor.started import Started
from tests.walk.cluster import read_json, wait_for
from tests.walk.commands import running

WRONG = {
    "0": "greater than or equal to 1",
    "-1": "greater than or equal to 1",
    "65": "less than or equal to 64",
    "x": "a valid integer",
    "1.5": "a valid integer",
    "": "a valid integer",
}


@pytest.mark.parametrize("number", WRONG)
@pytest.mark.parametrize("arguments", [["run", "app.py"], ["demo"]], ids=["run", "demo"])
def test_an_invalid_number_of_gateways_is_reported_in_one_sentence_before_anything_starts(
    arguments: list[str], number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [*arguments, "--gateways", number], env={"TERM": "dumb", "COLUMNS": "200"})
    assert done.exit_code == Status.USAGE
    assert done.stderr.count("Invalid value for '--gateways': ") == 1, done.stderr
    assert WRONG[number] in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [0, 65, "x"])
def test_a_number_of_gateways_in_the_environment_or_the_file_is_checked_too(
    value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROCESSION_GATEWAYS", str(value))
    with pytest.raises(ConfigError, match="setting 'gateways' is invalid: ") as caught:
        load_settings()
    assert "PROCESSION_GATEWAYS" in caught.value.next_step
    monkeypatch.delenv("PROCESSION_GATEWAYS")
    (tmp_path / "procession.toml").write_text(f"gateways = {json.dumps(value)}\n")
    with pytest.raises(ConfigError, match="setting 'gateways' is invalid: "):
        load_settings()


def started(directory: Path, listen: str = "127.0.0.1:7100", **chosen: Any) -> dict[str, str]:
    """Return the names and arguments of the parts that a run would start."""
    supervisor = Started()
    settings = Settings.model_validate(chosen)
    local = LocalPipeline(supervisor, directory / "app.py", Graph("p", (), 1), directory, directory, settings, listen)  # type: ignore[arg-type]
    local.start()
    return supervisor.command_lines


def test_the_given_number_of_gateways_start_and_all_others_join_the_first(tmp_path: Path) -> None:
    arguments = started(tmp_path, gateways=3)
    assert list(arguments) == ["gateway", "gateway-1", "gateway-2", "driver"]
    first = f"gateway --dir {tmp_path}/gateway --listen 127.0.0.1:7100 --checkpoint"
    assert first in arguments["gateway"], "by default only this machine can connect"
    for name in ("gateway-1", "gateway-2"):
        other = f"gateway --dir {tmp_path}/{name} --listen 127.0.0.1:0"
        checkpoint = f"--checkpoint {tmp_path}/checkpoint"
        assert f"{other} {checkpoint} --join {tmp_path}/gateway --name {name} --lag" in arguments[name]


def test_the_control_address_of_the_first_gateway_sets_the_host_of_the_others(tmp_path: Path) -> None:
    arguments = started(tmp_path, "192.0.2.1:7100", gateways=2, control="192.0.2.1:7101", metrics="127.0.0.1:9100")
    assert "--control 192.0.2.1:7101 --lag" in arguments["gateway"]
    assert "--listen 192.0.2.1:7100 " in arguments["gateway"]
    assert "--metrics 127.0.0.1:9100" in arguments["gateway"]
    assert "--control 192.0.2.1:0 --join" in arguments["gateway-1"]
    assert "--listen 192.0.2.1:0 " in arguments["gateway-1"]
    assert "--metrics 127.0.0.1:9101" in arguments["gateway-1"]
    with pytest.raises(UsageError, match="'here' is not an address"):
        started(tmp_path, control="here")


def test_a_gateway_with_another_directory_joins_at_the_given_address(tmp_path: Path) -> None:
    """It is like a gateway on another machine: it knows the first one only by this address, which is not the
    default."""
    settings = Settings.model_validate({"control": "127.0.0.2:0"})
    leader, other = tmp_path / "pipeline" / "gateway", tmp_path / "elsewhere"
    with running(*gateway_arguments(settings, leader.parent, "gateway", "127.0.0.1:0"), cwd=tmp_path) as first:
        wait_for((leader / "gateway.json").exists, "the first gateway", lambda: first.said)
        control = read_json(leader / "gateway.json")["control"]
        assert control.startswith("127.0.0.2:")
        arguments = [
            "gateway",
            "--dir",
            other,
            "--listen",
            "127.0.0.3:0",
            "--control",
            "127.0.0.3:0",
            "--join",
            control,
        ]
        secret = find_secret(leader.parent, Secret.CONTROL)
        for option, name in (("--cookie-file", Secret.PRODUCERS), ("--control-cookie-file", Secret.CONTROL)):
            arguments += [option, path_of(leader.parent, name)]
        with running(*arguments, cwd=tmp_path) as second:

            def has_joined() -> bool:
                return [gateway["is_connected"] for gateway in listed(control, secret)] == [True, True]

            wait_for(has_joined, "the second gateway to join", lambda: f"{first.said}\n{second.said}")
            assert listed(control, secret)[1]["control"].startswith("127.0.0.3:")


class Unready(Started):
    """A supervisor of a command that is stopped before the sinks are ready, so that no driver starts."""

    def wait_ready(self, *_: str) -> bool:
        return False


@pytest.mark.parametrize(("to", "is_told"), [("kafka://a/alerts", True), ("file:out", False)])
def test_a_sink_that_checks_the_order_gets_the_order_that_the_pipeline_keeps(
    tmp_path: Path, to: str, is_told: bool
) -> None:
    pipeline = Pipeline("p", order="stream")
    pipeline.source("orders").sink("alerts", to=to)
    supervisor: Any = Unready()
    LocalPipeline(supervisor, tmp_path / "app.py", pipeline.graph(), tmp_path, tmp_path, Settings()).start()
    assert ("--order stream" in supervisor.command_lines["sink-0"]) == is_told


class Timed(Started):
    """Records the start time of the command and the time-out that each part receives."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, str | None] = {}
        self.ready_timeout_s: dict[str, float] = {}

    def start(self, part: Part) -> None:
        super().start(part)
        self.told[part.name] = part.env.get(COMMAND_STARTED)
        self.ready_timeout_s[part.name] = part.ready_timeout_s


def test_a_driver_gets_the_start_time_of_the_command(tmp_path: Path) -> None:
    supervisor: Any = Timed()
    LocalPipeline(supervisor, tmp_path / "app.py", Graph("p", (), 1), tmp_path, tmp_path, Settings()).start()
    began = supervisor.told["driver"]
    assert began is not None
    assert float(began) == STARTED < time.monotonic()


def test_an_abandoned_gateway_is_replaced_by_a_new_one_with_another_name(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path)
    Checkpoint.claim(checkpoint, name="p", fingerprint="f")
    abandon(checkpoint, "gateway-1", "its identity")
    assert list(started(tmp_path, gateways=3)) == ["gateway", "gateway-2", "gateway-3", "driver"]


@pytest.mark.parametrize(
    ("master", "is_patient"),
    [(None, False), ("local-cluster[1,1,1024]", False), ("spark://h:7077", True), ("yarn", True)],
)
def test_a_driver_may_wait_for_the_executors_of_a_cluster_for_any_time(
    tmp_path: Path, master: str | None, is_patient: bool
) -> None:
    supervisor: Any = Timed()
    settings = Settings(master=master)
    LocalPipeline(supervisor, tmp_path / "app.py", Graph("p", (), 1), tmp_path, tmp_path, settings).start()
    assert math.isinf(supervisor.ready_timeout_s["driver"]) == is_patient


class Looking(Started):
    """Records which secrets exist when a part starts."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self.found: dict[str, set[Secret]] = {}

    def start(self, part: Part) -> None:
        super().start(part)
        self.found[part.name] = {one for one in Secret if path_of(self._directory, one).exists()}


def test_the_shared_secrets_of_gateways_exist_before_the_first_one_starts(tmp_path: Path) -> None:
    supervisor: Any = Looking(tmp_path)
    graph = Graph("p", (), 1)
    LocalPipeline(supervisor, tmp_path / "app.py", graph, tmp_path, tmp_path, Settings(gateways=3)).start()
    for gateway in ("gateway", "gateway-1", "gateway-2"):
        assert {Secret.CONTROL, Secret.PRODUCERS} <= supervisor.found[gateway]


class Waiting(Started):
    """Records the order in which parts are started and waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def replace(self, name: str, part: Part) -> None:
        super().replace(name, part)
        self.events.append(f"{name} takes its turn")

    def wait_ready(self, *names: str) -> bool:
        self.events.append(f"{', '.join(names)} ready")
        return True


def test_what_need_not_wait_for_the_driver_starts_beside_it(tmp_path: Path) -> None:
    supervisor: Any = Waiting()
    local = LocalPipeline(supervisor, tmp_path / "app.py", Graph("p", (), 1), tmp_path, tmp_path, Settings())
    local.start(lambda: supervisor.events.append("beside"))
    assert supervisor.events == ["gateway ready", "driver takes its turn", "beside", "driver ready"]


def test_a_pipeline_is_new_until_its_gateway_has_a_directory(tmp_path: Path) -> None:
    supervisor: Any = Started()
    local = LocalPipeline(supervisor, tmp_path / "app.py", Graph("p", (), 1), tmp_path, tmp_path, Settings())
    assert local.is_new
    local.gateway_directory.mkdir()
    assert not local.is_new
