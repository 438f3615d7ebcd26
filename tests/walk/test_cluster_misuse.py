"""A mistake in a cluster is reported in one sentence, within seconds of the moment at which it can be known: the start
of the command, or the registration of an executor. The tests print the times (`pytest -s`)."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from procession.exit_status import Status
from procession.storage.host_runs import ANNOUNCEMENT, DIRECTORY_VARIABLE
from procession.storage.secret import Secret, make_secret, path_of
from tests.systems.standalone_cluster import VERSION, StandaloneCluster
from tests.systems.standalone_cluster import running as cluster_running
from tests.walk.cluster import wait_for
from tests.walk.commands import Running, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

APP = """
from procession import Pipeline

pipeline = Pipeline("mistaken", parallelism=2)
pipeline.source("words", codec="text").sink("output", to="file:output", codec="text")
"""
LIMIT_S = 60.0
"""The aim is ten seconds on a quiet machine. Processes that share the cores may take several times as long."""
PATIENCE_S = 300.0
"""It ends a hang. On a busy machine Spark needs minutes to start."""
REGISTERED = re.compile(r"^(\S+ \S+) INFO CoarseGrainedExecutorBackend: Successfully registered with driver", re.M)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with cluster_running(tmp_path_factory.mktemp("spark")) as found:
        yield found


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "input.txt").write_text("a\nb\n")
    return tmp_path


@dataclass
class Said:
    """What a command says, and when."""

    place: Path
    work: Path | None = None
    """The directory with the logs of the cluster's executors."""
    earlier: set[Path] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.earlier = set(self._logs())

    def _logs(self) -> list[Path]:
        return [] if self.work is None else list(self.work.glob("*/*/stderr"))

    def registered(self) -> float | None:
        """Return the time at which the last executor has registered with the driver; None if none has."""
        texts = [path.read_text(errors="replace") for path in set(self._logs()) - self.earlier]
        times = [found[1] for text in texts if (found := REGISTERED.search(text))]
        return max((time.mktime(time.strptime(at, "%y/%m/%d %H:%M:%S")) for at in times), default=None)

    def sentence(self, pattern: str, *arguments: str | Path, is_error: bool = True, **env: str) -> None:
        """Run a command until it prints a line with this pattern, and check the time. An error also ends it."""
        began = time.time()
        with running(*arguments, cwd=self.place, **env) as command:
            said_after_s = self._await(command, pattern, began)
            if is_error:
                assert command.wait() == Status.ACT, command.said
        registered = self.registered()
        since_s = said_after_s if registered is None else began + said_after_s - registered
        print(f"{pattern}: {said_after_s:.1f} s after the start, {since_s:.1f} s after it could be known")
        assert since_s < LIMIT_S

    def _await(self, command: Running, pattern: str, began: float) -> float:
        def is_said() -> bool:
            return re.search(pattern, command.said) is not None

        def is_over() -> bool:
            return is_said() or command.process.poll() is not None

        wait_for(is_over, pattern, lambda: command.said, patience_s=PATIENCE_S)
        assert is_said(), command.said
        return time.time() - began


def submitting(cluster: StandaloneCluster, *more: str) -> tuple[str, ...]:
    given = ("--input", "input.txt", "--listen", "127.0.0.1:0", "--master", cluster.master)
    return ("submit", "app.py", *given, "--spark-secret-file", str(cluster.secret_file), *SMALL, *more)


SMALL = ("--conf", "spark.executor.memory=512m")


def running_on(cluster: StandaloneCluster, *more: str) -> tuple[str, ...]:
    return ("run", *submitting(cluster, "--flight", "127.0.0.1:0", *more)[1:])


def with_services(cluster: StandaloneCluster, directory: Path, *more: str) -> tuple[str, ...]:
    """Return the command of a run whose executors use the host service of this directory."""
    services = ("--host-services", "--conf", f"spark.executorEnv.{DIRECTORY_VARIABLE}={directory}")
    return running_on(cluster, *services, *more)


def test_a_master_that_is_not_there(place: Path) -> None:
    said = Said(place)
    with socket.create_server(("127.0.0.1", 0)) as server:
        master = f"spark://127.0.0.1:{server.getsockname()[1]}"
        given = ("app.py", "--input", "input.txt", "--listen", "127.0.0.1:0", "--master", master)
        said.sentence("has not answered yet", "run", *given, is_error=False)
    said.sentence("cannot be reached: Connection refused", "submit", *given)
    said.sentence("cannot be reached: Connection refused", "run", *given, is_error=False)
    said.sentence("names a directory with yarn-site.xml", "submit", *given[:-1], "yarn", HADOOP_CONF_DIR="")
    said.sentence("names a directory with yarn-site.xml", "run", *given[:-1], "yarn", HADOOP_CONF_DIR="")


def test_a_wrong_secret_of_spark(place: Path, cluster: StandaloneCluster) -> None:
    (place / "wrong.secret").write_text("wrong")
    wrong = ("--spark-secret-file", str(place / "wrong.secret"))
    Said(place).sentence("has not answered yet", *submitting(cluster, *wrong), is_error=False)


def test_no_worker_with_free_memory(place: Path, cluster: StandaloneCluster) -> None:
    much = ("--conf", "spark.executor.memory=64g")
    Said(place).sentence("has assigned no executor yet", *submitting(cluster, *much), is_error=False)


def test_a_missing_archive(place: Path, cluster: StandaloneCluster) -> None:
    named = ("--environment-archive", "nothing.tar.gz")
    Said(place).sentence("There is no environment archive nothing.tar.gz", *submitting(cluster, *named))
    Said(place).sentence(
        "There is no environment archive nothing.tar.gz", *running_on(cluster, *named, "--host-services")
    )
    remote = ("--environment-archive", "http://127.0.0.1:1/nothing.tar.gz")
    said = Said(place, cluster.work)
    said.sentence("nothing.tar.gz", *submitting(cluster, *remote))


@pytest.mark.parametrize("programs", ["none", "another"])
def test_a_machine_without_the_right_python(place: Path, programs: str) -> None:
    with cluster_running(place / "spark", has_python=False) as cluster:
        if programs == "another":
            other = cluster.directory / "bin" / "python3"
            other.write_text("#!/bin/sh\necho 3.9\n")
            other.chmod(0o755)
        said = Said(place, cluster.work)
        said.sentence(f"has no Python {VERSION}", *submitting(cluster))


def test_another_version_of_a_package(place: Path, cluster: StandaloneCluster) -> None:
    (place / "other" / "pyarrow-1.0.dist-info").mkdir(parents=True)
    (place / "other" / "pyarrow-1.0.dist-info" / "METADATA").write_text("Name: pyarrow\nVersion: 1.0\n")
    path = ("--conf", f"spark.executorEnv.PYTHONPATH={place / 'other'}")
    said = Said(place, cluster.work)
    said.sentence("has pyarrow 1.0, the driver", *running_on(cluster, *path))


def test_a_clock_that_is_apart(place: Path, cluster: StandaloneCluster) -> None:
    (place / "apart").mkdir()
    (place / "apart" / "sitecustomize.py").write_text(
        "import time\nreal = time.time\ntime.time = lambda: real() + 3600\n"
    )
    path = ("--conf", f"spark.executorEnv.PYTHONPATH={place / 'apart'}")
    said = Said(place, cluster.work)
    said.sentence("clock of the executor on 127.0.0.1 is 3600 s apart", *running_on(cluster, *path), is_error=False)


@contextmanager
def small_disk(directory: Path, kilobytes: int) -> Iterator[None]:
    """Mount a file system of this size. Needs root."""
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(directory)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="a small disk cannot be mounted")
def test_a_host_without_room(place: Path, cluster: StandaloneCluster) -> None:
    with small_disk(place / "host", 10_000):
        said = Said(place, cluster.work)
        said.sentence("has only .* MB free", *with_services(cluster, place / "host"))
    with cluster_running(place / "spark") as small, small_disk(small.work, 10_000):
        said = Said(place, small.work)
        said.sentence("MB free, and its environment needs", *submitting(small))


def forget(directory: Path) -> None:
    """A service was never started in this directory."""


def leave(directory: Path) -> None:
    """A service has been killed that served at a port of this directory's announcement."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    (directory / ANNOUNCEMENT).write_text(f'{{"location": "grpc://127.0.0.1:{port}"}}')


@pytest.mark.parametrize(
    ("state", "sentence"), [(forget, "no host service has been started in"), (leave, "does not run at grpc://")]
)
def test_a_host_service_that_does_not_run(
    place: Path, cluster: StandaloneCluster, state: Callable[[Path], None], sentence: str
) -> None:
    (place / "host").mkdir()
    state(place / "host")
    said = Said(place, cluster.work)
    said.sentence(sentence, *with_services(cluster, place / "host"), is_error=False)


def test_no_host_service_is_named(place: Path, cluster: StandaloneCluster) -> None:
    said = Said(place, cluster.work)
    said.sentence(f"{DIRECTORY_VARIABLE} is not set", *running_on(cluster, "--host-services"))


def test_a_run_begins_when_its_host_service_is_started(place: Path, cluster: StandaloneCluster) -> None:
    make_secret(place / "shared", Secret.CONTROL)
    cookie = ("--control-cookie-file", str(path_of(place / "shared", Secret.CONTROL)))
    with running(*with_services(cluster, place / "host", *cookie), cwd=place) as command:
        wait_for(lambda: "no host service has been started" in command.said, "the notice", lambda: command.said)
        with running("host", "--dir", place / "host", "--listen", "127.0.0.1:0", *cookie, cwd=place):
            assert command.wait() == Status.DONE, command.said
    assert (place / "output").exists()
