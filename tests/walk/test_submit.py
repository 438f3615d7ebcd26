"""`procession submit` on real clusters, standalone and YARN, whose machines have Spark and a plain Python, without our
package."""

from __future__ import annotations

import importlib.util
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest

import procession
from procession.driver.epoch_log import EpochTail
from procession.exit_status import Status
from procession.storage.executor_host import SHIPPED_FILE
from procession.storage.host_runs import ANNOUNCEMENT, announced_host
from procession.storage.secret import Secret, path_of
from procession.storage.shipped_tls import KEY
from procession.testing import run as run_in_process
from procession.verify.sink_outputs import committed_output
from tests.certificates import Authority
from tests.systems.standalone_cluster import HERE, VERSION, StandaloneCluster
from tests.systems.standalone_cluster import running as cluster_running
from tests.systems.yarn_cluster import YarnCluster, needs_yarn
from tests.systems.yarn_cluster import running as yarn_running
from tests.walk.cluster import wait_for
from tests.walk.commands import error_line, running

APP = """
from pathlib import Path

import shapes
from procession import Pipeline, aggregates, tables

pipeline = Pipeline("spread", parallelism=2)
words = pipeline.source("words", codec="text")
counts = words.key_by(shapes.last).rolling(aggregates.count()).map(str)
letters = tables.of_json_lines(Path(__file__).parent / "letters.jsonl", by="letter")
joined = words.rebalance().hash_join(letters, key=shapes.last, join=lambda word, row: f"{word} {row['name']}")
counts.merge(joined).sink("output", to="file:output", codec="text")
"""
SHAPES = """
def last(word):
    return word[-1]
"""
YARN_PATIENCE_S = 400.0
"""It ends a hang. YARN starts four JVMs one after the other, and an executor unpacks 180 MB."""
LETTERS = "abcdefg"
WORDS = [f"{number}{LETTERS[number % 7]}" for number in range(900)]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "shapes.py").write_text(SHAPES)
    (tmp_path / "input.txt").write_text("".join(f"{word}\n" for word in WORDS))
    rows = (f'{{"letter": "{letter}", "name": "{letter * 3}"}}\n' for letter in LETTERS)
    (tmp_path / "letters.jsonl").write_text("".join(rows))
    return tmp_path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with cluster_running(tmp_path_factory.mktemp("spark")) as found:
        yield found


def expected(place: Path) -> bytes:
    """Return the output of the same app in one process."""
    sys.path.insert(0, str(place))
    try:
        spec = importlib.util.spec_from_file_location("submitted_app", place / "app.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(place))
        sys.modules.pop("shapes", None)
    return run_in_process(module.pipeline, {"words": WORDS}).bytes["output"]


def output(place: Path) -> bytes:
    return b"".join(committed_output(place / "output", None))


def arguments(cluster: StandaloneCluster, *more: str) -> tuple[str, ...]:
    given = ("--input", "input.txt", "--listen", "127.0.0.1:0", "--master", cluster.master)
    secret = ("--spark-secret-file", str(cluster.secret_file), "--conf", "spark.executor.memory=512m")
    return ("submit", "app.py", *given, *secret, *more)


def processes(text: bytes) -> dict[int, bytes]:
    """Return the command lines that contain this text, by process id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if text in line:
            found[int(path.name)] = line
    return found


def executors(cluster: StandaloneCluster) -> list[int]:
    port = cluster.master.rpartition(":")[2]
    lines = processes(b"CoarseGrainedExecutorBackend")
    return [pid for pid in lines if str(cluster.work).encode() in environment(pid) or port.encode() in lines[pid]]


def environment(pid: int) -> bytes:
    try:
        return os.readlink(f"/proc/{pid}/cwd").encode()
    except OSError:
        return b""


def test_executors_with_a_plain_python_run_an_app_although_one_is_killed(
    place: Path, cluster: StandaloneCluster
) -> None:
    plain = cluster.directory / "bin" / f"python{VERSION}"
    lacks = subprocess.run([plain, "-c", "import procession"], capture_output=True, text=True, check=False, env={})
    assert "No module named 'procession'" in lacks.stderr
    tail = EpochTail(place / ".procession/spread/epochs.jsonl")
    authority = Authority(place / "authority")
    pair = authority.issue(HERE)
    tls = {"ca": authority.ca, "cert": pair.cert, "key": pair.key}
    (place / "procession.toml").write_text("".join(f'tls_{name} = "{path}"\n' for name, path in tls.items()))
    with running(*arguments(cluster, "--epoch-records-max", "30"), cwd=place) as command:
        wait_for(lambda: "ready: connectors send to" in command.said, "the start", lambda: command.said)
        wait_for(lambda: bool(tail.new()), "an epoch", lambda: command.said)
        (executor,) = executors(cluster)
        secrets = [
            path_of(place / ".procession/spread", Secret.CONTROL).read_text().strip(),
            cluster.secret_file.read_text().strip(),
        ]
        for secret in secrets:
            assert processes(secret.encode()) == {}, "no secret is on a command line"
            assert processes(secret.encode().hex().encode()) == {}
        (shipped,) = cluster.work.glob(f"*/*/{SHIPPED_FILE}")
        assert stat.S_IMODE(shipped.stat().st_mode) == 0o600, "nobody else can read the secret"
        (service,) = processes(str(cluster.local).encode())
        (announcement,) = cluster.local.rglob(ANNOUNCEMENT)
        assert announced_host(announcement.parent).location.startswith("grpc+tls://")
        (key,) = announcement.parent.rglob(KEY)
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        os.kill(executor, signal.SIGKILL)
        wait_for(lambda: [*executors(cluster)] not in ([], [executor]), "another executor", lambda: command.said)
        assert command.wait() == Status.DONE, command.said
        assert list(processes(str(cluster.local).encode())) in ([], [service]), "executors share one service"
    assert output(place) == expected(place)
    wait_for(lambda: service not in processes(str(cluster.local).encode()), "the end of the service", lambda: "")


def test_a_machine_without_python_gets_one_sentence_or_the_packed_python(place: Path, tmp_path: Path) -> None:
    with cluster_running(tmp_path / "spark", has_python=False) as cluster:
        began = time.monotonic()
        with running(*arguments(cluster), cwd=place) as command:
            assert command.wait() == Status.ACT, command.said
        assert not list(cluster.work.glob("*/*/environment")), "nothing was shipped"
        assert f"has no Python {VERSION}" in error_line(command.said.replace("driver: ", ""))
        print(f"said after {time.monotonic() - began:.1f} s")
        with running(*arguments(cluster, "--with-python"), cwd=place) as command:
            assert command.wait() == Status.DONE, command.said
    assert output(place) == expected(place)


def test_executors_that_share_nothing_get_the_secret_in_a_file_from_spark(
    place: Path, cluster: StandaloneCluster
) -> None:
    (place / "app.py").write_text(APP.replace("parallelism=2", 'parallelism=2, exchange="spark"'))
    earlier = set(cluster.work.glob(f"*/*/{SHIPPED_FILE}"))
    modules = f"{Path(procession.__file__).parents[1]}{os.pathsep}{place}"
    path = ("--conf", f"spark.executorEnv.PYTHONPATH={modules}")
    with running("run", *arguments(cluster, *path, "--flight", f"{HERE}:0")[1:], cwd=place) as command:
        assert command.wait() == Status.DONE, command.said
    shipped = set(cluster.work.glob(f"*/*/{SHIPPED_FILE}")) - earlier
    assert shipped, "a task could not have read the log without it"
    assert {stat.S_IMODE(path.stat().st_mode) for path in shipped} == {0o600}
    assert output(place) == expected(place)


def containers(yarn: YarnCluster) -> list[int]:
    """Return the JVMs of Spark's executors in YARN's containers."""
    lines = processes(b"YarnCoarseGrainedExecutorBackend")
    ours = [pid for pid, line in lines.items() if str(yarn.local).encode() in line]
    return [pid for pid in ours if not lines[pid].startswith(b"/bin/bash")]


@needs_yarn
@pytest.mark.timeout(1500)
def test_containers_of_yarn_run_an_app_although_one_is_killed(place: Path) -> None:
    tail = EpochTail(place / ".procession/spread/epochs.jsonl")
    with yarn_running(place / "yarn") as yarn:
        spark = {
            "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
            "spark.yarn.stagingDir": f"file://{place}/staging",
            "spark.executor.memory": "512m",
            "spark.executor.instances": "1",
            "spark.executor.cores": "2",
        }
        conf = [word for name, value in spark.items() for word in ("--conf", f"{name}={value}")]
        given = ("--input", "input.txt", "--listen", "127.0.0.1:0", "--epoch-records-max", "30")
        on_yarn = ("--master", "yarn", "--address", HERE)
        with running("submit", "app.py", *given, *on_yarn, *conf, cwd=place, HADOOP_CONF_DIR=str(yarn.conf)) as command:

            def wait(holds: Callable[[], bool], what: str) -> None:
                wait_for(holds, what, lambda: command.said, patience_s=YARN_PATIENCE_S)

            wait(lambda: "ready: connectors send to" in command.said, "the start")
            wait(lambda: bool(tail.new()), "an epoch")
            secret = path_of(place / ".procession/spread", Secret.CONTROL).read_text().strip()
            assert processes(secret.encode()) == {}, "the secret is on no command line"
            assert processes(secret.encode().hex().encode()) == {}
            shipped = list(yarn.local.rglob(SHIPPED_FILE))
            assert {stat.S_IMODE(path.stat().st_mode) for path in shipped} == {0o600}, "nobody else can read it"
            (first,) = containers(yarn)
            os.kill(first, signal.SIGKILL)
            wait(lambda: containers(yarn) not in ([], [first]), "another executor")
            assert command.wait(YARN_PATIENCE_S) == Status.DONE, command.said
        assert output(place) == expected(place)
        wait_for(lambda: not processes(str(yarn.local).encode()), "the end of the containers", lambda: "")
