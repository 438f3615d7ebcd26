"""Several gateways with one real Spark: one whose log tasks map, one on another machine whose log they fetch over Arrow
Flight, and one that leaves, of which the sinks are notified.

The other machine is this one under another name: the gateway is started with `--machine` and another address. Its files
are on this machine, but only the gateway itself may read them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from procession.deployment.local_pipeline import COMMAND, announced_in
from procession.deployment.part_arguments import gateway_arguments
from procession.deployment.settings import Settings
from procession.gateway.control_client import ControlClient
from procession.gateway.listen_address import ADDRESS_FILE, addresses
from procession.supervisor.part import Part
from tests.walk.cluster import Cluster, read_json
from tests.walk.commands import command

APP = """
from procession import Pipeline

pipeline = Pipeline("gateways", parallelism=2)
lines = pipeline.source("lines").map(bytes.upper)
lines.sink("told", to="file:told")
lines.sink("deaf", to="{deaf}")
"""
FAR = "gateway-far"
ELSEWHERE = "127.0.0.2"
RECORDS = 2_000
KILLS = 3


class Several(Cluster):
    """The first gateway, a second on the same machine, and one on another; and a sink that may not understand
    WORKERS_LEFT."""

    def add(self) -> None:
        arguments = gateway_arguments(self.local.settings, self.directory, FAR, f"{ELSEWHERE}:0")
        arguments += ["--control", f"{ELSEWHERE}:0", "--flight", f"{ELSEWHERE}:0", "--machine", "elsewhere"]
        announced = announced_in(self.directory / FAR / ADDRESS_FILE)
        self.supervisor.start(Part(FAR, (*COMMAND, *arguments), is_ready=announced, stop_rank=2))
        assert self.supervisor.wait_ready()

    def pass_through(self, gateway: str, lines: list[bytes], rate: float | None = None) -> str:
        """Start a source that sends to this gateway only."""
        number = len(self.inputs)
        path = self.directory / f"input-{number}.txt"
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        self.inputs.append(path)
        to = str(addresses(self.directory / gateway)["listen"])
        argv = [*COMMAND, "source", "file", str(path), "--to", to, "--dir", str(self.directory)]
        argv += ["--rate", str(rate)] if rate else []
        self.supervisor.start(Part(f"source-{number}", tuple(argv)))
        return f"source-{number}"

    def until_sent(self, source: str) -> None:
        self.until(lambda: self.supervisor.is_done(source), f"the end of {source}")

    def fetched(self) -> int:
        with ControlClient(self.directory / FAR, timeout_s=10.0) as client:
            return int(client.status()["fetched_rows"])

    def standing(self) -> dict[str, str]:
        with ControlClient(self.directory / "gateway", timeout_s=10.0) as client:
            return {gateway["name"]: gateway["standing"] for gateway in client.gateways()}

    def said_by(self, sink: str) -> str:
        return (self.directory / "logs" / f"{sink}.log").read_text()


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    directory = tmp_path_factory.mktemp("gateways")
    deaf = Part(
        "deaf",
        (*COMMAND, "sink", "file", str(directory / "deaf"), "--listen", "127.0.0.1:0", "--open"),
        is_ready=announced_in(directory / "deaf" / "sink.json"),
        stop_rank=3,
    )
    settings = Settings(epoch_interval_s=0.02, epoch_records_max=3_000, gateways=2)
    with Several(directory, APP.format(deaf="127.0.0.1:1"), settings) as several:
        several.supervisor.start(deaf)
        assert several.supervisor.wait_ready()
        several.app.write_text(APP.format(deaf=read_json(directory / "deaf" / "sink.json")["listen"]))
        assert several.local.start()
        several.add()
        yield several


def upper(lines: list[bytes]) -> bytes:
    return b"".join(line.upper() + b"\n" for line in lines)


def test_tasks_fetch_from_another_machine_the_bytes_that_they_would_map(several: Several) -> None:
    lines = several.numbered(RECORDS)
    several.until_sent(several.pass_through("gateway", lines))
    mapped = several.committed("told")
    assert mapped == upper(lines)
    assert several.fetched() == 0, "nothing of it came over Flight"
    several.until_sent(several.pass_through(FAR, lines))
    assert several.committed("told") == mapped + mapped
    assert several.fetched() >= RECORDS, "each of its records was fetched"


def test_a_gateway_elsewhere_that_is_killed_again_and_again_loses_and_doubles_nothing(several: Several) -> None:
    before = several.committed("told")
    lines = several.numbered(RECORDS)
    source = several.pass_through(FAR, lines, rate=RECORDS / 3)
    for kill in range(1, KILLS + 1):
        share = len(upper(lines)) * kill // (KILLS + 2)
        several.until(lambda share=share: len(several.committed("told")) - len(before) > share, f"kill {kill}")  # type: ignore[misc]
        several.supervisor.kill(FAR)
        # Its offered records are committed while it is away. The next kill waits until it runs again.
        several.until(lambda kill=kill: several.restarts(FAR) >= kill, f"a start after kill {kill}")  # type: ignore[misc]
    several.until_sent(source)
    assert several.restarts(FAR) >= KILLS
    assert several.committed("told") == before + upper(lines)


def test_sinks_that_support_it_learn_which_gateways_left_also_after_a_reconnect(several: Several) -> None:
    leave = command("gateways", "leave", "gateway-1", "--dir", several.directory)
    leaving = subprocess.Popen(leave, stdout=subprocess.DEVNULL)
    try:
        several.until(lambda: several.supervisor.is_done("gateway-1"), "gateway-1 to leave")
        assert leaving.wait(60) == 0
    finally:
        leaving.kill()
        leaving.wait()
    assert set(several.standing()) == {"gateway-0", FAR}
    event = "sink.workers_left"
    several.until(lambda: several.said_by("sink-0").count(event) == 1, "the sink to be told")
    assert "gateway-1" in several.said_by("sink-0").partition(event)[2].partition("\n")[0]
    several.supervisor.kill("sink-0")
    several.until(lambda: several.said_by("sink-0").count(event) == 2, "the sink to be told when it is back")
    before = several.committed("told")
    lines = several.numbered(10)
    several.until_sent(several.pass_through("gateway", lines))
    assert several.committed("told") == before + upper(lines)
    assert event not in several.said_by("deaf"), "a sink that may not know the word never hears it"
