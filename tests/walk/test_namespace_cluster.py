"""A pipeline on four hosts that share nothing but a network: driver, two executors, gateway and sink apart. The output
is that of the same pipeline in one process, whatever fails on the way."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from procession import Pipeline
from procession.driver.epoch_log import EpochTail
from procession.exit_status import Status
from procession.supervisor.cluster import NamespaceCluster
from procession.supervisor.cluster_pipeline import pipeline_directory
from procession.supervisor.namespace_hosts import NamespaceHost, kill_host, processes_of, set_link
from procession.testing import run as run_in_process
from procession.verify.sink_outputs import committed_output
from tests.systems.namespace_cluster import EXECUTOR, needs_cluster
from tests.walk.cluster import wait_for
from tests.walk.commands import Running, run, running

pytestmark = needs_cluster

RECORDS = 3000
EPOCH_RECORDS = 100
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
    """An app in a directory, and what its driver on the cluster has committed so far."""

    def __init__(self, cluster: NamespaceCluster, place: Path, kind: str, case: str) -> None:
        self.cluster = cluster
        self.place = place
        self.name = f"{kind}-{case}"
        (place / "app.py").write_text(HEAD.format(name=self.name) + APPS[kind])
        (place / "input.txt").write_text("".join(f"{word}\n" for word in WORDS))
        rows = ({"letter": letter, "name": letter * 3} for letter in "abcdefg")
        (place / "letters.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        self._tail = EpochTail(self._at(cluster.head) / "epochs.jsonl")
        self._committed = 0

    def _at(self, host: NamespaceHost) -> Path:
        return pipeline_directory(host, self.name)

    @property
    def arguments(self) -> tuple[str, ...]:
        limits = ("--epoch-records-max", str(EPOCH_RECORDS), "--epoch-interval-s", "0")
        return ("run", "app.py", "--input", "input.txt", "--cluster", "--cluster-name", self.cluster.name, *limits)

    def committed(self) -> int:
        for line in self._tail.new():
            self._committed = line["records_in"]
        return self._committed

    def await_middle(self, command: Running) -> None:
        """Wait until some epochs are committed, and check that most of the input is still to come."""
        wait_for(lambda: "ready: connectors send to" in command.said, "the start", lambda: command.said)
        wait_for(lambda: self.committed() > 0, "the first epoch", lambda: command.said)
        wait_for(lambda: self.committed() >= 3 * EPOCH_RECORDS, "an epoch", lambda: command.said)
        assert self.committed() < RECORDS // 2

    def output(self) -> bytes:
        return b"".join(committed_output(self._at(self.cluster.edge) / "output", None))

    def expected(self) -> bytes:
        spec = importlib.util.spec_from_file_location(f"app_{self.place.name}", self.place / "app.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        pipeline: Pipeline = module.pipeline
        return run_in_process(pipeline, {"words": [json.loads(word) for word in WORDS]}).bytes["output"]


def executors_on(host: NamespaceHost) -> list[int]:
    """The processes of Spark's executors on a host."""
    found = []
    for pid in processes_of(host.namespace):
        try:
            if EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


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
        assert command.wait() == Status.DONE, command.said
    assert job.output() == job.expected()
    assert not list(cluster_of_hosts.head.directory.glob("pipelines/*/gateway")), "the gateway is on another host"
    for host in cluster_of_hosts.workers:
        assert list(host.directory.glob("service/states/*/*.state")), "tasks ran on this host"


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
        assert not list(host.directory.glob("pipelines/demo-*"))


def lose_the_link(cluster: NamespaceCluster, command: Running) -> None:
    set_link(cluster.workers[0], is_up=False)


def lose_the_gateway_host(cluster: NamespaceCluster, command: Running) -> None:
    """All processes of the host end at once, and its link is down until the supervisor has noticed."""
    set_link(cluster.edge, is_up=False)
    kill_host(cluster.edge.namespace)
    wait_for(lambda: "gateway was ended by signal 9" in command.said, "the notice", lambda: command.said)
    set_link(cluster.edge, is_up=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", APPS)
@pytest.mark.parametrize("fault", [lose_the_link, lose_the_gateway_host])
def test_the_output_is_the_same_when_a_host_is_lost_in_the_middle(
    cluster_of_hosts: NamespaceCluster, tmp_path: Path, kind: str, fault: Callable[[NamespaceCluster, Running], None]
) -> None:
    job = Job(cluster_of_hosts, tmp_path, kind, fault.__name__.replace("_", "-"))
    try:
        with running(*job.arguments, cwd=tmp_path) as command:
            job.await_middle(command)
            fault(cluster_of_hosts, command)
            assert command.wait() == Status.DONE, command.said
        assert job.output() == job.expected()
    finally:
        for host in cluster_of_hosts.hosts:
            set_link(host, is_up=True)
        cluster_of_hosts.start()
