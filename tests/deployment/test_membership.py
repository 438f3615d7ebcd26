"""`procession gateways`: how an operator lists several gateways, adds one and removes one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from procession.deployment.membership import leader_of, let_go, listed, next_name, run_added_gateway, table
from procession.deployment.settings import load_settings
from procession.errors import ConfigError, UsageError
from procession.gateway.control_client import ControlClient
from procession.sos.replicated_files import MARKER
from procession.storage.secret import Secret, make_secret
from tests.gateway.gateway_process import GatewayProcess

COMMAND = (sys.executable, "-m", "procession", "gateways")
PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("pipeline")
    shown = {"cookie": make_secret(directory, Secret.PRODUCERS)}
    control = make_secret(directory, Secret.CONTROL)
    first = GatewayProcess(directory / "gateway", {"limits": shown, "control_cookie": control}).start()
    yield directory
    first.kill()


def connected(pipeline: Path) -> dict[str, bool]:
    return {gateway["name"]: gateway["is_connected"] for gateway in listed(pipeline / "gateway", b"")}


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.05)


def test_a_gateway_is_added_listed_and_removed(pipeline: Path) -> None:
    join = [*COMMAND, "join", "--dir", str(pipeline), "--metrics", "127.0.0.1:0"]
    one_more = subprocess.Popen(join, stdout=subprocess.PIPE, text=True)
    try:
        until(lambda: connected(pipeline) == {"gateway-0": True, "gateway-1": True}, "it to join")
        shown = table(listed(pipeline / "gateway", b"")).splitlines()
        assert [line.split()[0] for line in shown] == ["name", shown[1].split()[0], "gateway-0", "gateway-1"]
        address = pipeline / "gateway-1" / "gateway.json"
        until(address.exists, "its address")  # it joins before it writes the file
        metrics = json.loads(address.read_text())["metrics"]
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=PATIENCE_S) as answer:
            assert b'procession_gateway_sessions{gateway="gateway-1"} 0.0' in answer.read()
        leave = [*COMMAND, "leave", "gateway-1", "--dir", str(pipeline)]
        done = subprocess.run(leave, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert (done.returncode, done.stdout) == (0, "gateway-1 has left\n"), done.stderr
        assert one_more.wait(PATIENCE_S) == 0, "the supervisor runs it until it has left"
    finally:
        one_more.kill()
        one_more.wait()
    assert one_more.stdout is not None
    assert "gateway-1 accepts records" in one_more.stdout.read()
    assert connected(pipeline) == {"gateway-0": True}


def test_a_gateway_that_joins_without_a_name_gets_no_number_of_one_that_left(pipeline: Path) -> None:
    join = [*COMMAND, "join", "--dir", str(pipeline)]
    for joined in range(2):
        used = {*connected(pipeline), *departed(pipeline)}
        one_more = subprocess.Popen(join, stdout=subprocess.DEVNULL)
        try:
            until(lambda: len(connected(pipeline)) == 2 and all(connected(pipeline).values()), "it to join")
            (name,) = connected(pipeline).keys() - {"gateway-0"}
            assert name not in used, joined
            let_go(pipeline / "gateway", b"", name, PATIENCE_S)
            assert one_more.wait(PATIENCE_S) == 0
        finally:
            one_more.kill()
            one_more.wait()


def departed(pipeline: Path) -> list[str]:
    with ControlClient(pipeline / "gateway", b"", PATIENCE_S) as client:
        return list(client.departed())


def test_an_impossible_change_of_members_is_reported_in_one_sentence_with_a_next_step(pipeline: Path) -> None:
    for name, why in (("gateway-0", "leads, and cannot leave"), ("gateway-7", "is not one of this pipeline's")):
        with pytest.raises(ConfigError, match=why) as caught:
            let_go(pipeline / "gateway", b"", name, 1.0)
        assert caught.value.next_step
    for directory, address in ((None, None), (pipeline, "127.0.0.1:1")):
        with pytest.raises(UsageError, match="not clear which pipeline"):
            leader_of(directory, address)
    with pytest.raises(ConfigError, match="is not that of a pipeline that was run"):
        run_added_gateway(pipeline / "nothing", "", "127.0.0.1:0", None, load_settings(), print)
    for listen, metrics in (("here", None), ("127.0.0.1:0", "there")):
        with pytest.raises(UsageError, match="is not an address") as caught:
            run_added_gateway(pipeline, "", listen, metrics, load_settings(), print)
        assert caught.value.next_step


@pytest.mark.parametrize(
    ("used", "name"),
    [
        (["gateway-0"], "gateway-1"),
        (["gateway-0", "gateway-1", "gateway-3"], "gateway-4"),
        (["gateway-0", "north"], "gateway-1"),
    ],
)
def test_a_gateway_without_a_name_gets_a_number_that_was_never_used(used: list[str], name: str) -> None:
    assert next_name(used) == name


def test_a_gateway_does_not_join_a_pipeline_with_replicas(pipeline: Path) -> None:
    marker = pipeline / MARKER
    marker.write_text("{}")
    try:
        with pytest.raises(UsageError, match="has replicas"):
            run_added_gateway(pipeline, "", "127.0.0.1:0", None, load_settings(), print)
    finally:
        marker.unlink()
