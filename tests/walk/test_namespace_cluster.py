"""A pipeline on hosts that share only a network: driver, executors, gateway and sink are separate. Whatever fails, the
output is that of the same pipeline in one process."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from procession import Pipeline
from procession.cluster.host_faults import HostFaults, executors_on, loss_of
from procession.cluster.namespace_cluster import NamespaceCluster
from procession.cluster.namespace_hosts import kill_host, set_link
from procession.commit.emitter_server import ANNOUNCEMENT, announced_address
from procession.commit.spark_log import SparkLog
from procession.deployment.cluster_pipeline import driver_directory, ends_directory
from procession.deployment.local_pipeline import EMITTER
from procession.driver.epoch_log import EpochTail
from procession.exit_status import Status
from procession.storage.driver_claim import checkpoint_of, read_claim
from procession.testing import run as run_in_process
from procession.verify.sink_outputs import committed_output
from tests.systems.namespace_cluster import needs_cluster
from tests.walk.cluster import committed, wait_for
from tests.walk.commands import Running, run, running

pytestmark = needs_cluster

RECORDS = 3000
EPOCH_RECORDS = 100
START_PATIENCE_S = 300.0
"""It ends a hang. On a busy machine Spark needs minutes to start."""
FAULTS_TIMEOUT_S = 900.0
"""It ends a hang. A run with all faults of hosts takes 100 to 200 s on two busy cores, because Spark starts again."""
WORDS = [json.dumps({"number": number, "letter": "abcdefg"[number % 7]}) for number in range(RECORDS)]

HEAD = """
from pathlib import Path
from procession import Pipeline, aggregates, tables, windows

def letter(word):
    return word["letter"]

pipeline = Pipeline("{name}", parallelism=2)
words = pipeline.source("words", codec="json")
"""
APPS = {
    "stateless": """
words.map(lambda word: f"{word['number']} {word['letter'].upper()}").sink("output", to="file:output", codec="text")
""",
    "parted": """
lines = words.map(lambda word: f"{word['letter']} {word['number']}").key_by(lambda line: line[:1])
lines.sink("output", to="file:output", codec="text", order="key", connections=3)
""",
    "keyed": """
words.key_by(letter).rolling(aggregates.count()).map(str).sink("output", to="file:output", codec="text")
""",
    "windowed": """
counted = words.window(windows.tumbling(10), aggregates.count(), key=letter, time=lambda word: word["number"])
counted.map(str).sink("output", to="file:output", codec="text")
""",
    "joined": """
letters = tables.of_json_lines(Path(__file__).parent / "letters.jsonl", by="letter")
named = words.rebalance().hash_join(letters, key=letter, join=lambda word, row: f"{word['number']} {row['name']}")
named.sink("output", to="file:output", codec="text")
""",
}


class Job:
    """An app in a directory, and the output that its driver on the cluster has committed so far."""

    def __init__(self, cluster: NamespaceCluster, place: Path, kind: str, case: str) -> None:
        self.cluster = cluster
        self.place = place
        self.name = f"{kind}-{case}"
        (place / "app.py").write_text(HEAD.format(name=self.name) + APPS[kind])
        (place / "input.txt").write_text("".join(f"{word}\n" for word in WORDS))
        rows = ({"letter": letter, "name": letter * 3} for letter in "abcdefg")
        (place / "letters.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        self._tail = EpochTail(driver_directory(cluster, self.name) / "epochs.jsonl")
        self._committed = 0

    @property
    def arguments(self) -> tuple[str, ...]:
        limits = ("--epoch-records-max", str(EPOCH_RECORDS), "--epoch-interval-s", "0")
        return ("run", "app.py", "--input", "input.txt", "--cluster", "--cluster-name", self.cluster.name, *limits)

    def committed(self) -> int:
        for line in self._tail.new():
            self._committed = line["records_in"]
        return self._committed

    def is_epoch_open(self) -> bool:
        """Whether an epoch has begun and is not decided."""
        checkpoint = checkpoint_of(driver_directory(self.cluster, self.name))
        log = SparkLog(checkpoint / f"{read_claim(checkpoint):010d}")
        return log.offered > log.committed

    def await_middle(self, command: Running) -> None:
        """Wait until some epochs are committed and another one is open, and check that most of the input is still to
        come."""

        def wait(holds: Callable[[], bool], what: str) -> None:
            wait_for(holds, what, lambda: command.said, patience_s=START_PATIENCE_S)

        wait(lambda: "ready: connectors send to" in command.said, "the start")
        wait(lambda: self.committed() > 0, "the first epoch")
        wait_for(lambda: self.committed() >= 3 * EPOCH_RECORDS, "an epoch", lambda: command.said)
        assert self.committed() < RECORDS // 2
        wait_for(self.is_epoch_open, "an open epoch", lambda: command.said)

    def output(self) -> bytes:
        return b"".join(committed_output(ends_directory(self.cluster, self.name) / "output", None))

    @property
    def emitter(self) -> Path:
        return ends_directory(self.cluster, self.name) / EMITTER

    def output_of(self, connection: int) -> list[bytes]:
        """Return the committed lines of one connection of the sink."""
        place = ends_directory(self.cluster, self.name) / "output"
        return committed(place / f"{self.name}-output-{connection}").splitlines()

    def expected(self) -> bytes:
        spec = importlib.util.spec_from_file_location(f"app_{self.place.name}", self.place / "app.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        pipeline: Pipeline = module.pipeline
        return run_in_process(pipeline, {"words": [json.loads(word) for word in WORDS]}).bytes["output"]


@pytest.mark.timeout(900)
def test_a_keyed_pipeline_on_four_hosts_survives_the_loss_of_an_executor(
    cluster_of_hosts: NamespaceCluster, tmp_path: Path
) -> None:
    job = Job(cluster_of_hosts, tmp_path, "keyed", "executor")
    with running(*job.arguments, cwd=tmp_path) as command:
        job.await_middle(command)
        first, second = (executors_on(host) for host in cluster_of_hosts.workers)
        assert first, "each worker has an executor"
        assert second
        os.kill(first[0], signal.SIGKILL)
        assert command.wait(FAULTS_TIMEOUT_S) == Status.DONE, command.said
    assert job.output() == job.expected()
    assert not list(cluster_of_hosts.head.directory.glob("*/*/gateway")), "the gateway is on another host"
    for host in cluster_of_hosts.workers:
        assert list(host.directory.glob("service/states/*/*.state")), "tasks ran on this host"


def test_an_emitter_beside_the_sinks_sends_what_the_driver_does_not_fetch(
    cluster_of_hosts: NamespaceCluster, tmp_path: Path
) -> None:
    job = Job(cluster_of_hosts, tmp_path, "parted", "emitter")
    fetched = 0
    with running(*job.arguments, cwd=tmp_path) as command:
        job.await_middle(command)
        status = driver_directory(cluster_of_hosts, job.name) / "driver-status.json"
        fetched = json.loads(status.read_text())["fetched_bytes"]
        address = announced_address(job.emitter)
        assert address.host == cluster_of_hosts.edge.address
        os.kill(json.loads((job.emitter / ANNOUNCEMENT).read_text())["pid"], signal.SIGKILL)
        assert command.wait() == Status.DONE, command.said
    assert "emitter was ended by signal 9" in command.said
    assert fetched == 0
    found = [job.output_of(number) for number in range(3)]
    assert sum(map(bool, found)) > 1, "several connections have records"
    for letter in "abcdefg":
        of_letter = [
            b"%s %d" % (letter.encode(), number) for number in range(RECORDS) if "abcdefg"[number % 7] == letter
        ]
        (lines,) = [lines for lines in found if any(line.startswith(letter.encode()) for line in lines)]
        assert [line for line in lines if line.startswith(letter.encode())] == of_letter, "in one connection, in order"
    assert sum(map(len, found)) == RECORDS


def services_of(cluster: NamespaceCluster) -> dict[str, dict[str, int]]:
    """The process ids of each host's services."""
    return {row["host"]: row["services"] for row in cluster.status()}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [18001, 18002])
def test_the_demo_is_clean_although_everything_on_the_hosts_is_killed_and_links_are_cut(
    cluster_of_hosts: NamespaceCluster, tmp_path: Path, seed: int
) -> None:
    workers = cluster_of_hosts.workers
    named = ("--cluster", "--cluster-name", cluster_of_hosts.name, "--crash", "--seed", str(seed))
    before = services_of(cluster_of_hosts)
    with running("demo", *named, "--records", "20000", "--json", cwd=tmp_path) as command:
        assert command.process.wait(FAULTS_TIMEOUT_S) == Status.DONE, command.said
    figures = json.loads(command.said.strip().splitlines()[-1])
    assert figures["outcome"] == "clean", figures
    assert sorted(figures["host_faults"]) == sorted(HostFaults(cluster_of_hosts, lambda _: None).names)
    for host in (workers[0], cluster_of_hosts.edge):
        assert loss_of(host) in figures["host_faults"]
        assert f"SIGKILL to {loss_of(host)}" in command.said
    after = services_of(cluster_of_hosts)
    for host in workers:
        assert before[host.name]["host-service"] != after[host.name]["host-service"], "it was killed"
    assert before[workers[0].name]["worker"] != after[workers[0].name]["worker"]
    assert all(row["is_linked"] and all(row["services"].values()) for row in cluster_of_hosts.status())


@pytest.mark.slow
def test_the_demo_on_hosts_is_clean_and_leaves_nothing_in_their_directories(
    cluster_of_hosts: NamespaceCluster, tmp_path: Path
) -> None:
    done = run(
        "demo", "--cluster", "--cluster-name", cluster_of_hosts.name, "--records", "5000", "--json", cwd=tmp_path
    )
    assert done.returncode == Status.DONE, done.stderr
    assert json.loads(done.stdout)["outcome"] == "clean"
    for host in cluster_of_hosts.hosts:
        assert not list(host.directory.glob("*/demo-*"))


def lose_the_link(cluster: NamespaceCluster, command: Running) -> None:
    set_link(cluster.workers[0], is_up=False)


def lose_an_executor(cluster: NamespaceCluster, command: Running) -> None:
    os.kill(executors_on(cluster.workers[0])[0], signal.SIGKILL)


def lose_the_gateway_host(cluster: NamespaceCluster, command: Running) -> None:
    """Kill all processes of the host at once, and keep its link down until the supervisor has noticed."""
    set_link(cluster.edge, is_up=False)
    kill_host(cluster.edge.namespace)
    wait_for(lambda: "gateway was ended by signal 9" in command.said, "the notice", lambda: command.said)
    set_link(cluster.edge, is_up=True)


def lose_an_executor_and_the_gateway_host(cluster: NamespaceCluster, command: Running) -> None:
    lose_an_executor(cluster, command)
    lose_the_gateway_host(cluster, command)


def lose_the_link_and_the_gateway_host(cluster: NamespaceCluster, command: Running) -> None:
    lose_the_link(cluster, command)
    lose_the_gateway_host(cluster, command)


def lose_the_link_and_the_other_executor(cluster: NamespaceCluster, command: Running) -> None:
    lose_the_link(cluster, command)
    os.kill(executors_on(cluster.workers[1])[0], signal.SIGKILL)


FAULTS = (lose_an_executor, lose_the_link, lose_the_gateway_host, lose_an_executor_and_the_gateway_host)
CASES = [(kind, fault) for fault in FAULTS for kind in APPS]
CASES += [("windowed", lose_the_link_and_the_gateway_host), ("keyed", lose_the_link_and_the_other_executor)]
"""Each fault with each kind of pipeline, and each pair of faults. `test_driver_host` has those of the driver's host."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kind", "fault"), CASES)
def test_the_output_is_the_same_when_a_host_is_lost_in_the_middle(
    cluster_of_hosts: NamespaceCluster, tmp_path: Path, kind: str, fault: Callable[[NamespaceCluster, Running], None]
) -> None:
    job = Job(cluster_of_hosts, tmp_path, kind, fault.__name__.replace("_", "-"))
    try:
        with running(*job.arguments, cwd=tmp_path) as command:
            job.await_middle(command)
            fault(cluster_of_hosts, command)
            assert command.wait(FAULTS_TIMEOUT_S) == Status.DONE, command.said
        assert job.output() == job.expected()
    finally:
        for host in cluster_of_hosts.hosts:
            set_link(host, is_up=True)
        cluster_of_hosts.start()
